//! Products of 8-bit floats with scales (`_scaled_mm`). Elements are exact in `f32`, in which products are summed.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};

use crate::ops::shapes::shape::{Made, out};
use crate::{Builder, Call, Grad, OpDef, OpError, Samples};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[OpDef {
    samples,
    grad: Grad::NotDifferentiable("PyTorch has no derivative of it"),
    ..composite!(
        "aten::_scaled_mm(Tensor self, Tensor mat2, Tensor scale_a, Tensor scale_b, Tensor? bias=None, Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
        scaled_mm
    )
}];

/// `(self · mat2) scale_a scale_b + bias`, in `out_dtype`: scales are numbers, or one for each row of `self` (`[m, 1]`) and column
/// of `mat2` (`[1, n]`). A result in 8 bits is multiplied with `scale_result`.
fn scaled_mm(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, y) = (c.value("self")?, c.value("mat2")?);
    let dtype = c.opt_dtype("out_dtype")?.unwrap_or(b.dtype(x)?);
    let (rows, columns) = (b.sizes(x)?.first().cloned(), b.sizes(y)?.last().cloned());
    let (wide_x, wide_y) = (b.cast(x, DType::F32)?, b.cast(y, DType::F32)?);
    let mut sum = b.call1("aten.mm.default", vec![wide_x.into(), wide_y.into()])?;
    for (name, size, dim) in [("scale_a", rows, 0), ("scale_b", columns, 1)] {
        let scale = scale(b, c, name, size, dim)?;
        sum = b.mul(sum, scale)?;
    }
    if let Some(bias) = c.opt_value("bias")? {
        let bias = b.cast(bias, DType::F32)?;
        sum = b.add(sum, bias)?;
    }
    if let (Some(scale), true) = (c.opt_value("scale_result")?, dtype.size() == 1) {
        let scale = b.cast(scale, DType::F32)?;
        sum = b.mul(sum, scale)?;
    }
    out(b.cast(sum, dtype)?)
}

/// A scale that broadcasts to the product.
fn scale(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    name: &str,
    size: Option<SymExpr>,
    dim: usize,
) -> Result<ValueId, OpError> {
    let v = c.value(name)?;
    let sizes = b.sizes(v)?;
    let one = sizes.iter().all(|s| *s == SymExpr::ONE);
    let each = sizes.len() == 2 && Some(&sizes[dim]) == size.as_ref() && sizes[1 - dim] == SymExpr::ONE;
    if !one && !each {
        return Err(c.unsupported(format!("`{name}` for blocks: one number, or one for each row or column")));
    }
    let v = b.cast(v, DType::F32)?;
    if one { b.reshape(v, &[]) } else { Ok(v) }
}

fn samples(s: &mut Samples) {
    let eight = |name: &str, sizes: &[usize], dtype| {
        s.float(name, sizes).to_dtype(dtype).expect("a sample fits memory")
    };
    let value = |n: u32| Arg::Value(ValueId(n));
    let one = |name: &str| s.float(name, &[]);
    let (x, y) = (eight("x", &[3, 5], DType::F8E4M3), eight("y", &[5, 4], DType::F8E4M3));
    let rest = [Arg::None, Arg::None, DType::F32.into()];
    let args = |bias: Arg| {
        [0, 1, 2, 3].map(value).into_iter().chain([bias]).chain(rest[1..].iter().cloned()).collect()
    };
    let plain = (vec![x.clone(), y.clone(), one("a"), one("b")], args(Arg::None));
    let (rows, columns) = (s.float("rows", &[3, 1]), s.float("columns", &[1, 4]));
    let half = eight("z", &[3, 5], DType::F8E5M2);
    let each = (vec![half, y, rows, columns, s.float("bias", &[4])], args(value(4)));
    [plain, each].into_iter().for_each(|(tensors, args)| s.add(tensors, args));
}
