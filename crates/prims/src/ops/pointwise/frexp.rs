//! `frexp`: a number as a fraction and a power of two, by exact scaling, so that subnormal numbers have theirs too.

use ir_core::DType;
use smallvec::smallvec;

use crate::ops::common::{choose, widen};
use crate::{Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] =
    &[composite!("aten::frexp.Tensor(Tensor self) -> (Tensor mantissa, Tensor exponent)", frexp)];

/// `x = m 2^e` with `0.5 <= |m| < 1` and `e` of `i32`; zeros, infinities and `NaN` are their own mantissa, with `e = 0`.
fn frexp(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    if !dtype.is_float() {
        return Err(OpError::DType { op: c.name().into(), dtype });
    }
    let wide = widen(b, x)?;
    let compute = b.dtype(wide)?;
    let size = b.abs(wide)?;
    // Without infinities and NaN, which no scaling brings to 1.
    let finite = b.lt(size, f64::INFINITY)?;
    let some = b.gt(size, 0.0)?;
    let usual = b.and(finite, some)?;
    let mut m = choose(b, usual, size, 1.0, compute)?;
    let mut e = b.full(&[], 1i64, DType::I64)?;
    let top: i32 = if compute == DType::F64 { 512 } else { 64 };
    // Down to less than 2, then up to 1 or more. The smallest number needs the largest step twice.
    let halvings = std::iter::successors(Some(top), |k| (*k > 1).then_some(k / 2));
    for k in halvings.clone() {
        let large = b.ge(m, f64::from(k).exp2())?;
        let scaled = b.mul(m, f64::from(-k).exp2())?;
        m = b.select(large, scaled, m)?;
        let more = b.add(e, i64::from(k))?;
        e = b.select(large, more, e)?;
    }
    for k in [top].into_iter().chain(halvings) {
        let small = b.lt(m, f64::from(1 - k).exp2())?;
        let scaled = b.mul(m, f64::from(k).exp2())?;
        m = b.select(small, scaled, m)?;
        let less = b.sub(e, i64::from(k))?;
        e = b.select(small, less, e)?;
    }
    let half = b.mul(m, 0.5)?;
    let negative = b.lt(wide, 0.0)?;
    let minus = b.neg(half)?;
    let signed = b.select(negative, minus, half)?;
    let m = b.select(usual, signed, wide)?;
    let e = b.select(usual, e, 0i64)?;
    Ok(smallvec![b.cast(m, dtype)?, b.cast(e, DType::I32)?])
}
