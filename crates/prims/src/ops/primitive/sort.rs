//! The prim that sorts: a library routine in every backend.

use std::cmp::Ordering;

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, Scalar};
use kernel_ir::ExternOp;
use smallvec::SmallVec;
use tensor::Tensor;

use crate::builder::tensor;
use crate::shard_rule::ShardRule;
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, Lower, MetaCx, OpDef, OpError, RefCall, RefOut,
    Reference, Tolerance,
};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[OpDef {
    schema: "prims::sort(Tensor a, int dim, bool descending) -> (Tensor values, Tensor indices)",
    kind: Kind::Prim {
        doc: "The elements in order along `dim`, and the positions (`i64`) they had. Stable; `NaN` \
                  counts as largest.",
        meta: meta_sort,
        lower: Lower::Extern(|c| {
            let dim = c.call.dim(c.call.int("dim")?, c.meta("a")?.rank())?;
            Ok(ExternOp::Sort { dim: dim as u32, descending: c.call.bool("descending")? })
        }),
        complex: ComplexRule::NO_ORDER,
        batch: BatchRule::Shift(&["dim"]),
        shard: ShardRule::Along,
        reference: Reference::Fn(ref_sort),
    },
    grad: Grad::Rule(crate::ops::gradients::shape::sort),
    tolerance: Tolerance::EXACT,
    autocast: Autocast::NONE,
    samples: |s| {
        for (dim, descending) in [(0i64, false), (1, true), (-1, false)] {
            s.add(
                vec![s.float("a", &[3, 4, 5])],
                vec![Arg::Value(ValueId(0)), dim.into(), descending.into()],
            );
            s.add(
                vec![s.ints("a", &[3, 4, 5], 3)],
                vec![Arg::Value(ValueId(0)), dim.into(), descending.into()],
            );
        }
    },
}];

fn meta_sort(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<SmallVec<[ValueType; 1]>, OpError> {
    let a = cx.meta(call, "a")?;
    if a.rank() == 0 || a.dtype.is_complex() {
        return Err(call.invalid(format!("{a} has no order along a dimension")));
    }
    call.dim(call.int("dim")?, a.rank())?;
    let mut types = tensor(a.dtype, a.sizes.iter().cloned());
    types.extend(tensor(DType::I64, a.sizes.iter().cloned()));
    Ok(types)
}

/// Order of numbers of one dtype; `NaN` is largest, all `NaN` are equal, and so are the zeros.
fn order(a: Scalar, b: Scalar) -> Ordering {
    match (a, b) {
        (Scalar::Float(x), Scalar::Float(y)) => {
            x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()))
        }
        _ => a.as_i64().cmp(&b.as_i64()),
    }
}

fn ref_sort(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let a = c.tensor("a")?;
    let (dim, descending) = (c.int("dim")?, c.bool("descending")?);
    let dim = if dim < 0 { dim + a.rank() as i64 } else { dim } as usize;
    let last = a.rank() - 1;
    let error = |e| c.tensor_error(e);
    let moved = a.transpose(dim, last).map_err(error)?;
    let values: Vec<Scalar> = moved.iter().collect();
    let row = moved.sizes()[last].max(1);
    let mut positions: Vec<i64> = Vec::with_capacity(values.len());
    for line in values.chunks(row) {
        let mut at: Vec<usize> = (0..line.len()).collect();
        at.sort_by(|&i, &j| {
            let o = order(line[i], line[j]);
            if descending { o.reverse() } else { o }
        });
        positions.extend(at.into_iter().map(|i| i as i64));
    }
    let mut sorted = Tensor::empty(a.dtype(), moved.sizes()).map_err(error)?;
    let mut index = vec![0usize; moved.rank()];
    for (n, &p) in positions.iter().enumerate() {
        unravel(n, moved.sizes(), &mut index);
        sorted.set(&index, values[n / row * row + p as usize]).map_err(error)?;
    }
    let positions = Tensor::from_vec(positions, moved.sizes()).map_err(error)?;
    let back = |t: Tensor| t.transpose(dim, last).and_then(|t| t.contiguous()).map_err(error);
    Ok(vec![back(sorted)?, back(positions)?])
}

fn unravel(mut n: usize, sizes: &[usize], index: &mut [usize]) {
    for d in (0..sizes.len()).rev() {
        index[d] = n % sizes[d];
        n /= sizes[d];
    }
}
