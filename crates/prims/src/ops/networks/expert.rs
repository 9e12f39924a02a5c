//! Products with one of several matrices, selected row by row: mixtures of experts.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::shapes::shape::{self, out};
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    // Not ATen's: the custom operators that the `transformers` library exports its mixtures of experts with. Rows up to
    // `offs[0]` are multiplied with `weight[0]`, rows from there up to `offs[1]` with `weight[1]`, and so on; rows
    // after the last are zeros.
    composite!(
        "transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor",
        |b, c| out(of_rows(b, c, c.value("input")?, c.value("weight")?)?)
    ),
    composite!(
        "transformers::grouped_mm_fallback_backward(Tensor input, Tensor weight, Tensor offs, Tensor grad_output) -> (Tensor, Tensor)",
        |b, c| {
            let (x, w, grad) = (c.value("input")?, c.value("weight")?, c.value("grad_output")?);
            let (turned_w, turned_x) = (b.permute(w, &[0, 2, 1])?, b.permute(x, &[1, 0])?);
            Ok(smallvec![of_rows(b, c, grad, turned_w)?, of_sums(b, c, turned_x, grad)?])
        }
    ),
    composite!(
        "aten::_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor",
        grouped
    ),
];

/// `offs` divides the dimension that only one operand has three dimensions beside: rows of `[m, k] × [g, k, n]`, columns of
/// `[g, m, k] × [k, n]`, or what is summed over in `[m, k] × [k, n]`, which gives `[g, m, n]`.
fn grouped(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    if c.opt_value("bias")?.is_some() {
        return Err(c.unsupported("a bias: PyTorch has none here either"));
    }
    let (x, w) = (c.value("self")?, c.value("mat2")?);
    let y = match (b.rank(x)?, b.rank(w)?) {
        (2, 3) => of_rows(b, c, x, w)?,
        (2, 2) => of_sums(b, c, x, w)?,
        (3, 2) => {
            let (x, w) = (b.permute(x, &[0, 2, 1])?, b.permute(w, &[1, 0])?);
            let y = of_rows(b, c, w, x)?;
            b.permute(y, &[1, 0])?
        }
        (3, 3) => b.call1("aten.bmm.default", vec![x.into(), w.into()])?,
        _ => return Err(c.invalid("takes operands of two or three dimensions")),
    };
    match c.arg("out_dtype") {
        Arg::DType(dtype) => out(b.cast(y, *dtype)?),
        _ => out(y),
    }
}

/// For each of `count` positions the number of its group `[count]`: how many ends are not after it.
fn groups_of(b: &mut Builder<'_>, c: &Call<'_>, count: &SymExpr) -> Result<ValueId, OpError> {
    let offs = b.cast(c.value("offs")?, DType::I64)?;
    let numbers = shape::iota_at(b, count, 0, 2)?;
    let ends = b.unsqueeze(offs, 0)?;
    let passed = b.ge(numbers, ends)?;
    let passed = b.cast(passed, DType::I64)?;
    b.reduce(ReduceOp::Sum, passed, &[1], true)
}

/// `[m, k]` rows by the matrix of their group `[g, k, n]`. Every matrix multiplies all rows; each row keeps the product of its
/// own. The cost is that of as many products as there are matrices.
fn of_rows(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, w: ValueId) -> Result<ValueId, OpError> {
    let (sizes_x, sizes_w) = (b.sizes(x)?, b.sizes(w)?);
    let ([rows, _], [groups, _, columns]) = (&sizes_x[..], &sizes_w[..]) else {
        return Err(c.invalid("takes rows [m, k] and matrices [g, k, n]"));
    };
    let groups = shape::known(c, groups, "number of matrices")?;
    let group = groups_of(b, c, rows)?;
    let dtype = b.dtype(x)?;
    let full = [rows.clone(), columns.clone()];
    let mut result = b.full(&full, 0i64, dtype)?;
    for g in 0..groups {
        let matrix = shape::select(b, w, 0, SymExpr::from_i64(g))?;
        let y = b.call1("prims.matmul", vec![x.into(), matrix.into()])?;
        let own = b.eq(group, g)?;
        let own = b.expand(own, &full)?;
        result = b.select(own, y, result)?;
    }
    Ok(result)
}

/// `[m, k] × [k, n]` summed over each group of `k` alone: `[g, m, n]`.
fn of_sums(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, w: ValueId) -> Result<ValueId, OpError> {
    let (sizes_x, sizes_w, ends) = (b.sizes(x)?, b.sizes(w)?, b.sizes(c.value("offs")?)?);
    let ([rows, depth], [_, columns], [groups]) = (&sizes_x[..], &sizes_w[..], &ends[..]) else {
        return Err(c.invalid("takes matrices [m, k] and [k, n]"));
    };
    let groups = shape::known(c, groups, "number of groups")?;
    let group = groups_of(b, c, depth)?;
    let (dtype, wide) = (b.dtype(w)?, [depth.clone(), columns.clone()]);
    let none = b.full(&wide, 0i64, dtype)?;
    let mut parts: Vec<Arg> = Vec::new();
    for g in 0..groups {
        let own = b.eq(group, g)?;
        let own = b.expand(own, &wide)?;
        let kept = b.select(own, w, none)?;
        let y = b.call1("prims.matmul", vec![x.into(), kept.into()])?;
        parts.push(b.unsqueeze(y, 0)?.into());
    }
    if parts.is_empty() {
        return b.full(&[SymExpr::ZERO, rows.clone(), columns.clone()], 0i64, dtype);
    }
    b.call1("aten.cat.default", vec![Arg::List(parts), 0i64.into()])
}
