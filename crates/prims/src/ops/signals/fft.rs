//! Discrete Fourier transforms on real and imaginary parts. Those of float32 and float64 along a dimension of known size are
//! the prims of `primitive::fourier`, one for a length that they have, several for another one (`fft_fast`). The others are
//! products with matrices of cosines and sines, which depend on the length alone and fold into constants.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::is_length;

use crate::ops::common::choose;
use crate::ops::matrices::matmul::contract;
use crate::ops::primitive::fourier::{dft, dft_real};
use crate::ops::shapes::join::roll_dim;
use crate::ops::shapes::shape::{self, Made, out};
use crate::ops::signals::fft_fast::{is_worth_it, stepwise, waves};
use crate::ops::signals::fft_pairs::{is_paired, of_real, to_real};
use crate::promotion::DEFAULT_FLOAT;
use crate::{Autocast, Builder, Call, OpDef, OpError};

macro_rules! fft {
    ($kind:ident, $cast_of_many:ident, $one:literal, $two:literal, $many:literal) => {
        [
            composite!($one, |b, c| one_dim(b, c, Kind::$kind)).autocast(Autocast::FLOAT32_ON_CPU),
            composite!($two, |b, c| many_dims(b, c, Kind::$kind)).autocast(Autocast::$cast_of_many),
            composite!($many, |b, c| many_dims(b, c, Kind::$kind)).autocast(Autocast::$cast_of_many),
        ]
    };
}

const COMPLEX: [[OpDef; 3]; 2] = [
    fft!(
        Forward,
        FLOAT32_ON_CPU,
        "aten::fft_fft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
        "aten::fft_fft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor",
        "aten::fft_fftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
    ),
    fft!(
        Inverse,
        FLOAT32_ON_CPU,
        "aten::fft_ifft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
        "aten::fft_ifft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor",
        "aten::fft_ifftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
    ),
];
const REAL: [[OpDef; 3]; 4] = [
    fft!(
        RealIn,
        FLOAT32_ON_CPU,
        "aten::fft_rfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
        "aten::fft_rfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor",
        "aten::fft_rfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
    ),
    fft!(
        RealOut,
        FLOAT32_ON_CPU,
        "aten::fft_irfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
        "aten::fft_irfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor",
        "aten::fft_irfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
    ),
    fft!(
        HermitianOut,
        NONE,
        "aten::fft_hfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
        "aten::fft_hfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor",
        "aten::fft_hfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
    ),
    fft!(
        HermitianIn,
        NONE,
        "aten::fft_ihfft(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
        "aten::fft_ihfft2(Tensor self, SymInt[1]? s=None, int[1] dim=[-2, -1], str? norm=None) -> Tensor",
        "aten::fft_ihfftn(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor"
    ),
];

/// Transforms from complex to complex.
pub(in crate::ops) const COMPLEX_OPS: &[OpDef] = COMPLEX.as_flattened();
/// Transforms with a real side.
pub(in crate::ops) const REAL_OPS: &[OpDef] = REAL.as_flattened();

/// The other entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::fft_fftshift(Tensor self, int[1]? dim=None) -> Tensor", |b, c| shift(b, c, false)),
    composite!("aten::fft_ifftshift(Tensor self, int[1]? dim=None) -> Tensor", |b, c| shift(b, c, true)),
    composite!(
        "aten::_fft_c2c(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor",
        |b, c| {
            let kind = if c.bool("forward")? { Kind::Forward } else { Kind::Inverse };
            core_form(b, c, kind, None)
        }
    ),
    composite!(
        "aten::_fft_r2c(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor",
        |b, c| {
            let kind = if c.bool("onesided")? { Kind::RealIn } else { Kind::Forward };
            core_form(b, c, kind, None)
        }
    ),
    composite!(
        "aten::_fft_c2r(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor",
        |b, c| core_form(b, c, Kind::RealOut, Some(c.sym("last_dim_size")?))
    ),
];

/// The forms that all others come down to: lengths as they are, but of a real result, and the factor by number.
fn core_form(b: &mut Builder<'_>, c: &Call<'_>, kind: Kind, last: Option<SymExpr>) -> Made {
    let rank = b.rank(c.value("self")?)?;
    let dims = shape::dims(c, "dim", rank)?;
    let mut lengths = vec![None; dims.len()];
    if let Some(n) = lengths.last_mut() {
        *n = last;
    }
    run(b, c, kind, &dims, &lengths)
}

/// Which side is real and which sign the exponent has.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Complex to complex, negative exponent.
    Forward,
    /// Complex to complex, positive exponent.
    Inverse,
    /// Real to half of a complex one, negative exponent.
    RealIn,
    /// Half of a complex one to real, positive exponent.
    RealOut,
    /// As `RealOut` with a negative exponent.
    HermitianOut,
    /// As `RealIn` with a positive exponent.
    HermitianIn,
}

impl Kind {
    fn forward(self) -> bool {
        matches!(self, Kind::Forward | Kind::RealIn | Kind::HermitianOut)
    }
    fn real_out(self) -> bool {
        matches!(self, Kind::RealOut | Kind::HermitianOut)
    }
    fn real_in(self) -> bool {
        matches!(self, Kind::RealIn | Kind::HermitianIn)
    }
}

/// Real and imaginary part; no imaginary part is zero.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Parts {
    pub(in crate::ops) re: ValueId,
    pub(in crate::ops) im: Option<ValueId>,
}

impl Parts {
    pub(in crate::ops) fn map(
        self,
        b: &mut Builder<'_>,
        f: &mut dyn FnMut(&mut Builder<'_>, ValueId) -> Result<ValueId, OpError>,
    ) -> Result<Parts, OpError> {
        let re = f(b, self.re)?;
        let im = self.im.map(|im| f(b, im)).transpose()?;
        Ok(Parts { re, im })
    }
}

/// The parts of a tensor.
fn parts(b: &mut Builder<'_>, x: ValueId) -> Result<Parts, OpError> {
    let dtype = b.dtype(x)?;
    if !dtype.is_complex() {
        let re = if dtype.is_float() { x } else { b.cast(x, DEFAULT_FLOAT)? };
        return Ok(Parts { re, im: None });
    }
    Ok(Parts { re: b.call1("prims.real", vec![x.into()])?, im: Some(b.call1("prims.imag", vec![x.into()])?) })
}

fn whole(b: &mut Builder<'_>, z: Parts) -> Result<ValueId, OpError> {
    let im = match z.im {
        Some(im) => im,
        None => b.mul(z.re, 0.0)?,
    };
    b.call1("prims.complex", vec![z.re.into(), im.into()])
}

/// `x` times a matrix along dimension `d`.
fn along(b: &mut Builder<'_>, x: ValueId, m: ValueId, d: usize) -> Result<ValueId, OpError> {
    let rank = b.rank(x)?;
    let y = contract(b, x, m, &[d], &[0])?;
    shape::move_dim(b, y, rank - 1, d)
}

/// `x · cos` and `x · sin`, combined as `a + sign * b`.
fn combine(b: &mut Builder<'_>, x: ValueId, y: Option<ValueId>, minus: bool) -> Result<ValueId, OpError> {
    match y {
        Some(y) if minus => b.sub(x, y),
        Some(y) => b.add(x, y),
        None => Ok(x),
    }
}

/// Whether there are prims that transform numbers of this dtype.
pub(in crate::ops) fn has_prims(b: &Builder<'_>, dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64) && !b.cx().matrix_transforms
}

/// A number times `scale`, for whoever has not multiplied it yet.
fn times(b: &mut Builder<'_>, v: ValueId, scale: f64) -> Result<ValueId, OpError> {
    if scale == 1.0 { Ok(v) } else { b.mul(v, scale) }
}

/// The transform along `d` of length `n` times `scale`, of which `columns` results are made.
pub(in crate::ops) fn transform(
    b: &mut Builder<'_>,
    z: Parts,
    d: usize,
    n: &SymExpr,
    columns: &SymExpr,
    forward: bool,
    scale: f64,
) -> Result<Parts, OpError> {
    let dtype = b.dtype(z.re)?;
    let (number, prims) = (n.as_const(), has_prims(b, dtype));
    if number == Some(1) {
        return z.map(b, &mut |b, v| times(b, v, scale));
    }
    if let Some(n) = number.filter(|n| prims && is_length(*n)) {
        let half = z.im.is_none() && columns.as_const() == Some(n / 2 + 1);
        let (re, im) = dft(b, (z.re, z.im), d, half, forward, scale)?;
        return Ok(Parts { re, im: Some(im) });
    }
    let z = match number.filter(|n| is_worth_it(*n, prims)) {
        Some(n) if z.im.is_none() && columns.as_const() == Some(n / 2 + 1) && is_paired(n, prims) => {
            of_real(b, z.re, d, n, forward)?
        }
        Some(n) => {
            let whole = stepwise(b, z, d, n, forward)?;
            whole.map(b, &mut |b, v| b.slice(v, d, SymExpr::ZERO, columns.clone(), 1))?
        }
        None => by_matrix(b, z, d, (n, columns), forward)?,
    };
    z.map(b, &mut |b, v| times(b, v, scale))
}

/// The transform as products with a matrix.
fn by_matrix(
    b: &mut Builder<'_>,
    z: Parts,
    d: usize,
    (n, columns): (&SymExpr, &SymExpr),
    forward: bool,
) -> Result<Parts, OpError> {
    let dtype = b.dtype(z.re)?;
    let (cos, sin) = waves(b, n, n, columns, dtype)?;
    let (re_cos, re_sin) = (along(b, z.re, cos, d)?, along(b, z.re, sin, d)?);
    let (im_cos, im_sin) = match z.im {
        Some(im) => (Some(along(b, im, cos, d)?), Some(along(b, im, sin, d)?)),
        None => (None, None),
    };
    // exp(-iθ): (re cos + im sin) + i (im cos - re sin); exp(iθ) with the other signs.
    let re = combine(b, re_cos, im_sin, !forward)?;
    let im = match (im_cos, forward) {
        (Some(im_cos), true) => b.sub(im_cos, re_sin)?,
        (Some(im_cos), false) => b.add(im_cos, re_sin)?,
        (None, true) => b.neg(re_sin)?,
        (None, false) => re_sin,
    };
    Ok(Parts { re, im: Some(im) })
}

/// The real result of length `n` times `scale` from the first half of its transform; the other half mirrors it.
fn real_transform(
    b: &mut Builder<'_>,
    z: Parts,
    d: usize,
    n: &SymExpr,
    forward: bool,
    scale: f64,
) -> Result<ValueId, OpError> {
    let dtype = b.dtype(z.re)?;
    let (number, prims) = (n.as_const(), has_prims(b, dtype));
    if let Some(n) = number.filter(|n| prims && is_length(*n)) {
        let im = match z.im {
            Some(im) => im,
            None => {
                let sizes = b.sizes(z.re)?;
                b.full(&sizes, 0.0, dtype)?
            }
        };
        return dft_real(b, (z.re, im), d, n, forward, scale);
    }
    let y = match number.filter(|n| is_worth_it(*n, prims)) {
        Some(n) if is_paired(n, prims) => to_real(b, z, d, n, forward)?,
        Some(n) => {
            let whole = mirrored(b, z, d, n)?;
            stepwise(b, whole, d, n, forward)?.re
        }
        None => real_by_matrix(b, z, d, n, forward)?,
    };
    times(b, y, scale)
}

/// The real result as products with a matrix.
fn real_by_matrix(
    b: &mut Builder<'_>,
    z: Parts,
    d: usize,
    n: &SymExpr,
    forward: bool,
) -> Result<ValueId, OpError> {
    let half = half_of(n);
    let dtype = b.dtype(z.re)?;
    let (cos, sin) = waves(b, n, &half, n, dtype)?;
    // What has a mirror image counts twice.
    let k = shape::iota_at(b, &half, 0, 2)?;
    let first = b.eq(k, 0i64)?;
    let twice = b.mul(k, 2i64)?;
    let last = b.eq(twice, n.clone())?;
    let single = b.or(first, last)?;
    let ones = b.full(&[half, SymExpr::ONE], 1i64, dtype)?;
    let weight = choose(b, single, ones, 2.0, dtype)?;
    let (cos, sin) = (b.mul(cos, weight)?, b.mul(sin, weight)?);
    let re = along(b, z.re, cos, d)?;
    let im = z.im.map(|im| along(b, im, sin, d)).transpose()?;
    // Re((a + ib) exp(iθ)) = a cos - b sin
    combine(b, re, im, !forward)
}

/// The whole transform of a real line from its first half: element `n - k` is the conjugate of element k.
fn mirrored(b: &mut Builder<'_>, z: Parts, d: usize, n: i64) -> Result<Parts, OpError> {
    let count = SymExpr::from_i64((n - 1) / 2);
    let joined = |b: &mut Builder<'_>, v: ValueId, sign: bool| {
        let back = b.slice(v, d, count.clone(), count.clone(), -1)?;
        let back = if sign { b.neg(back)? } else { back };
        b.call1("prims.cat", vec![Arg::values([v, back]), (d as i64).into()])
    };
    Ok(Parts { re: joined(b, z.re, false)?, im: z.im.map(|im| joined(b, im, true)).transpose()? })
}

/// How many elements the first half of a transform of `n` elements has, the middle one included.
fn half_of(n: &SymExpr) -> SymExpr {
    n.floor_div(&2.into()) + 1
}

/// The factor that the argument `norm` (or `normalization`) puts on a transform of n elements in all.
#[derive(Clone, Copy, PartialEq)]
enum Norm {
    One,
    /// 1 / n.
    Number,
    /// 1 / √n.
    Root,
}

fn norm(c: &Call<'_>, forward: bool) -> Result<Norm, OpError> {
    let by_number = c.op.schema.arg_index("normalization").is_some();
    Ok(if by_number {
        match c.int("normalization")? {
            0 => Norm::One,
            1 => Norm::Root,
            2 => Norm::Number,
            other => return Err(c.bad_arg("normalization", format!("is {other}, not 0, 1 or 2"))),
        }
    } else {
        match (c.opt_str("norm")?, forward) {
            (Some("ortho"), _) => Norm::Root,
            (None | Some("backward"), false) | (Some("forward"), true) => Norm::Number,
            (None | Some("backward"), true) | (Some("forward"), false) => Norm::One,
            (Some(other), _) => return Err(c.bad_arg("norm", format!("is `{other}`"))),
        }
    })
}

/// The factor of a known number of elements.
fn factor(norm: Norm, n: i64) -> f64 {
    match norm {
        Norm::One => 1.0,
        Norm::Number => 1.0 / n as f64,
        Norm::Root => 1.0 / (n as f64).sqrt(),
    }
}

/// `x` times the factor of a number of elements that is not known.
fn scaled(b: &mut Builder<'_>, x: ValueId, norm: Norm, n: &SymExpr) -> Result<ValueId, OpError> {
    if norm == Norm::One {
        return Ok(x);
    }
    let dtype = b.dtype(x)?;
    let number = vec![Arg::List(vec![]), n.clone().into(), ir_core::DType::F64.into()];
    let number = b.call1("prims.full", number)?;
    let number = if norm == Norm::Root { b.sqrt(number)? } else { number };
    let number = b.cast(number, dtype)?;
    b.div(x, number)
}

/// Dimension `d` cut or filled with zeros to `n` elements.
fn resized(b: &mut Builder<'_>, x: ValueId, d: usize, n: &SymExpr) -> Result<ValueId, OpError> {
    let have = b.sizes(x)?[d].clone();
    let rank = b.rank(x)?;
    let mut high = vec![SymExpr::ZERO; rank];
    let low = high.clone();
    high[d] = n - &have;
    shape::pad(b, x, &low, &high, &vec![0; rank], 0)
}

fn one_dim(b: &mut Builder<'_>, c: &Call<'_>, kind: Kind) -> Made {
    let rank = b.rank(c.value("self")?)?;
    let d = shape::dim(c, "dim", rank)?;
    let n = c.opt_sym("n")?;
    run(b, c, kind, &[d], &[n])
}

fn many_dims(b: &mut Builder<'_>, c: &Call<'_>, kind: Kind) -> Made {
    let rank = b.rank(c.value("self")?)?;
    let sizes = c.opt_syms("s")?;
    let dims: Vec<usize> = match (c.opt_ints("dim")?, &sizes) {
        (Some(list), _) => list.into_iter().map(|d| c.dim(d, rank)).collect::<Result<_, _>>()?,
        (None, Some(s)) => (rank.saturating_sub(s.len())..rank).collect(),
        (None, None) => (0..rank).collect(),
    };
    let lengths = match sizes {
        Some(s) if s.len() == dims.len() => {
            s.into_iter().map(|n| Some(n).filter(|n| n.as_const() != Some(-1))).collect()
        }
        Some(_) => return Err(c.bad_arg("s", "must have a length for each dimension")),
        None => vec![None; dims.len()],
    };
    run(b, c, kind, &dims, &lengths)
}

/// The transform over `dims`; the last of them is the one that has a real side.
fn run(b: &mut Builder<'_>, c: &Call<'_>, kind: Kind, dims: &[usize], lengths: &[Option<SymExpr>]) -> Made {
    let x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let Some((&last, others)) = dims.split_last() else {
        let z = parts(b, x)?;
        return out(whole(b, z)?);
    };
    if sizes.is_empty() {
        return Err(c.invalid("takes one dimension or more"));
    }
    let mut z = parts(b, x)?;
    if kind.real_in() && z.im.is_some() {
        return Err(OpError::DType { op: c.name().into(), dtype: b.dtype(x)? });
    }
    let mut total = SymExpr::ONE;
    let mut n_of = Vec::new();
    for (&d, length) in dims.iter().zip(lengths) {
        let have = &sizes[d];
        let halved = kind.real_out() && d == last;
        let n = length.clone().unwrap_or_else(|| if halved { (have - 1) * 2 } else { have.clone() });
        b.require_at_least(&n, 1, |graph| format!("a transform of {} elements", graph.size_text(&n)))?;
        total = &total * &n;
        let keep = if halved { half_of(&n) } else { n.clone() };
        n_of.push(n);
        z = z.map(b, &mut |b, v| resized(b, v, d, &keep))?;
    }
    let forward = kind.forward();
    let norm = norm(c, forward)?;
    // The last of the transforms multiplies by the factor, where it is known.
    let scale = total.as_const().map_or(1.0, |n| factor(norm, n));
    let whole_scale = |b: &mut Builder<'_>, v: ValueId| match total.as_const() {
        Some(_) => Ok(v),
        None => scaled(b, v, norm, &total),
    };
    let mut order: Vec<usize> = (0..others.len()).collect();
    order.insert(if kind.real_in() { 0 } else { others.len() }, others.len());
    for (place, &i) in order.iter().enumerate() {
        let scale = if place + 1 == order.len() { scale } else { 1.0 };
        let (d, n, ends) = (dims[i], &n_of[i], i == others.len());
        if ends && kind.real_out() {
            let y = real_transform(b, z, d, n, forward, scale)?;
            return out(whole_scale(b, y)?);
        }
        let columns = if ends && kind.real_in() { half_of(n) } else { n.clone() };
        z = transform(b, z, d, n, &columns, forward, scale)?;
    }
    let z = z.map(b, &mut |b, v| whole_scale(b, v))?;
    out(whole(b, z)?)
}

/// Halves exchanged, so that frequency zero comes to the middle (or back).
fn shift(b: &mut Builder<'_>, c: &Call<'_>, back: bool) -> Made {
    let mut x = c.value("self")?;
    let sizes = b.sizes(x)?;
    let list = match c.opt_ints("dim")? {
        Some(list) => list.into_iter().map(|d| c.dim(d, sizes.len())).collect::<Result<Vec<_>, _>>()?,
        None => (0..sizes.len()).collect(),
    };
    for d in list {
        let by = if back { (&sizes[d] + 1).floor_div(&2.into()) } else { sizes[d].floor_div(&2.into()) };
        x = roll_dim(b, x, d, &by)?;
    }
    out(x)
}
