//! Interpolation: nearest, linear, cubic and antialiased resampling, one dimension after the other.
//!
//! Positions and weights are arithmetic on index counters in the dtype that PyTorch uses for them (`f32`, `f64` for `f64`
//! images), so they fold into constants. Nearest-neighbour upsampling by an integer factor is a broadcast.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};

use crate::ops::common::{choose, widen};
use crate::ops::matrices::matmul::contract;
use crate::ops::shapes::shape::{self, Made, out};
use crate::{Autocast, Builder, Call, OpDef, OpError};

macro_rules! upsample {
    ($n:literal, $kind:expr, $names:expr, $plain:literal, $vec:literal) => {
        [
            composite!($plain, |b, c| plain(b, c, $n, $kind, &$names)).autocast(Autocast::FLOAT32_ON_GPU),
            composite!($vec, |b, c| by_lists(b, c, $n, $kind)).autocast(Autocast::FLOAT32_ON_GPU),
        ]
    };
}

const NEAREST: [[OpDef; 2]; 3] = [
    upsample!(
        1,
        Kind::Nearest { exact: false },
        ["scales"],
        "aten::upsample_nearest1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor",
        "aten::upsample_nearest1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
    ),
    upsample!(
        2,
        Kind::Nearest { exact: false },
        ["scales_h", "scales_w"],
        "aten::upsample_nearest2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor",
        "aten::upsample_nearest2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
    ),
    upsample!(
        3,
        Kind::Nearest { exact: false },
        ["scales_d", "scales_h", "scales_w"],
        "aten::upsample_nearest3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        "aten::upsample_nearest3d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
    ),
];
const EXACT: [[OpDef; 2]; 3] = [
    upsample!(
        1,
        Kind::Nearest { exact: true },
        ["scales"],
        "aten::_upsample_nearest_exact1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor",
        "aten::_upsample_nearest_exact1d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
    ),
    upsample!(
        2,
        Kind::Nearest { exact: true },
        ["scales_h", "scales_w"],
        "aten::_upsample_nearest_exact2d(Tensor self, SymInt[2] output_size, float? scales_h=None, float? scales_w=None) -> Tensor",
        "aten::_upsample_nearest_exact2d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
    ),
    upsample!(
        3,
        Kind::Nearest { exact: true },
        ["scales_d", "scales_h", "scales_w"],
        "aten::_upsample_nearest_exact3d(Tensor self, SymInt[3] output_size, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        "aten::_upsample_nearest_exact3d.vec(Tensor input, SymInt[]? output_size, float[]? scale_factors) -> Tensor"
    ),
];
const SMOOTH: [[OpDef; 2]; 6] = [
    upsample!(
        1,
        Kind::Linear,
        ["scales"],
        "aten::upsample_linear1d(Tensor self, SymInt[1] output_size, bool align_corners, float? scales=None) -> Tensor",
        "aten::upsample_linear1d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
    ),
    upsample!(
        2,
        Kind::Linear,
        ["scales_h", "scales_w"],
        "aten::upsample_bilinear2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "aten::upsample_bilinear2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
    ),
    upsample!(
        3,
        Kind::Linear,
        ["scales_d", "scales_h", "scales_w"],
        "aten::upsample_trilinear3d(Tensor self, SymInt[3] output_size, bool align_corners, float? scales_d=None, float? scales_h=None, float? scales_w=None) -> Tensor",
        "aten::upsample_trilinear3d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
    ),
    upsample!(
        2,
        Kind::Cubic,
        ["scales_h", "scales_w"],
        "aten::upsample_bicubic2d(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "aten::upsample_bicubic2d.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
    ),
    upsample!(
        2,
        Kind::Smoothed(Window::Triangle),
        ["scales_h", "scales_w"],
        "aten::_upsample_bilinear2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "aten::_upsample_bilinear2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
    ),
    upsample!(
        2,
        Kind::Smoothed(Window::Cubic),
        ["scales_h", "scales_w"],
        "aten::_upsample_bicubic2d_aa(Tensor self, SymInt[2] output_size, bool align_corners, float? scales_h=None, float? scales_w=None) -> Tensor",
        "aten::_upsample_bicubic2d_aa.vec(Tensor input, SymInt[]? output_size, bool align_corners, float[]? scale_factors) -> Tensor"
    ),
];

/// The entries of nearest interpolation.
pub(in crate::ops) const NEAREST_OPS: &[OpDef] = NEAREST.as_flattened();
/// The entries of exact nearest interpolation.
pub(in crate::ops) const EXACT_OPS: &[OpDef] = EXACT.as_flattened();
/// The entries of the others.
pub(in crate::ops) const SMOOTH_OPS: &[OpDef] = SMOOTH.as_flattened();

/// How an element between elements is made.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// The nearest one: of the left edges, or (`exact`) of the middles.
    Nearest { exact: bool },
    /// Two neighbours.
    Linear,
    /// Four neighbours, `A = -0.75`.
    Cubic,
    /// All neighbours within a window as wide as the shrinking demands.
    Smoothed(Window),
}

/// The window of smoothed interpolation.
#[derive(Clone, Copy, PartialEq)]
enum Window {
    /// Falls to 0 at distance 1.
    Triangle,
    /// Keys' kernel with `A = -0.5`, 0 from distance 2.
    Cubic,
}

impl Window {
    /// Distance from which it is 0.
    fn reach(self) -> f64 {
        match self {
            Window::Triangle => 1.0,
            Window::Cubic => 2.0,
        }
    }
    /// Its value at a distance that is not negative.
    fn weight(self, b: &mut Builder<'_>, distance: ValueId, dtype: DType) -> Result<ValueId, OpError> {
        match self {
            Window::Triangle => {
                let falling = b.neg(distance)?;
                let falling = b.add(falling, 1.0)?;
                b.maximum(falling, 0.0)
            }
            Window::Cubic => {
                let (is_near, is_far) = (b.lt(distance, 1.0)?, b.lt(distance, 2.0)?);
                let near = cubic_weight(b, distance, -0.5, true)?;
                let far = cubic_weight(b, distance, -0.5, false)?;
                let far = choose(b, is_far, far, 0.0, dtype)?;
                choose(b, is_near, near, far, dtype)
            }
        }
    }
}

/// One dimension: sizes before and after, and the factor that was requested.
struct Axis {
    dim: usize,
    from: SymExpr,
    to: SymExpr,
    factor: Option<f64>,
}

fn plain(b: &mut Builder<'_>, c: &Call<'_>, n: usize, kind: Kind, names: &[&str]) -> Made {
    let x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let want = c.syms("output_size")?;
    if sizes.len() != n + 2 || want.len() != n {
        return Err(c.invalid(format!("takes {} dimensions and {n} output sizes", n + 2)));
    }
    let mut axes = Vec::new();
    for (d, to) in want.into_iter().enumerate() {
        axes.push(Axis { dim: d + 2, from: sizes[d + 2].clone(), to, factor: c.opt_float(names[d])? });
    }
    resample(b, c, x, kind, &axes)
}

fn by_lists(b: &mut Builder<'_>, c: &Call<'_>, n: usize, kind: Kind) -> Made {
    let x = c.value("input")?;
    let sizes = b.sizes(x)?;
    if sizes.len() != n + 2 {
        return Err(c.invalid(format!("takes {} dimensions", n + 2)));
    }
    let factors = match c.arg("scale_factors") {
        Arg::List(items) => items.iter().map(|a| a.as_scalar().map(|s| s.as_f64())).collect(),
        _ => vec![None; n],
    };
    let want = c.opt_syms("output_size")?;
    let mut axes = Vec::new();
    for d in 0..n {
        let from = sizes[d + 2].clone();
        let factor = factors.get(d).copied().flatten();
        let to = match (&want, factor) {
            (Some(list), _) => {
                list.get(d).cloned().ok_or_else(|| c.bad_arg("output_size", "is too short"))?
            }
            (None, Some(f)) => scaled_size(c, &from, f)?,
            (None, None) => return Err(c.invalid("takes either sizes or factors")),
        };
        axes.push(Axis { dim: d + 2, from, to, factor });
    }
    resample(b, c, x, kind, &axes)
}

fn scaled_size(c: &Call<'_>, n: &SymExpr, factor: f64) -> Result<SymExpr, OpError> {
    match n.as_const() {
        Some(n) => Ok(((n as f64 * factor) as i64).into()),
        None if factor.fract() == 0.0 => Ok(n * factor as i64),
        // Fractions of powers of two are exact: 1.5 is 3/2.
        None if (factor * 1024.0).fract() == 0.0 && factor > 0.0 => {
            Ok((n * (factor * 1024.0) as i64).floor_div(&SymExpr::from_i64(1024)))
        }
        None => Err(c.unsupported(format!("a symbolic size times {factor}"))),
    }
}

fn resample(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, kind: Kind, axes: &[Axis]) -> Made {
    let dtype = b.dtype(x)?;
    let nearest = matches!(kind, Kind::Nearest { .. });
    if !nearest && !dtype.is_float() {
        return Err(OpError::DType { op: c.name().into(), dtype });
    }
    let align = !nearest && c.bool("align_corners")?;
    let mut x = if nearest { x } else { widen(b, x)? };
    // Weights of `f64` images are `f64`.
    let weight = if dtype == DType::F64 && !nearest { DType::F64 } else { DType::F32 };
    for axis in axes {
        // Positions are computed in `weight`, whose rounding decides which neighbour is the nearest.
        x = match kind {
            Kind::Nearest { exact } => nearest_along(b, c, x, axis, exact)?,
            _ if axis.from == axis.to && axis.factor.is_none_or(|f| f == 1.0) => x,
            Kind::Linear => linear_along(b, c, x, axis, align, weight)?,
            Kind::Cubic => cubic_along(b, c, x, axis, align, weight)?,
            Kind::Smoothed(window) => smoothed_along(b, c, x, axis, (window, align), weight)?,
        };
    }
    out(b.cast(x, dtype)?)
}

impl Axis {
    /// Distance between neighbours of the result in the source. With `align` the end points coincide.
    fn scale(&self, c: &Call<'_>, align: bool) -> Result<f64, OpError> {
        if let Some(f) = self.factor.filter(|f| !align && *f > 0.0) {
            return Ok(1.0 / f);
        }
        let from = shape::known(c, &self.from, "size (give a scale factor)")?;
        let to = shape::known(c, &self.to, "size (give a scale factor)")?;
        Ok(match align {
            true if to > 1 => (from - 1) as f64 / (to - 1) as f64,
            true => 0.0,
            false => from as f64 / to as f64,
        })
    }
    /// The same as an operand in `dtype`: a number, or a tensor where sizes are symbolic.
    fn scale_in(&self, b: &mut Builder<'_>, c: &Call<'_>, align: bool, dtype: DType) -> Result<Arg, OpError> {
        let given = self.factor.is_some_and(|f| !align && f > 0.0);
        if given || (self.from.as_const().is_some() && self.to.as_const().is_some()) {
            return Ok(rounded(self.scale(c, align)?, dtype).into());
        }
        let mut number =
            |e: SymExpr| b.call1("prims.full", vec![Arg::List(vec![]), e.into(), DType::F64.into()]);
        // With one element in the result its position is 0 at any scale.
        let (from, to) = if align {
            (number(&self.from - 1)?, number((&self.to - 1).sym_max(&SymExpr::ONE))?)
        } else {
            (number(self.from.clone())?, number(self.to.clone())?)
        };
        let scale = b.div(from, to)?;
        Ok(b.cast(scale, dtype)?.into())
    }
    /// `0, 1, …` of the result as floats.
    fn places(&self, b: &mut Builder<'_>, dtype: DType) -> Result<ValueId, OpError> {
        let v = shape::iota(b, &self.to, SymExpr::ZERO, SymExpr::ONE)?;
        b.cast(v, dtype)
    }
    /// Where each element of the result lies in the source, as a vector.
    fn position(
        &self,
        b: &mut Builder<'_>,
        c: &Call<'_>,
        align: bool,
        dtype: DType,
    ) -> Result<ValueId, OpError> {
        let scale = self.scale_in(b, c, align, dtype)?;
        let at = self.places(b, dtype)?;
        if align {
            return b.mul(at, scale);
        }
        let middle = b.add(at, 0.5)?;
        let scaled = b.mul(middle, scale)?;
        b.sub(scaled, 0.5)
    }
    /// Elements of `x` at a vector of positions, moved inside.
    fn read(&self, b: &mut Builder<'_>, x: ValueId, at: ValueId) -> Result<ValueId, OpError> {
        let at = crate::ops::indexing::index::clamped(b, at, &self.from)?;
        shape::index(b, x, &[at], self.dim)
    }
    /// A vector of weights placed along this dimension, in the dtype of `x`.
    fn weights(&self, b: &mut Builder<'_>, w: ValueId, x: ValueId) -> Result<ValueId, OpError> {
        let (dtype, rank) = (b.dtype(x)?, b.rank(x)?);
        let w = b.cast(w, dtype)?;
        shape::along(b, w, self.dim, rank)
    }
}

/// A number as it is kept in `dtype`.
fn rounded(x: f64, dtype: DType) -> f64 {
    if dtype == DType::F32 { f64::from(x as f32) } else { x }
}

fn nearest_along(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    axis: &Axis,
    exact: bool,
) -> Result<ValueId, OpError> {
    let scale = axis.scale_in(b, c, false, DType::F32)?;
    let number = scale.as_scalar().map(|s| s.as_f64() as f32);
    if let Some(times) = number.and_then(|scale| whole_times(axis, scale, exact)) {
        // Every element `times` times.
        let apart = b.unsqueeze(x, axis.dim + 1)?;
        let mut wide = b.sizes(apart)?;
        wide[axis.dim + 1] = times.into();
        let wide = b.expand(apart, &wide)?;
        return shape::merge_dims(b, wide, axis.dim, 2);
    }
    let at = axis.places(b, DType::F32)?;
    let at = if exact { b.add(at, 0.5)? } else { at };
    let at = b.mul(at, scale)?;
    let at = b.floor(at)?;
    axis.read(b, x, at)
}

/// How often each element is repeated, where the rounded positions say just that.
fn whole_times(axis: &Axis, scale: f32, exact: bool) -> Option<i64> {
    let (from, to) = match (axis.from.as_const(), axis.to.as_const()) {
        (Some(from), Some(to)) if from > 0 => (from, to),
        // Symbolic sizes: powers of two are exact.
        _ => {
            let times = axis.factor.filter(|f| f.fract() == 0.0 && (*f as i64 as u64).is_power_of_two())?;
            return (&axis.from * times as i64 == axis.to).then_some(times as i64);
        }
    };
    let times = to / from;
    let middle = if exact { 0.5 } else { 0.0 };
    let at = |i: i64| (((i as f32 + middle) * scale).floor() as i64).min(from - 1);
    (to % from == 0 && to < 1 << 20 && (0..to).all(|i| at(i) == i / times)).then_some(times)
}

fn linear_along(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    axis: &Axis,
    align: bool,
    dtype: DType,
) -> Result<ValueId, OpError> {
    let at = axis.position(b, c, align, dtype)?;
    let at = b.maximum(at, 0.0)?;
    let whole = b.floor(at)?;
    let fraction = b.sub(at, whole)?;
    let next = b.add(whole, 1.0)?;
    let (low, high) = (axis.read(b, x, whole)?, axis.read(b, x, next)?);
    let right = axis.weights(b, fraction, x)?;
    let one = b.full(&[], 1i64, b.dtype(x)?)?;
    let left = b.sub(one, right)?;
    let (low, high) = (b.mul(low, left)?, b.mul(high, right)?);
    b.add(low, high)
}

/// Keys' convolution kernel with slope `a` at distance `t` (`near`: at most 1, else between 1 and 2).
fn cubic_weight(b: &mut Builder<'_>, t: ValueId, a: f64, near: bool) -> Result<ValueId, OpError> {
    let coefs = if near { [a + 2.0, -(a + 3.0), 0.0, 1.0] } else { [a, -5.0 * a, 8.0 * a, -4.0 * a] };
    let mut sum = b.mul(t, coefs[0])?;
    for (n, coef) in coefs[1..].iter().enumerate() {
        sum = b.add(sum, *coef)?;
        if n < 2 {
            sum = b.mul(sum, t)?;
        }
    }
    Ok(sum)
}

/// Weight of the neighbour `tap` (from -1 to 2) of a position that is `fraction` after neighbour 0.
pub(in crate::ops) fn cubic_tap(
    b: &mut Builder<'_>,
    fraction: ValueId,
    tap: i64,
) -> Result<ValueId, OpError> {
    let distance = if tap <= 0 {
        b.sub(fraction, tap as f64)?
    } else {
        let negative = b.neg(fraction)?;
        b.add(negative, tap as f64)?
    };
    cubic_weight(b, distance, -0.75, tap == 0 || tap == 1)
}

fn cubic_along(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    axis: &Axis,
    align: bool,
    dtype: DType,
) -> Result<ValueId, OpError> {
    let at = axis.position(b, c, align, dtype)?;
    let whole = b.floor(at)?;
    let fraction = b.sub(at, whole)?;
    let mut sum: Option<ValueId> = None;
    for tap in -1..=2i64 {
        let weight = cubic_tap(b, fraction, tap)?;
        let place = b.add(whole, tap as f64)?;
        let value = axis.read(b, x, place)?;
        let weight = axis.weights(b, weight, x)?;
        let term = b.mul(value, weight)?;
        sum = Some(match sum {
            Some(sum) => b.add(sum, term)?,
            None => term,
        });
    }
    sum.ok_or_else(|| c.invalid("has no neighbour"))
}

/// A product with a matrix of weights `[to, from]`, each row a window that sums to 1.
fn smoothed_along(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    axis: &Axis,
    (window, align): (Window, bool),
    dtype: DType,
) -> Result<ValueId, OpError> {
    let scale = axis.scale_in(b, c, align, dtype)?;
    // The window is wider where the image shrinks: its reach on either side, and what a distance is divided by.
    let (support, wide): (Arg, Arg) = match scale.as_scalar() {
        Some(_) => {
            let wide = axis.scale(c, align)?.max(1.0);
            ((window.reach() * wide).into(), wide.into())
        }
        None => {
            let one = b.full(&[], 1i64, dtype)?;
            let wide = b.maximum(one, scale.clone())?;
            (b.mul(wide, window.reach())?.into(), wide.into())
        }
    };
    let at = axis.places(b, dtype)?;
    let middle = b.add(at, 0.5)?;
    let centre = b.mul(middle, scale)?;
    let centre = b.unsqueeze(centre, 1)?;
    // The window in whole elements: from trunc(centre - support + 0.5) up to trunc(centre + support + 0.5).
    let low = b.sub(centre, support.clone())?;
    let low = b.add(low, 0.5)?;
    let low = b.trunc(low)?;
    let high = b.add(centre, support)?;
    let high = b.add(high, 0.5)?;
    let high = b.trunc(high)?;
    let columns = shape::iota_at(b, &axis.from, 1, 2)?;
    let columns = b.cast(columns, dtype)?;
    let (after, before) = (b.ge(columns, low)?, b.lt(columns, high)?);
    let inside = b.and(after, before)?;
    let distance = b.sub(columns, centre)?;
    let distance = b.add(distance, 0.5)?;
    let distance = b.div(distance, wide)?;
    let distance = b.abs(distance)?;
    let weight = window.weight(b, distance, dtype)?;
    let weight = choose(b, inside, weight, 0.0, dtype)?;
    let total = b.reduce(kernel_ir::ReduceOp::Sum, weight, &[1], true)?;
    let weight = b.div(weight, total)?;
    let image = b.dtype(x)?;
    let weight = b.cast(weight, image)?;
    let rank = b.rank(x)?;
    let y = contract(b, x, weight, &[axis.dim], &[1])?;
    shape::move_dim(b, y, rank - 1, axis.dim)
}
