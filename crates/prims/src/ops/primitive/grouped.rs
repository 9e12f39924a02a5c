//! Prims of products whose rows, or whose depth, fall into groups that data tells: mixtures of experts. Each is the gradient of
//! the other.
//!
//! Not here: the operators that call them (`networks::expert`).

use std::ops::Range;

use fx_ir::{Arg, ValueId, ValueType};
use ir_core::{DType, SymExpr};
use kernel_ir::{Along, Groups};
use smallvec::SmallVec;
use tensor::{Tensor, linalg};

use crate::builder::tensor;
use crate::ops::primitive::shape::one;
use crate::ops::shardings;
use crate::shard_rule::{LocalForm, ShardRule};
use crate::{
    Autocast, BatchRule, Call, ComplexRule, Grad, Kind, Lower, LowerCall, MetaCx, OpDef, OpError, RefCall,
    RefOut, Reference, Samples, TemplateSpec, Tolerance,
};

type Types = SmallVec<[ValueType; 1]>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef {
        schema: "prims::grouped_matmul(Tensor a, Tensor b, Tensor ends) -> Tensor",
        kind: Kind::Prim {
            doc: "Each row of `a[m, k]` by the matrix of its group in `b[g, k, n]`. Row `i` is in the first group `g` with \
                  `ends[g] > i`; rows in no group give zeros. Floats of one dtype, `ends` of `i32` or `i64`.",
            meta: meta_rows,
            lower: Lower::Template(|c| lower(c, Along::Rows)),
            complex: ComplexRule::REAL_ONLY,
            batch: BatchRule::Rule(crate::ops::batches::grouped::rows),
            shard: ShardRule::Ways(shardings::templates::grouped_matmul, LocalForm::Same),
            reference: Reference::Fn(reference_of_rows),
        },
        grad: Grad::Rule(crate::ops::gradients::grouped::matmul),
        tolerance: Tolerance::ACCUMULATE,
        autocast: Autocast::NONE,
        samples: |s| {
            add(s, [s.float("a", &[5, 8]), s.float("b", &[3, 8, 4])], vec![2, 2, 5]);
            // Rows without a group, ends out of order and out of range.
            add(s, [s.float("a", &[7, 3]), s.float("b", &[4, 3, 5])], vec![3, -1, 2, 5]);
            add(s, [s.float("a", &[2, 16]), s.float("b", &[1, 16, 8])], vec![9]);
        },
    },
    OpDef {
        schema: "prims::grouped_sums(Tensor a, Tensor b, Tensor ends) -> Tensor",
        kind: Kind::Prim {
            doc: "`a[m, k] · b[k, n]` summed over each group of `k` alone: `[g, m, n]`. Place `i` of `k` is in the first group `g` \
                  with `ends[g] > i`. Floats of one dtype, `ends` of `i32` or `i64`.",
            meta: meta_sums,
            lower: Lower::Template(|c| lower(c, Along::Depth)),
            complex: ComplexRule::REAL_ONLY,
            batch: BatchRule::Rule(crate::ops::batches::grouped::sums),
            shard: ShardRule::Ways(shardings::templates::grouped_sums, LocalForm::Same),
            reference: Reference::Fn(reference_of_sums),
        },
        grad: Grad::Rule(crate::ops::gradients::grouped::sums),
        tolerance: Tolerance::ACCUMULATE,
        autocast: Autocast::NONE,
        samples: |s| {
            add(s, [s.float("a", &[4, 6]), s.float("b", &[6, 5])], vec![1, 1, 6]);
            add(s, [s.float("a", &[3, 9]), s.float("b", &[9, 4])], vec![4, 2, 7]);
        },
    },
];

/// A sample of two operands and ends of groups.
fn add(s: &mut Samples, [a, b]: [Tensor; 2], ends: Vec<i64>) {
    let count = ends.len();
    let ends = Tensor::from_vec(ends, &[count]).expect("a sample fits memory");
    s.add(vec![a, b, ends], (0..3).map(|n| Arg::Value(ValueId(n))).collect());
}

fn lower(c: &LowerCall<'_>, along: Along) -> Result<TemplateSpec, OpError> {
    let c = &c.call;
    let groups = Some((c.value("ends")?, along));
    Ok(TemplateSpec::Matmul { a: c.value("a")?, b: c.value("b")?, zero: 0, dequant: None, groups })
}

/// Checks the dtypes and the ends; returns the number of groups.
fn groups(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<SymExpr, OpError> {
    let (a, b, ends) = (cx.meta(call, "a")?, cx.meta(call, "b")?, cx.meta(call, "ends")?);
    if a.dtype != b.dtype || !a.dtype.is_float() {
        return Err(call.invalid(format!("{a} and {b} are not floats of one dtype")));
    }
    match &ends.sizes[..] {
        [count] if matches!(ends.dtype, DType::I32 | DType::I64) => {
            crate::ops::shapes::shape::known(call, count, "number of groups").map(SymExpr::from_i64)
        }
        _ => Err(call.bad_arg("ends", format!("is {ends}, not a list of `i32` or `i64`"))),
    }
}

fn meta_rows(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let groups = groups(cx, call)?;
    let (a, b) = (cx.meta(call, "a")?, cx.meta(call, "b")?);
    let ([m, k], [g, depth, n]) = (&a.sizes[..], &b.sizes[..]) else {
        return Err(call.invalid(format!("{a} and {b} are not rows and a list of matrices")));
    };
    let what = || format!("sizes {} and {} do not multiply", cx.text(&a.sizes), cx.text(&b.sizes));
    cx.equal(call, k, depth, what)?;
    cx.equal(call, g, &groups, || format!("there are {g} matrices and {groups} groups"))?;
    Ok(tensor(a.dtype, vec![m.clone(), n.clone()]))
}

fn meta_sums(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let groups = groups(cx, call)?;
    let (a, b) = (cx.meta(call, "a")?, cx.meta(call, "b")?);
    if a.rank() != 2 {
        return Err(call.invalid(format!("{a} is no matrix")));
    }
    let product = super::template::product_sizes(cx, call, a, b)?;
    Ok(tensor(a.dtype, std::iter::once(groups).chain(product).collect::<Vec<_>>()))
}

fn ranges(c: &RefCall<'_>, places: usize) -> Result<Vec<Range<usize>>, OpError> {
    Ok(Groups::ranges(c.tensor("ends")?.iter().map(|e| e.as_i64()), places))
}

fn reference_of_rows(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, b) = (c.tensor("a")?, c.tensor("b")?);
    one(c, linalg::grouped_matmul(a, b, &ranges(c, a.sizes()[0])?, c.out().0))
}

fn reference_of_sums(c: &RefCall<'_>) -> Result<RefOut, OpError> {
    let (a, b) = (c.tensor("a")?, c.tensor("b")?);
    one(c, linalg::grouped_sums(a, b, &ranges(c, b.sizes()[0])?, c.out().0))
}
