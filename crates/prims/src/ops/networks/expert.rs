//! Products with one of several matrices, selected row by row: mixtures of experts.

use fx_ir::{Arg, ValueId};
use ir_core::DType;
use smallvec::smallvec;

use crate::ops::shapes::shape::out;
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

/// `[m, k]` rows by the matrix of their group `[g, k, n]`.
fn of_rows(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, w: ValueId) -> Result<ValueId, OpError> {
    by_groups(b, c, "prims.grouped_matmul", x, w)
}

/// `[m, k] × [k, n]` summed over each group of `k` alone: `[g, m, n]`.
fn of_sums(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, w: ValueId) -> Result<ValueId, OpError> {
    by_groups(b, c, "prims.grouped_sums", x, w)
}

fn by_groups(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    target: &str,
    x: ValueId,
    w: ValueId,
) -> Result<ValueId, OpError> {
    let mut ends = c.value("offs")?;
    if !matches!(b.dtype(ends)?, DType::I32 | DType::I64) {
        ends = b.cast(ends, DType::I64)?;
    }
    b.call1(target, vec![x.into(), w.into(), ends.into()])
}
