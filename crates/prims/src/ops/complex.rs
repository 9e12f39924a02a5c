//! Complex numbers: parts, conjugates, polar form. A complex tensor cannot be viewed: parts are values of their own.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::ScalarOp;

use super::common::{choose, one};
use crate::promotion::DEFAULT_FLOAT;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!("aten::real(Tensor(a) self) -> Tensor(a)", |b, c| {
        let x = c.value("self")?;
        one(real(b, x)?)
    }),
    composite!("aten::imag(Tensor(a) self) -> Tensor(a)", |b, c| b
        .call("prims.imag", vec![c.value("self")?.into()])),
    composite!("aten::view_as_real(Tensor(a) self) -> Tensor(a)", |b, c| {
        let x = c.value("self")?;
        let parts = [b.call1("prims.real", vec![x.into()])?, b.call1("prims.imag", vec![x.into()])?];
        let rank = b.rank(x)?;
        let parts = [b.unsqueeze(parts[0], rank)?, b.unsqueeze(parts[1], rank)?];
        b.call("prims.cat", vec![Arg::values(parts), (rank as i64).into()])
    }),
    composite!("aten::view_as_complex(Tensor(a) self) -> Tensor(a)", |b, c| {
        let x = c.value("self")?;
        let Some(last) = b.rank(x)?.checked_sub(1) else {
            return Err(c.invalid("needs a last dimension of size 2"));
        };
        let mut sizes = b.sizes(x)?;
        sizes.pop();
        let mut parts = [x, x];
        for (n, part) in parts.iter_mut().enumerate() {
            let half = b.slice(x, last, SymExpr::from_i64(n as i64), SymExpr::ONE, 1)?;
            *part = b.reshape(half, &sizes)?;
        }
        b.call("prims.complex", vec![parts[0].into(), parts[1].into()])
    })
    .autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::complex(Tensor real, Tensor imag) -> Tensor", |b, c| {
        let parts = [c.value("real")?, c.value("imag")?];
        let sizes = b.broadcast_sizes(&parts)?;
        let parts = [b.expand(parts[0], &sizes)?, b.expand(parts[1], &sizes)?];
        b.call("prims.complex", vec![parts[0].into(), parts[1].into()])
    }),
    // abs (cos angle + i sin angle)
    composite!("aten::polar(Tensor abs, Tensor angle) -> Tensor", |b, c| {
        let (size, angle) = (c.value("abs")?, c.value("angle")?);
        let (cos, sin) = (b.cos(angle)?, b.sin(angle)?);
        let (re, im) = (b.mul(size, cos)?, b.mul(size, sin)?);
        b.call("prims.complex", vec![re.into(), im.into()])
    })
    .autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::conj(Tensor(a) self) -> Tensor(a)", conj),
    composite!("aten::_conj(Tensor(a) self) -> Tensor(a)", conj),
    composite!("aten::_conj_copy(Tensor self) -> Tensor", conj),
    composite!("aten::conj_physical(Tensor self) -> Tensor", conj),
    composite!("aten::_conj_physical(Tensor self) -> Tensor", conj),
    composite!("aten::angle(Tensor self) -> Tensor", angle),
];

/// The real part; a real tensor is its own.
pub(super) fn real(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    if b.dtype(x)?.is_complex() { b.call1("prims.real", vec![x.into()]) } else { Ok(x) }
}

/// Magnitude: `hypot` of the parts, but that the gradient at zero is zero.
pub(super) fn magnitude(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    let (re, im) = (b.call1("prims.real", vec![x.into()])?, b.call1("prims.imag", vec![x.into()])?);
    let (x, y) = (b.abs(re)?, b.abs(im)?);
    let (large, small) = (b.maximum(x, y)?, b.minimum(x, y)?);
    let zero = b.eq(large, 0.0)?;
    let divisor = b.select(zero, 1.0, large)?;
    let ratio = b.div(small, divisor)?;
    let square = b.mul(ratio, ratio)?;
    let sum = b.add(square, 1.0)?;
    let root = b.sqrt(sum)?;
    let finite = b.mul(large, root)?;
    let (x_inf, y_inf) = (b.eq(x, f64::INFINITY)?, b.eq(y, f64::INFINITY)?);
    let infinite = b.or(x_inf, y_inf)?;
    b.select(infinite, f64::INFINITY, finite)
}

fn conj(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    if !b.dtype(x)?.is_complex() {
        return one(x);
    }
    let (re, im) = (b.call1("prims.real", vec![x.into()])?, b.call1("prims.imag", vec![x.into()])?);
    let im = b.neg(im)?;
    b.call("prims.complex", vec![re.into(), im.into()])
}

/// Of a complex number `atan2(im, re)`; of a real one 0 or, below zero, pi. A `NaN` stays.
fn angle(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let x = c.value("self")?;
    let dtype = b.dtype(x)?;
    if dtype.is_complex() {
        let (re, im) = (b.call1("prims.real", vec![x.into()])?, b.call1("prims.imag", vec![x.into()])?);
        return one(b.scalar_op(ScalarOp::Atan2, &[im.into(), re.into()])?);
    }
    let result = if dtype.is_float() { dtype } else { DEFAULT_FLOAT };
    if dtype == DType::Bool {
        let sizes = b.sizes(x)?;
        return one(b.full(&sizes, 0.0, result)?);
    }
    let x = b.cast(x, result)?;
    let negative = b.lt(x, 0.0)?;
    let half_turn = choose(b, negative, std::f64::consts::PI, 0.0, result)?;
    let nan = b.ne(x, x)?;
    one(b.select(nan, x, half_turn)?)
}

/// `large + tail(small - large)`, where the real parts say which is large: PyTorch's `logaddexp` of complex numbers. Two
/// operands of magnitude zero stay.
pub(super) fn log_add(
    b: &mut Builder<'_>,
    x: ValueId,
    y: ValueId,
    tail: impl FnOnce(&mut Builder<'_>, ValueId) -> Result<ValueId, OpError>,
) -> Result<ValueId, OpError> {
    let (x_re, y_re) = (real(b, x)?, real(b, y)?);
    let less = b.lt(x_re, y_re)?;
    let (small, large) = (b.select(less, x, y)?, b.select(less, y, x)?);
    let minus = b.sub(small, large)?;
    let tail = tail(b, minus)?;
    let sum = b.add(large, tail)?;
    let (equal, nothing) = (b.eq(x_re, y_re)?, b.eq(x_re, f64::NEG_INFINITY)?);
    let exact = b.and(equal, nothing)?;
    b.select(exact, small, sum)
}

/// The running logarithms `logs` of sums of `exp(x)` with the imaginary parts that one addition after the other gives: each
/// is within half a turn of the one before, or of the element's own where its real part is the larger. They differ from
/// principal values by whole turns, through which nothing is differentiated.
pub(super) fn unwound(
    b: &mut Builder<'_>,
    x: ValueId,
    logs: ValueId,
    dim: usize,
) -> Result<ValueId, OpError> {
    let sizes = b.sizes(logs)?;
    let (re, angle) = (real(b, logs)?, b.call1("prims.imag", vec![logs.into()])?);
    let (x_re, x_im) = (real(b, x)?, b.call1("prims.imag", vec![x.into()])?);
    // The element before; before the first one there is nothing, which is less than anything.
    let before = |b: &mut Builder<'_>, v: ValueId, edge: f64| {
        let (mut low, mut high) = (vec![SymExpr::ZERO; sizes.len()], vec![SymExpr::ZERO; sizes.len()]);
        (low[dim], high[dim]) = (SymExpr::ONE, SymExpr::from_i64(-1));
        let none = vec![0; sizes.len()];
        super::shape::pad(b, v, &low, &high, &none, edge)
    };
    let (re_before, angle_before) = (before(b, re, f64::NEG_INFINITY)?, before(b, angle, 0.0)?);
    let starts = b.ge(x_re, re_before)?;
    let step = nearest(b, angle, angle_before)?;
    let step = b.select(starts, 0.0, step)?;
    let along = Arg::from(dim as i64);
    let path = b.call1("prims.cumsum", vec![step.into(), along.clone()])?;
    let number = super::creation::iota(b, sizes[dim].clone())?;
    let number = super::shape::along(b, number, dim, sizes.len())?;
    let number = b.select(starts, number, 0i64)?;
    let last = b.call1("prims.cummax", vec![number.into(), along.clone()])?;
    let own = nearest(b, angle, x_im)?;
    let origin = b.add(x_im, own)?;
    let origin = b.sub(origin, path)?;
    let origin = b.call1("prims.gather", vec![origin.into(), along, last.into()])?;
    let whole = b.add(path, origin)?;
    let away = b.sub(whole, angle)?;
    let turns = b.mul(away, 1.0 / std::f64::consts::TAU)?;
    let turns = b.scalar_op(ScalarOp::Round, &[turns.into()])?;
    let turns = b.mul(turns, std::f64::consts::TAU)?;
    let im = b.add(angle, turns)?;
    b.call1("prims.complex", vec![re.into(), im.into()])
}

/// The way from `from` to the nearest angle that is `to` but for whole turns.
fn nearest(b: &mut Builder<'_>, to: ValueId, from: ValueId) -> Result<ValueId, OpError> {
    let way = b.sub(to, from)?;
    let turns = b.mul(way, 1.0 / std::f64::consts::TAU)?;
    let turns = b.scalar_op(ScalarOp::Round, &[turns.into()])?;
    let whole = b.mul(turns, std::f64::consts::TAU)?;
    b.sub(way, whole)
}
