//! Short-time Fourier transforms and their windows.

use std::f64::consts::TAU;

use fx_ir::{Arg, ValueId};
use ir_core::{DType, SymExpr};
use kernel_ir::ScalarOp;

use crate::ops::common::one;
use crate::ops::shapes::shape;
use crate::promotion::DEFAULT_FLOAT;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::hann_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| cosine(b, c, &[0.5, -0.5])
    ),
    composite!(
        "aten::hann_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| cosine(b, c, &[0.5, -0.5])
    ),
    composite!(
        "aten::hamming_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        hamming
    ),
    composite!(
        "aten::hamming_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        hamming
    ),
    composite!(
        "aten::hamming_window.periodic_alpha(int window_length, bool periodic, float alpha, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        hamming
    ),
    composite!(
        "aten::hamming_window.periodic_alpha_beta(int window_length, bool periodic, float alpha, float beta, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        hamming
    ),
    composite!(
        "aten::blackman_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| cosine(b, c, &[0.42, -0.5, 0.08])
    ),
    composite!(
        "aten::blackman_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        |b, c| cosine(b, c, &[0.42, -0.5, 0.08])
    ),
    composite!(
        "aten::bartlett_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        bartlett
    ),
    composite!(
        "aten::bartlett_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        bartlett
    ),
    composite!(
        "aten::kaiser_window(int window_length, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        kaiser
    ),
    composite!(
        "aten::kaiser_window.periodic(int window_length, bool periodic, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        kaiser
    ),
    composite!(
        "aten::kaiser_window.beta(int window_length, bool periodic, float beta, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor",
        kaiser
    ),
    composite!(
        "aten::stft(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool normalized=False, bool? onesided=None, bool? return_complex=None, bool? align_to_window=None) -> Tensor",
        stft
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::stft.center(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True, str pad_mode=\"reflect\", bool normalized=False, bool? onesided=None, bool? return_complex=None, bool? align_to_window=None) -> Tensor",
        stft
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::istft(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True, bool normalized=False, bool? onesided=None, int? length=None, bool return_complex=False) -> Tensor",
        istft
    ),
];

fn has(c: &Call<'_>, name: &str) -> bool {
    c.op.schema.arg_index(name).is_some()
}

/// A window computed in `f64`: `shape` gets the positions `0, 1, …` and their number in a period. A window of one position
/// is 1.
fn window(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    shape: impl FnOnce(&mut Builder<'_>, ValueId, f64) -> Result<ValueId, OpError>,
) -> Result<Outs, OpError> {
    let n = c.int("window_length")?;
    let dtype = c.opt_dtype("dtype")?.unwrap_or(DEFAULT_FLOAT);
    if n < 0 || !dtype.is_float() {
        return Err(c.invalid("takes a length that is not negative and a real floating point dtype"));
    }
    if n <= 1 {
        return one(b.full(&[n.into()], 1.0, dtype)?);
    }
    let periodic = !has(c, "periodic") || c.bool("periodic")?;
    let places = shape::iota(b, &n.into(), 0.into(), 1.into())?;
    let places = b.cast(places, DType::F64)?;
    let y = shape(b, places, if periodic { n } else { n - 1 } as f64)?;
    one(b.cast(y, dtype)?)
}

/// `a0 + a1 cos(2 pi n / N) + a2 cos(4 pi n / N)`
fn cosine(b: &mut Builder<'_>, c: &Call<'_>, terms: &[f64]) -> Result<Outs, OpError> {
    window(b, c, |b, places, period| {
        let mut sum = b.mul(places, 0.0)?;
        for (k, &a) in terms.iter().enumerate() {
            let angle = b.mul(places, TAU * k as f64 / period)?;
            let cos = b.scalar_op(ScalarOp::Cos, &[angle.into()])?;
            let term = b.mul(cos, a)?;
            sum = b.add(sum, term)?;
        }
        Ok(sum)
    })
}

fn hamming(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let alpha = if has(c, "alpha") { c.float("alpha")? } else { 0.54 };
    let beta = if has(c, "beta") { c.float("beta")? } else { 0.46 };
    cosine(b, c, &[alpha, -beta])
}

/// A triangle: `1 - |2 n / N - 1|`
fn bartlett(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    window(b, c, |b, places, period| {
        let x = b.mul(places, 2.0 / period)?;
        let x = b.sub(x, 1.0)?;
        let x = b.abs(x)?;
        let x = b.neg(x)?;
        b.add(x, 1.0)
    })
}

/// `I0(beta sqrt(1 - (2 n / N - 1)^2)) / I0(beta)`
fn kaiser(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let beta = if has(c, "beta") { c.float("beta")? } else { 12.0 };
    window(b, c, |b, places, period| {
        let x = b.mul(places, 2.0 / period)?;
        let x = b.sub(x, 1.0)?;
        let square = b.mul(x, x)?;
        let rest = b.neg(square)?;
        let rest = b.add(rest, 1.0)?;
        let rest = b.maximum(rest, 0.0)?;
        let root = b.sqrt(rest)?;
        let inside = b.mul(root, beta)?;
        let top = b.call1("aten.special_i0.default", vec![inside.into()])?;
        let whole = b.full(&[], beta, DType::F64)?;
        let bottom = b.call1("aten.special_i0.default", vec![whole.into()])?;
        b.div(top, bottom)
    })
}

/// The frame's parameters: length, step, and the window in the middle of a frame (none where all of it counts).
struct Frames {
    n: i64,
    hop: i64,
    window: Option<ValueId>,
}

fn frames(b: &mut Builder<'_>, c: &Call<'_>, dtype: DType) -> Result<Frames, OpError> {
    let n = c.int("n_fft")?;
    let hop = c.opt_int("hop_length")?.unwrap_or(n / 4);
    let length = c.opt_int("win_length")?.unwrap_or(n);
    if n <= 0 || hop <= 0 || !(1..=n).contains(&length) {
        return Err(c.invalid("takes a positive frame length and step, and a window no longer than a frame"));
    }
    let window = match c.opt_value("window")? {
        Some(w) => {
            let what = || format!("`window` must be a vector of {length} elements");
            let [have] = &b.sizes(w)?[..] else { return Err(c.invalid(what())) };
            b.require_equal(have, &length.into(), |_| what())?;
            Some(w)
        }
        None if length < n => Some(b.full(&[length.into()], 1i64, dtype.to_real())?),
        None => None,
    };
    let left = (n - length) / 2;
    let window = match window {
        Some(w) if length < n => {
            Some(shape::pad(b, w, &[left.into()], &[(n - length - left).into()], &[0], 0i64)?)
        }
        other => other,
    };
    Ok(Frames { n, hop, window })
}

fn norm(c: &Call<'_>) -> Result<Arg, OpError> {
    Ok(if c.bool("normalized")? { "ortho".into() } else { Arg::None })
}

fn stft(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let mut x = c.value("self")?;
    let dtype = b.dtype(x)?;
    let rank = b.rank(x)?;
    if !(1..=2).contains(&rank) || dtype.is_integral() {
        return Err(c.bad_arg("self", "must be a floating point tensor of one or two dimensions"));
    }
    if rank == 1 {
        x = b.unsqueeze(x, 0)?;
    }
    let f = frames(b, c, dtype)?;
    let centred = has(c, "center") && c.bool("center")?;
    if centred {
        x = padded(b, c, x, f.n / 2)?;
    }
    if c.bool("align_to_window")? {
        if centred {
            return Err(c.invalid("`align_to_window` is for `center=False`"));
        }
        // The window, not the frame around it, begins with the signal: what is outside meets the window's zeros.
        let around = f.n - c.opt_int("win_length")?.unwrap_or(f.n);
        let (before, after) = (around / 2, around - around / 2);
        let (low, high) = ([SymExpr::ZERO, before.into()], [SymExpr::ZERO, after.into()]);
        x = shape::pad(b, x, &low, &high, &[0, 0], 0i64)?;
    }
    let complex = dtype.is_complex() || matches!(f.window, Some(w) if b.dtype(w)?.is_complex());
    let onesided = if c.is_none("onesided") { !complex } else { c.bool("onesided")? };
    let mut y = b.call1("aten.unfold.default", vec![x.into(), (-1i64).into(), f.n.into(), f.hop.into()])?;
    if let Some(w) = f.window {
        y = b.call1("aten.mul.Tensor", vec![y.into(), w.into()])?;
    }
    let transform = if onesided { "aten.fft_rfft.default" } else { "aten.fft_fft.default" };
    y = b.call1(transform, vec![y.into(), Arg::None, (-1i64).into(), norm(c)?])?;
    y = b.permute(y, &[0, 2, 1])?;
    if rank == 1 {
        y = shape::drop_dim(b, y, 0)?;
    }
    let whole = if c.is_none("return_complex") { complex } else { c.bool("return_complex")? };
    one(if whole { y } else { b.call1("aten.view_as_real.default", vec![y.into()])? })
}

/// Half a frame more at both ends of `[N, L]`.
fn padded(b: &mut Builder<'_>, c: &Call<'_>, x: ValueId, by: i64) -> Result<ValueId, OpError> {
    let mode = c.opt_str("pad_mode")?.unwrap_or("reflect");
    let deep = b.unsqueeze(x, 1)?;
    let both: &[i64] = &[by, by];
    let y = b.call1("aten.pad.default", vec![deep.into(), both.into(), mode.into(), Arg::None])?;
    shape::drop_dim(b, y, 1)
}

fn istft(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let mut x = c.value("self")?;
    let rank = b.rank(x)?;
    if !(2..=3).contains(&rank) || !b.dtype(x)?.is_complex() {
        return Err(c.bad_arg("self", "must be complex, [F, T] or [N, F, T]"));
    }
    if rank == 2 {
        x = b.unsqueeze(x, 0)?;
    }
    let real = b.dtype(x)?.to_real();
    let f = frames(b, c, real)?;
    let sizes = b.sizes(x)?;
    let onesided = if c.is_none("onesided") { sizes[1] != f.n.into() } else { c.bool("onesided")? };
    let x = b.permute(x, &[0, 2, 1])?;
    let args = vec![x.into(), f.n.into(), (-1i64).into(), norm(c)?];
    let mut y = match (c.bool("return_complex")?, onesided) {
        (true, true) => return Err(c.invalid("a one-sided transform gives no complex signal")),
        (true, false) => b.call1("aten.fft_ifft.default", args)?,
        (false, _) => b.call1("aten.fft_irfft.default", args)?,
    };
    let count = sizes[2].clone();
    let total = (&count - 1) * f.hop + f.n;
    let weight = match f.window {
        Some(w) => {
            y = b.call1("aten.mul.Tensor", vec![y.into(), w.into()])?;
            b.call1("aten.mul.Tensor", vec![w.into(), w.into()])?
        }
        None => b.full(&[f.n.into()], 1i64, real)?,
    };
    let weight = b.expand(weight, &[SymExpr::ONE, count, f.n.into()])?;
    let (y, weight) = (overlapped(b, y, &f, &total)?, overlapped(b, weight, &f, &total)?);
    let start: SymExpr = if c.bool("center")? { f.n / 2 } else { 0 }.into();
    let end = match c.opt_sym("length")? {
        Some(length) => &start + &length,
        None => &total - &start,
    };
    let inside = shape::simplify(b, end.clone().sym_min(&total));
    let length = shape::simplify(b, &inside - &start);
    let y = b.slice(y, 1, start.clone(), length.clone(), 1)?;
    let weight = b.slice(weight, 1, start, length, 1)?;
    let mut y = b.call1("aten.div.Tensor", vec![y.into(), weight.into()])?;
    let missing = shape::simplify(b, end - &inside);
    if missing != SymExpr::ZERO {
        y = shape::pad(b, y, &[SymExpr::ZERO, SymExpr::ZERO], &[SymExpr::ZERO, missing], &[0, 0], 0i64)?;
    }
    one(if rank == 2 { shape::drop_dim(b, y, 0)? } else { y })
}

/// Frames `[N, T, n]` added up where they lie in the signal, `[N, total]`.
fn overlapped(b: &mut Builder<'_>, v: ValueId, f: &Frames, total: &SymExpr) -> Result<ValueId, OpError> {
    let sizes = b.sizes(v)?;
    let starts = shape::iota_at(b, &sizes[1], 0, 2)?;
    let starts = b.mul(starts, f.hop)?;
    let within = shape::iota_at(b, &f.n.into(), 1, 2)?;
    let places = b.add(starts, within)?;
    let flat = &sizes[1] * &SymExpr::from_i64(f.n);
    let places = b.reshape(places, std::slice::from_ref(&flat))?;
    let values = b.reshape(v, &[sizes[0].clone(), flat])?;
    let dtype = b.dtype(v)?;
    let zeros = b.full(&[sizes[0].clone(), total.clone()], 0i64, dtype)?;
    b.call1("aten.index_add.default", vec![zeros.into(), 1i64.into(), places.into(), values.into()])
}
