//! The prims that are discrete Fourier transforms along a dimension, of lengths that one step of a program has
//! (`kernel_ir::is_length`): a routine in every backend. Complex numbers are two real tensors, real and imaginary parts. How
//! other lengths are composed, and what ATen's arguments mean, is in `signals`.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{ExternOp, FourierForm, is_length};
use tensor::{Tensor, TensorError};

use crate::builder::tensor;
use crate::ops::gradients::scalar::Grads;
use crate::ops::shapes::shape;
use crate::shard_rule::ShardRule;
use crate::{
    Autocast, BatchRule, Builder, Call, ComplexRule, Grad, GradCall, Kind, Lower, LowerCall, MetaCx, OpDef,
    OpError, RefCall, RefOut, Reference, Samples, Tolerance,
};

type Types = smallvec::SmallVec<[fx_ir::ValueType; 1]>;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    OpDef {
        schema: "prims::dft(Tensor re, Tensor? im, int dim, bool half, bool forward, float scale) -> (Tensor re, Tensor im)",
        kind: Kind::Prim {
            doc: "Real and imaginary parts of `scale · Σ_j x_j exp(∓2πi jk / n)` along `dim`, for the n numbers \
                  `x = re + i im` of each line; minus where `forward`. Without `im` the numbers are real; then `half` \
                  gives only the results for `k <= n / 2`, whose conjugates the others are. n is a number up to 4096 \
                  without prime factors above 13, and all tensors are `f32` or `f64`.",
            meta: meta_dft,
            lower: Lower::Extern(lower),
            complex: ComplexRule::REAL_ONLY,
            batch: BatchRule::Shift(&["dim"]),
            shard: ShardRule::Along,
            reference: Reference::Fn(|c| {
                let form = if c.bool("half")? { FourierForm::RealToHalf } else { FourierForm::Complex };
                let re = c.tensor("re")?;
                let length = re.sizes().get(dim_of(c, re.rank())?).copied().unwrap_or(1);
                reference(c, form, length)
            }),
        },
        grad: Grad::Rule(gradient),
        tolerance: Tolerance::ACCUMULATE,
        autocast: Autocast::NONE,
        samples: samples_dft,
    },
    OpDef {
        schema: "prims::dft_real(Tensor re, Tensor im, int dim, int n, bool forward, float scale) -> Tensor",
        kind: Kind::Prim {
            doc: "The n real numbers `scale · Σ_k z_k exp(∓2πi jk / n)` along `dim`; minus where `forward`. Of the n \
                  numbers `z = re + i im` of each line the `n / 2 + 1` first are given, the others are their conjugates \
                  (`z_(n - k)` is that of `z_k`). `im` is not looked at for `k = 0` and `k = n / 2`. Lengths and dtypes \
                  are those of `dft`.",
            meta: meta_dft_real,
            lower: Lower::Extern(lower),
            complex: ComplexRule::REAL_ONLY,
            batch: BatchRule::Shift(&["dim"]),
            shard: ShardRule::Along,
            reference: Reference::Fn(|c| {
                let n = usize::try_from(c.int("n")?).map_err(|_| c.bad_arg("n", "is negative"))?;
                reference(c, FourierForm::HalfToReal, n)
            }),
        },
        grad: Grad::Rule(gradient_real),
        tolerance: Tolerance::ACCUMULATE,
        autocast: Autocast::NONE,
        samples: samples_dft_real,
    },
];

fn samples_dft(s: &mut Samples) {
    let second = || Arg::Value(ValueId(1));
    for (sizes, dim) in [(&[2, 8][..], 1i64), (&[6, 3], 0), (&[2, 15, 3], 1), (&[16], -1), (&[1, 2], 0)] {
        for forward in [true, false] {
            let mut add = |tensors: Vec<Tensor>, half: bool| {
                let im = if tensors.len() > 1 { second() } else { Arg::None };
                let rest = [dim.into(), half.into(), forward.into(), 0.5.into()];
                s.add(tensors, [Arg::Value(ValueId(0)), im].into_iter().chain(rest).collect());
            };
            let part = |name: &str| Samples::default().float(name, sizes);
            add(vec![part("re"), part("im")], false);
            add(vec![part("re")], false);
            add(vec![part("re")], true);
        }
    }
}

fn samples_dft_real(s: &mut Samples) {
    for (sizes, dim, n) in [(&[2, 5][..], 1i64, 8i64), (&[4, 3], 0, 7), (&[2, 8, 3], 1, 15), (&[1], 0, 1)] {
        for forward in [true, false] {
            let args = vec![
                Arg::Value(ValueId(0)),
                Arg::Value(ValueId(1)),
                dim.into(),
                n.into(),
                forward.into(),
                0.5.into(),
            ];
            s.add(vec![s.float("re", sizes), s.float("im", sizes)], args);
        }
    }
}

/// The operand `re` with the dimension and its size, checked: `im` is as large, and all are floats of 32 or 64 bits.
fn operand<'a>(
    cx: &MetaCx<'a>,
    call: &Call<'_>,
) -> Result<(&'a ir_core::TensorMeta, usize, SymExpr), OpError> {
    let re = cx.meta(call, "re")?;
    if !matches!(re.dtype, DType::F32 | DType::F64) {
        return Err(OpError::DType { op: call.name().into(), dtype: re.dtype });
    }
    if re.rank() == 0 {
        return Err(call.invalid("takes one dimension or more"));
    }
    if call.opt_value("im")?.is_some() {
        let im = cx.meta(call, "im")?;
        if im.dtype != re.dtype {
            return Err(OpError::DType { op: call.name().into(), dtype: im.dtype });
        }
        cx.equal_sizes(call, &im.sizes, &re.sizes, || {
            let (a, b) = (cx.text(&re.sizes), cx.text(&im.sizes));
            format!("`re` has sizes {a}, `im` has {b}")
        })?;
    }
    let dim = call.dim(call.int("dim")?, re.rank())?;
    Ok((re, dim, re.sizes[dim].clone()))
}

fn permitted(call: &Call<'_>, n: i64) -> Result<i64, OpError> {
    match is_length(n) {
        true => Ok(n),
        false => {
            Err(call.unsupported(format!("lines of {n} elements: it has to be composed of shorter ones")))
        }
    }
}

fn with_size(sizes: &[SymExpr], dim: usize, n: i64) -> Shape {
    let mut sizes: Shape = sizes.iter().cloned().collect();
    sizes[dim] = n.into();
    sizes
}

fn meta_dft(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (re, dim, n) = operand(cx, call)?;
    let n = n.as_const().ok_or_else(|| call.unsupported("lines of symbolic length"))?;
    let n = permitted(call, n)?;
    let half = call.bool("half")?;
    if half && call.opt_value("im")?.is_some() {
        return Err(call.bad_arg("half", "is for real numbers"));
    }
    let sizes = with_size(&re.sizes, dim, if half { n / 2 + 1 } else { n });
    let mut types = tensor(re.dtype, sizes.iter().cloned());
    types.extend(tensor(re.dtype, sizes));
    Ok(types)
}

fn meta_dft_real(cx: &MetaCx<'_>, call: &Call<'_>) -> Result<Types, OpError> {
    let (re, dim, have) = operand(cx, call)?;
    let n = permitted(call, call.int("n")?)?;
    cx.equal(call, &have, &(n / 2 + 1).into(), || {
        format!("{} elements of a line are given, of {n} there are {}", cx.graph.size_text(&have), n / 2 + 1)
    })?;
    Ok(tensor(re.dtype, with_size(&re.sizes, dim, n)))
}

fn lower(c: &LowerCall<'_>) -> Result<ExternOp, OpError> {
    let dim = c.call.dim(c.call.int("dim")?, c.meta("re")?.rank())?;
    let (forward, scale) = (c.call.bool("forward")?, c.call.float("scale")?);
    Ok(ExternOp::Fourier { dim: dim as u32, forward, scale })
}

fn dim_of(c: &RefCall<'_>, rank: usize) -> Result<usize, OpError> {
    let dim = c.int("dim")?;
    let dim = if dim < 0 { dim + rank as i64 } else { dim };
    usize::try_from(dim).ok().filter(|d| *d < rank).ok_or_else(|| c.bad_arg("dim", "is out of range"))
}

fn reference(c: &RefCall<'_>, form: FourierForm, length: usize) -> Result<RefOut, OpError> {
    let re = c.tensor("re")?;
    let dim = dim_of(c, re.rank())?;
    let scale = c.opt_scalar("scale")?.map_or(1.0, ir_core::Scalar::as_f64);
    run_fourier(form, length, dim, c.bool("forward")?, scale, (re, c.opt_tensor("im")?))
        .map_err(|e| c.tensor_error(e))
}

/// The reference of a transform along `dim`, computed in double precision: both parts of the results, or real results.
///
/// # Errors
/// Tensors that do not fit each other or memory.
pub fn run_fourier(
    form: FourierForm,
    length: usize,
    dim: usize,
    forward: bool,
    scale: f64,
    (re, im): (&Tensor, Option<&Tensor>),
) -> Result<Vec<Tensor>, TensorError> {
    let last = re.rank().saturating_sub(1);
    let numbers =
        |t: &Tensor| -> Result<Vec<f64>, TensorError> { Ok(t.transpose(dim, last)?.iter_f64().collect()) };
    let (xs, ys) = (numbers(re)?, im.map(numbers).transpose()?);
    let (read, made) = form.counts(length as i64);
    let (read, made) = (read.max(1) as usize, made as usize);
    let mut parts = [Vec::new(), Vec::new()];
    for at in (0..xs.len()).step_by(read) {
        let given = |j: usize| [xs[at + j], ys.as_ref().map_or(0.0, |ys| ys[at + j])];
        for [x, y] in form.line(length, forward, scale, given) {
            parts[0].push(x);
            parts[1].push(y);
        }
    }
    let moved = re.transpose(dim, last)?;
    let mut sizes = moved.sizes().to_vec();
    sizes[last] = made;
    let results = if form == FourierForm::HalfToReal { 1 } else { 2 };
    let back = |part: Vec<f64>| -> Result<Tensor, TensorError> {
        let flat = match re.dtype() {
            DType::F32 => Tensor::from_vec(part.into_iter().map(|x| x as f32).collect::<Vec<_>>(), &sizes)?,
            _ => Tensor::from_vec(part, &sizes)?,
        };
        flat.transpose(dim, last)?.contiguous()
    };
    parts.into_iter().take(results).map(back).collect()
}

/// Both parts of a transform along `dim`; only the first half of the results where `half`.
pub(in crate::ops) fn dft(
    b: &mut Builder<'_>,
    (re, im): (ValueId, Option<ValueId>),
    dim: usize,
    half: bool,
    forward: bool,
    scale: f64,
) -> Result<(ValueId, ValueId), OpError> {
    let im = im.map_or(Arg::None, Arg::Value);
    let args = vec![re.into(), im, (dim as i64).into(), half.into(), forward.into(), scale.into()];
    match b.call("prims.dft", args)?[..] {
        [re, im] => Ok((re, im)),
        _ => Err(OpError::Invalid { op: "prims.dft".into(), what: "gives two results".into() }),
    }
}

/// The n real results of a transform along `dim`, from the first half of its numbers.
pub(in crate::ops) fn dft_real(
    b: &mut Builder<'_>,
    (re, im): (ValueId, ValueId),
    dim: usize,
    n: i64,
    forward: bool,
    scale: f64,
) -> Result<ValueId, OpError> {
    let args = vec![re.into(), im.into(), (dim as i64).into(), n.into(), forward.into(), scale.into()];
    b.call1("prims.dft_real", args)
}

/// `v`, the first half of a line of n numbers along `dim`, with those times `factor` that have a mirror image in the other half.
fn mirrored_times(
    b: &mut Builder<'_>,
    v: ValueId,
    dim: usize,
    n: i64,
    factor: f64,
) -> Result<ValueId, OpError> {
    let (rank, sizes) = (b.rank(v)?, b.sizes(v)?);
    let k = shape::iota_at(b, &sizes[dim], dim, rank)?;
    let first = b.eq(k, 0i64)?;
    let twice = b.mul(k, 2i64)?;
    let last = b.eq(twice, n)?;
    let single = b.or(first, last)?;
    let single = b.expand(single, &sizes)?;
    let times = b.mul(v, factor)?;
    b.select(single, v, times)
}

/// The transform is linear: its gradient is that of the conjugate exponents, by the same prims.
fn gradient(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = vec![None; call.call.args.len()];
    let (re, im) = (call.call.value("re")?, call.call.opt_value("im")?);
    let given = |n: usize| call.cotangents.get(n).copied().flatten();
    let (g_re, g_im) = match (given(0), given(1)) {
        (None, None) => return Ok(grads),
        (Some(g_re), g_im) => (g_re, g_im),
        (None, Some(g_im)) => {
            let (sizes, dtype) = (b.sizes(g_im)?, b.dtype(g_im)?);
            (b.full(&sizes, 0.0, dtype)?, Some(g_im))
        }
    };
    let dim = call.call.dim(call.call.int("dim")?, b.rank(re)?)?;
    let (back, scale) = (!call.call.bool("forward")?, call.call.float("scale")?);
    if !call.call.bool("half")? {
        let (re, other) = dft(b, (g_re, g_im), dim, false, back, scale)?;
        grads[0] = Some(re);
        grads[1] = im.map(|_| other);
        return Ok(grads);
    }
    let n = b.sizes(re)?[dim].as_const().ok_or_else(|| call.call.unsupported("lines of symbolic length"))?;
    let half = |b: &mut Builder<'_>, g: ValueId| mirrored_times(b, g, dim, n, 0.5);
    let x = half(b, g_re)?;
    let y = match g_im {
        Some(g) => half(b, g)?,
        None => {
            let (sizes, dtype) = (b.sizes(x)?, b.dtype(x)?);
            b.full(&sizes, 0.0, dtype)?
        }
    };
    grads[0] = Some(dft_real(b, (x, y), dim, n, back, scale)?);
    Ok(grads)
}

/// What has a mirror image counts twice.
fn gradient_real(b: &mut Builder<'_>, call: &GradCall<'_>) -> Grads {
    let mut grads = vec![None; call.call.args.len()];
    let Some(g) = call.cotangents.first().copied().flatten() else { return Ok(grads) };
    let dim = call.call.dim(call.call.int("dim")?, b.rank(g)?)?;
    let (back, scale) = (!call.call.bool("forward")?, call.call.float("scale")?);
    let n = call.call.int("n")?;
    let (re, im) = dft(b, (g, None), dim, true, back, scale)?;
    grads[0] = Some(mirrored_times(b, re, dim, n, 2.0)?);
    grads[1] = Some(mirrored_times(b, im, dim, n, 2.0)?);
    Ok(grads)
}
