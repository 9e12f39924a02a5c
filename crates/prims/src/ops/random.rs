//! Random tensors out of nothing: `rand`, `randn`, `randint`, `randperm` and what they are made of.
//!
//! Every number is a function of the run's seed, the call and the element's linear index
//! ([`Builder::random_bits`]), so a backend may compute it where it is read, twice or in any order. The distributions
//! are PyTorch's; its streams of numbers are not reproduced.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::ScalarOp;

use super::common::one;
use crate::promotion::DEFAULT_FLOAT;
use crate::{Builder, Call, OpDef, OpError, Outs};

/// A tensor drawn by a function of sizes and dtype, of the sizes given.
macro_rules! sized {
    ($schema:literal, $draw:expr) => {
        composite!($schema, |b, c| {
            let dtype = c.opt_dtype("dtype")?.unwrap_or(DEFAULT_FLOAT);
            let draw: Draw = $draw;
            one(draw(b, c, &c.syms("size")?, dtype)?)
        })
    };
}

/// The same of the sizes and dtype of `self`.
macro_rules! like {
    ($schema:literal, $draw:expr) => {
        composite!($schema, |b, c| {
            let meta = b.meta(c.value("self")?)?.clone();
            let draw: Draw = $draw;
            one(draw(b, c, &meta.sizes, c.opt_dtype("dtype")?.unwrap_or(meta.dtype))?)
        })
    };
}

type Draw = fn(&mut Builder<'_>, &Call<'_>, &[SymExpr], DType) -> Result<ValueId, OpError>;

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    sized!(
        "aten::rand(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        uniform
    ),
    sized!(
        "aten::rand.generator(SymInt[] size, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        uniform
    ),
    sized!(
        "aten::randn(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        normal
    ),
    sized!(
        "aten::randn.generator(SymInt[] size, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        normal
    ),
    sized!(
        "aten::randint(SymInt high, SymInt[] size, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        integers
    ),
    sized!(
        "aten::randint.generator(SymInt high, SymInt[] size, *, Generator? generator, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        integers
    ),
    sized!(
        "aten::randint.low(SymInt low, SymInt high, SymInt[] size, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        integers
    ),
    sized!(
        "aten::randint.low_generator(SymInt low, SymInt high, SymInt[] size, *, Generator? generator, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        integers
    ),
    composite!(
        "aten::randperm(SymInt n, *, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        permutation
    ),
    composite!(
        "aten::randperm.generator(SymInt n, *, Generator? generator, ScalarType? dtype=long, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        permutation
    ),
    like!(
        "aten::rand_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        uniform
    ),
    like!(
        "aten::rand_like.generator(Tensor self, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        uniform
    ),
    like!(
        "aten::randn_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        normal
    ),
    like!(
        "aten::randn_like.generator(Tensor self, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        normal
    ),
    like!(
        "aten::randint_like(Tensor self, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        integers
    ),
    like!(
        "aten::randint_like.generator(Tensor self, SymInt high, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        integers
    ),
    like!(
        "aten::randint_like.low_dtype(Tensor self, SymInt low, SymInt high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        integers
    ),
    like!(
        "aten::randint_like.low_generator_dtype(Tensor self, SymInt low, SymInt high, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        integers
    ),
    like!(
        "aten::randint_like.Tensor(Tensor self, Tensor high, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        integers
    ),
    like!(
        "aten::randint_like.Tensor_generator(Tensor self, Tensor high, *, Generator? generator, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor",
        integers
    ),
];

/// Random bits that `dtype` can hold as a fraction, its significand's: PyTorch's resolution of `rand`.
fn digits(dtype: DType) -> u32 {
    match dtype {
        DType::F64 => 53,
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    }
}

/// The top `count` of 64 random bits, as an integer from 0.
fn top_bits(b: &mut Builder<'_>, sizes: &[SymExpr], count: u32) -> Result<ValueId, OpError> {
    let bits = b.random_bits(sizes)?;
    let high = b.scalar_op(ScalarOp::Shr, &[bits.into(), i64::from(64 - count).into()])?;
    b.and(high, (1i64 << count) - 1)
}

/// `k * 2^-count` in `compute`.
fn fraction(b: &mut Builder<'_>, k: ValueId, count: u32, compute: DType) -> Result<ValueId, OpError> {
    let k = b.cast(k, compute)?;
    b.mul(k, (-f64::from(count)).exp2())
}

/// Uniform in [0, 1); of a complex dtype both parts.
pub(super) fn uniform(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    sizes: &[SymExpr],
    dtype: DType,
) -> Result<ValueId, OpError> {
    want_float(c, dtype)?;
    if dtype.is_complex() {
        let (re, im) = (uniform(b, c, sizes, dtype.to_real())?, uniform(b, c, sizes, dtype.to_real())?);
        return b.call1("prims.complex", vec![re.into(), im.into()]);
    }
    let k = top_bits(b, sizes, digits(dtype))?;
    let u = fraction(b, k, digits(dtype), dtype.compute())?;
    b.cast(u, dtype)
}

/// Uniform in (0, 1], `f32` or `f64`: what logarithms are taken of. In `f32` its smallest value is 2^-32.
pub(super) fn positive(b: &mut Builder<'_>, sizes: &[SymExpr], compute: DType) -> Result<ValueId, OpError> {
    let count = if compute == DType::F64 { 53 } else { 32 };
    let k = top_bits(b, sizes, count)?;
    let k = b.add(k, 1i64)?;
    fraction(b, k, count, compute)
}

/// Standard normal by the transform of Box and Muller, `sqrt(-2 ln u) cos(2 pi v)`; a complex number has variance 1 in
/// all, so each part 1/2.
pub(super) fn normal(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    sizes: &[SymExpr],
    dtype: DType,
) -> Result<ValueId, OpError> {
    want_float(c, dtype)?;
    if dtype.is_complex() {
        let real = dtype.to_real();
        let mut part = || {
            let n = normal(b, c, sizes, real)?;
            b.mul(n, std::f64::consts::FRAC_1_SQRT_2)
        };
        let (re, im) = (part()?, part()?);
        return b.call1("prims.complex", vec![re.into(), im.into()]);
    }
    let compute = dtype.compute();
    let (u, v) = if compute == DType::F64 {
        (positive(b, sizes, compute)?, uniform(b, c, sizes, compute)?)
    } else {
        // 32 bits for the radius and 24 others for the angle: one draw is enough.
        let bits = b.random_bits(sizes)?;
        let high = b.scalar_op(ScalarOp::Shr, &[bits.into(), 32i64.into()])?;
        let high = b.and(high, 0xffff_ffffi64)?;
        let high = b.add(high, 1i64)?;
        let low = b.and(bits, 0xff_ffffi64)?;
        (fraction(b, high, 32, compute)?, fraction(b, low, 24, compute)?)
    };
    let log = b.log(u)?;
    let squared = b.mul(log, -2.0)?;
    let radius = b.sqrt(squared)?;
    let angle = b.mul(v, std::f64::consts::TAU)?;
    let cos = b.scalar_op(ScalarOp::Cos, &[angle.into()])?;
    let n = b.mul(radius, cos)?;
    b.cast(n, dtype)
}

/// Whether an event of probability `p` happens: exact to 2^-53.
pub(super) fn bernoulli_event(b: &mut Builder<'_>, sizes: &[SymExpr], p: f64) -> Result<ValueId, OpError> {
    let k = top_bits(b, sizes, 53)?;
    b.lt(k, (p * 53f64.exp2()).ceil() as i64)
}

/// Uniform integers `low + bits % range` as `i64`; the bias of the remainder is below `range / 2^63`.
pub(super) fn below(
    b: &mut Builder<'_>,
    sizes: &[SymExpr],
    low: Arg,
    range: Arg,
) -> Result<ValueId, OpError> {
    let bits = b.random_bits(sizes)?;
    let positive = b.and(bits, i64::MAX)?;
    let rest = b.scalar_op(ScalarOp::Rem, &[positive.into(), range])?;
    b.scalar_op(ScalarOp::Add, &[rest.into(), low])
}

/// `randint`: `low <= n < high`, in any dtype.
fn integers(b: &mut Builder<'_>, c: &Call<'_>, sizes: &[SymExpr], dtype: DType) -> Result<ValueId, OpError> {
    let has_low = c.op.schema.arg_index("low").is_some();
    let low = if has_low { c.sym("low")? } else { SymExpr::ZERO };
    let range = match c.arg("high") {
        Arg::Value(high) => {
            let high = b.cast(*high, DType::I64)?;
            let numel = b.meta(high)?.numel();
            b.require_equal(&numel, &SymExpr::ONE, |_| "`high` must have one element".into())?;
            Arg::Value(b.reshape(high, &[])?)
        }
        _ => {
            let range = &c.sym("high")? - &low;
            b.require_at_least(&range, 1, |_| "`high` must be larger than `low`".into())?;
            range.into()
        }
    };
    let n = below(b, sizes, low.into(), range)?;
    b.cast(n, dtype)
}

/// `0..n` in random order: the order of random keys of 64 bits.
fn permutation(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DType::I64);
    let n = c.sym("n")?;
    b.require_at_least(&n, 0, |_| "`n` must not be negative".into())?;
    let keys = b.random_bits(&[n])?;
    let sorted = b.call("prims.sort", vec![keys.into(), 0i64.into(), false.into()])?;
    one(b.cast(sorted[1], dtype)?)
}

/// Refuses dtypes without a fraction.
pub(super) fn want_float(c: &Call<'_>, dtype: DType) -> Result<(), OpError> {
    super::common::want_inexact(c, dtype)
}
