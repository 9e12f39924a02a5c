//! The prims other than scalar ones on complex tensors: conversions, products of many, matrix products, convolution,
//! scatters. No entries; formulas of single elements are in `complex_scalar`.

use fx_ir::{Arg, ValueId};
use ir_core::{DType, Shape, SymExpr, numel};
use smallvec::smallvec;

use super::complex_formula::Formula;
use super::creation::iota;
use super::shape;
use crate::complex_rule::Splits;
use crate::{Builder, ComplexCall, OpError, Parts, SplitArg};

type SplitResult = Result<Splits, OpError>;

fn done(z: Parts) -> SplitResult {
    Ok(smallvec![z.into()])
}

/// `f` of both parts.
fn both(
    b: &mut Builder<'_>,
    z: Parts,
    mut f: impl FnMut(&mut Builder<'_>, ValueId) -> Result<ValueId, OpError>,
) -> Result<Parts, OpError> {
    Ok(Parts { re: f(b, z.re)?, im: f(b, z.im)? })
}

/// The product of elements of one shape, or that broadcast.
fn product(b: &mut Builder<'_>, x: Parts, y: Parts) -> Result<Parts, OpError> {
    let dtype = b.dtype(x.re)?;
    let at = Formula::new(b, dtype);
    let out = (at.complex(x) * at.complex(y)).parts();
    at.done(out)
}

/// The real part.
pub(super) fn real(_: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    Ok(smallvec![call.parts("a")?.re.into()])
}

/// The imaginary part.
pub(super) fn imag(_: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    Ok(smallvec![call.parts("a")?.im.into()])
}

/// The parts themselves.
pub(super) fn complex(_: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    done(Parts { re: call.real_value("re")?, im: call.real_value("im")? })
}

/// To a real dtype the real part is converted, to `bool` whether either part is not zero; from one the imaginary part is
/// zero.
pub(super) fn convert(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    let to = call.out(0)?.dtype;
    let part = to.to_real();
    match (call.arg("a"), to.is_complex()) {
        (SplitArg::Complex(z), true) => done(both(b, *z, |b, v| b.cast(v, part))?),
        (SplitArg::Complex(z), false) if to == DType::Bool => Ok(smallvec![not_zero(b, *z)?.into()]),
        (SplitArg::Complex(z), false) => Ok(smallvec![b.cast(z.re, to)?.into()]),
        _ => {
            let re = call.real_value("a")?;
            let re = b.cast(re, part)?;
            let sizes = b.sizes(re)?;
            done(Parts { re, im: b.full(&sizes, 0.0, part)? })
        }
    }
}

fn not_zero(b: &mut Builder<'_>, z: Parts) -> Result<ValueId, OpError> {
    let (re, im) = (b.ne(z.re, 0.0)?, b.ne(z.im, 0.0)?);
    b.or(re, im)
}

/// Halvings after which one element is left of as many as there can be.
fn halvings(b: &Builder<'_>, n: &SymExpr) -> usize {
    let most = match n.as_const() {
        Some(n) => Some(n),
        None => n.as_sym().and_then(|s| b.graph().symbols.get(s)).and_then(|s| s.max),
    };
    // A line of 2^40 elements does not fit any memory.
    let most = most.unwrap_or(1 << 40).max(1);
    (64 - (most - 1).leading_zeros()) as usize
}

/// `high` ones (with a zero imaginary part) behind dimension `dim`, `low` before it.
fn padded_with_ones(
    b: &mut Builder<'_>,
    z: Parts,
    dim: usize,
    low: &SymExpr,
    high: &SymExpr,
) -> Result<Parts, OpError> {
    let rank = b.rank(z.re)?;
    let mut pad = |v: ValueId, value: f64| {
        let (mut lows, mut highs) = (vec![SymExpr::ZERO; rank], vec![SymExpr::ZERO; rank]);
        (lows[dim], highs[dim]) = (low.clone(), high.clone());
        let interior = vec![0i64; rank];
        let lists = [Arg::from(&lows[..]), Arg::from(&highs[..]), Arg::from(&interior[..])];
        b.call1("prims.pad", [Arg::Value(v)].into_iter().chain(lists).chain([value.into()]).collect())
    };
    Ok(Parts { re: pad(z.re, 1.0)?, im: pad(z.im, 0.0)? })
}

/// The product along dimension `dim`, which goes: halves are multiplied with each other until one element is left.
fn product_along(b: &mut Builder<'_>, z: Parts, dim: usize) -> Result<Parts, OpError> {
    let mut z = z;
    let mut n = b.sizes(z.re)?[dim].clone();
    let mut steps = halvings(b, &n);
    if n.as_const().is_none_or(|n| n == 0) {
        // Without elements the product is 1.
        z = padded_with_ones(b, z, dim, &SymExpr::ZERO, &SymExpr::ONE)?;
        n = n + 1;
        steps += usize::from(n != SymExpr::ONE);
    }
    for _ in 0..steps {
        let half = (&n + 1).floor_div(&SymExpr::from_i64(2));
        let missing = &half * 2 - &n;
        if missing != SymExpr::ZERO {
            z = padded_with_ones(b, z, dim, &SymExpr::ZERO, &missing)?;
        }
        let first = both(b, z, |b, v| b.slice(v, dim, SymExpr::ZERO, half.clone(), 1))?;
        let second = both(b, z, |b, v| b.slice(v, dim, half.clone(), half.clone(), 1))?;
        z = product(b, first, second)?;
        n = half;
    }
    let mut sizes = b.sizes(z.re)?;
    sizes.remove(dim);
    both(b, z, |b, v| {
        let one = b.slice(v, dim, SymExpr::ZERO, SymExpr::ONE, 1)?;
        b.reshape(one, &sizes)
    })
}

/// The product over dimensions.
pub(super) fn prod(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    let z = call.parts("a")?;
    let sizes = b.sizes(z.re)?;
    let rank = sizes.len() as i64;
    let mut dims: Vec<usize> =
        call.ints("dims")?.into_iter().map(|d| (if d < 0 { d + rank } else { d }) as usize).collect();
    dims.retain(|&d| d < sizes.len());
    dims.sort_unstable();
    dims.dedup();
    if dims.is_empty() {
        return done(z);
    }
    let kept: Vec<usize> = (0..sizes.len()).filter(|d| !dims.contains(d)).collect();
    let order: Vec<usize> = kept.iter().chain(&dims).copied().collect();
    let mut flat: Shape = kept.iter().map(|&d| sizes[d].clone()).collect();
    flat.push(dims.iter().fold(SymExpr::ONE, |n, &d| n * &sizes[d]));
    let line = both(b, z, |b, v| {
        let moved = b.permute(v, &order)?;
        b.reshape(moved, &flat)
    })?;
    done(product_along(b, line, kept.len())?)
}

/// The running product along a dimension, in steps of doubled length (Hillis and Steele, 1986).
pub(super) fn cumprod(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    let mut z = call.parts("a")?;
    let sizes = b.sizes(z.re)?;
    if sizes.is_empty() || sizes.contains(&SymExpr::ZERO) {
        return done(z);
    }
    let dim = one_int(call, "dim")?;
    let dim = (if dim < 0 { dim + sizes.len() as i64 } else { dim }) as usize;
    for step in 0..halvings(b, &sizes[dim]) {
        let by = SymExpr::from_i64(1i64 << step);
        // Shifted to the back: padding with opposite signs cuts at the end what it adds at the front.
        let shifted = padded_with_ones(b, z, dim, &by, &(SymExpr::ZERO - &by))?;
        z = product(b, z, shifted)?;
    }
    done(z)
}

/// Four real products, from which both parts are made.
fn four(
    b: &mut Builder<'_>,
    x: Parts,
    y: Parts,
    f: &mut dyn FnMut(&mut Builder<'_>, ValueId, ValueId) -> Result<ValueId, OpError>,
) -> Result<Parts, OpError> {
    let (rr, ii) = (f(b, x.re, y.re)?, f(b, x.im, y.im)?);
    let (ri, ir) = (f(b, x.re, y.im)?, f(b, x.im, y.re)?);
    Ok(Parts { re: b.sub(rr, ii)?, im: b.add(ri, ir)? })
}

/// Four real matrix products. (Three would do, but they cancel.)
pub(super) fn matmul(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    let (x, y) = (call.parts("a")?, call.parts("b")?);
    done(four(b, x, y, &mut |b, x, y| b.call1("prims.matmul", vec![x.into(), y.into()]))?)
}

/// Four real convolutions.
pub(super) fn conv(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    let (x, w) = (call.parts("input")?, call.parts("weight")?);
    let rest: Vec<Arg> = ["stride", "padding", "dilation", "transposed", "output_padding", "groups"]
        .iter()
        .map(|name| call.real(name).cloned())
        .collect::<Result<_, _>>()?;
    done(four(b, x, w, &mut |b, x, w| {
        b.call1("prims.conv", [Arg::Value(x), w.into()].into_iter().chain(rest.iter().cloned()).collect())
    })?)
}

fn mode<'a>(call: &ComplexCall<'a>) -> Result<&'a str, OpError> {
    match call.real("mode")? {
        Arg::Str(mode) => Ok(mode),
        Arg::None => Ok("write"),
        _ => Err(call.bad_arg("mode", "must be text")),
    }
}

/// Scatters into a complex tensor.
pub(super) fn scatter(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    let (a, src) = (call.parts("a")?, call.parts("src")?);
    let index = call.real_value("index")?;
    let rank = b.rank(a.re)?;
    let dim = one_int(call, "dim")?;
    let dim = (if dim < 0 { dim + rank as i64 } else { dim }) as usize;
    // Of `src` only what the index covers is read.
    let sizes = b.sizes(index)?;
    let src =
        both(b, src, |b, v| (0..rank).try_fold(v, |v, d| b.slice(v, d, SymExpr::ZERO, sizes[d].clone(), 1)))?;
    done(scattered(b, call, mode(call)?, a, dim, index, src)?)
}

/// Scatters at places that several indices name: as a scatter along these dimensions made one.
pub(super) fn index_put(b: &mut Builder<'_>, call: &ComplexCall<'_>) -> SplitResult {
    let (a, values) = (call.parts("a")?, call.parts("values")?);
    let indices: Vec<ValueId> = match call.real("indices")? {
        Arg::List(items) => {
            items.iter().filter_map(|a| if let Arg::Value(v) = a { Some(*v) } else { None }).collect()
        }
        _ => return Err(call.bad_arg("indices", "must be a list of tensors")),
    };
    let start = one_int(call, "start")? as usize;
    let sizes = b.sizes(a.re)?;
    let (lead, rest) = (&sizes[..start], &sizes[start + indices.len()..]);
    let mut place = None;
    for (k, &index) in indices.iter().enumerate() {
        place = Some(match place {
            None => index,
            Some(place) => {
                let scaled = b.mul(place, sizes[start + k].clone())?;
                b.add(scaled, index)?
            }
        });
    }
    let Some(place) = place else { return Err(call.bad_arg("indices", "is empty")) };
    let count = b.meta(place)?.numel();
    let whole = numel(&sizes[start..start + indices.len()]);
    let with = |n: &SymExpr| -> Shape { lead.iter().chain([n]).chain(rest).cloned().collect() };
    let (a_flat, v_flat) = (with(&whole), with(&count));
    let line: Shape =
        (0..v_flat.len()).map(|d| if d == start { count.clone() } else { SymExpr::ONE }).collect();
    let place = b.reshape(place, &line)?;
    let place = b.expand(place, &v_flat)?;
    let flat_a = both(b, a, |b, v| b.reshape(v, &a_flat))?;
    let flat_values = both(b, values, |b, v| b.reshape(v, &v_flat))?;
    let out = scattered(b, call, mode(call)?, flat_a, start, place, flat_values)?;
    done(both(b, out, |b, v| b.reshape(v, &sizes))?)
}

/// `src` (of the sizes of `index`) combined into `a` along `dim`.
fn scattered(
    b: &mut Builder<'_>,
    call: &ComplexCall<'_>,
    mode: &str,
    a: Parts,
    dim: usize,
    index: ValueId,
    src: Parts,
) -> Result<Parts, OpError> {
    match mode {
        "add" => {
            let mut put = |to: ValueId, v: ValueId| {
                let args = vec![to.into(), (dim as i64).into(), index.into(), v.into(), "add".into()];
                b.call1("prims.scatter", args)
            };
            Ok(Parts { re: put(a.re, src.re)?, im: put(a.im, src.im)? })
        }
        "write" => written(b, a, dim, index, src),
        "prod" => multiplied(b, a, dim, index, src),
        other => Err(call.unsupported(format!("mode `{other}` on complex tensors: they have no order"))),
    }
}

/// Of several values for one place the last wins with both of its parts: the numbers of the values are scattered first.
fn written(b: &mut Builder<'_>, a: Parts, dim: usize, index: ValueId, src: Parts) -> Result<Parts, OpError> {
    let (sizes, from) = (b.sizes(a.re)?, b.sizes(index)?);
    let mut covered = from.clone();
    covered[dim] = sizes[dim].clone();
    let nobody = b.full(&covered, -1i64, DType::I64)?;
    let numbers = iota(b, from[dim].clone())?;
    let numbers = shape::along(b, numbers, dim, from.len())?;
    let numbers = b.expand(numbers, &from)?;
    let args = vec![nobody.into(), (dim as i64).into(), index.into(), numbers.into(), "amax".into()];
    let winner = b.call1("prims.scatter", args)?;
    let winner = padded(b, winner, &sizes, -1.0)?;
    let untouched = b.lt(winner, 0i64)?;
    if from[dim] == SymExpr::ZERO {
        return Ok(a);
    }
    both_of(b, a, src, |b, a, src| {
        let at = b.maximum(winner, 0i64)?;
        let src = padded_but(b, src, &sizes, dim)?;
        let value = b.call1("prims.gather", vec![src.into(), (dim as i64).into(), at.into()])?;
        b.select(untouched, a, value)
    })
}

/// Each place times the values that go there: a product over all values, those for other places being 1. The work is
/// that of a matrix of values and places.
fn multiplied(
    b: &mut Builder<'_>,
    a: Parts,
    dim: usize,
    index: ValueId,
    src: Parts,
) -> Result<Parts, OpError> {
    let sizes = b.sizes(a.re)?;
    let rank = sizes.len();
    // Places stand in `dim`, values behind it.
    let places = iota(b, sizes[dim].clone())?;
    let places = shape::along(b, places, dim, rank + 1)?;
    let at = b.unsqueeze(index, dim)?;
    let here = b.eq(at, places)?;
    let mut factor = |v: ValueId, other: f64| {
        let v = b.unsqueeze(v, dim)?;
        b.select(here, v, other)
    };
    let factors = Parts { re: factor(src.re, 1.0)?, im: factor(src.im, 0.0)? };
    let factors = product_along(b, factors, dim + 1)?;
    let factors = Parts { re: padded(b, factors.re, &sizes, 1.0)?, im: padded(b, factors.im, &sizes, 0.0)? };
    product(b, a, factors)
}

/// `f` of the real parts and of the imaginary parts.
fn both_of(
    b: &mut Builder<'_>,
    x: Parts,
    y: Parts,
    mut f: impl FnMut(&mut Builder<'_>, ValueId, ValueId) -> Result<ValueId, OpError>,
) -> Result<Parts, OpError> {
    Ok(Parts { re: f(b, x.re, y.re)?, im: f(b, x.im, y.im)? })
}

/// Filled up behind to the sizes.
fn padded(b: &mut Builder<'_>, v: ValueId, sizes: &[SymExpr], value: f64) -> Result<ValueId, OpError> {
    let own = b.sizes(v)?;
    if own[..] == *sizes {
        return Ok(v);
    }
    let dtype = b.dtype(v)?;
    let high: Vec<SymExpr> = sizes.iter().zip(&own).map(|(want, have)| want - have).collect();
    let (low, interior) = (vec![SymExpr::ZERO; sizes.len()], vec![0i64; sizes.len()]);
    let value = ir_core::Scalar::Float(value).to_class_of(dtype);
    b.call1("prims.pad", vec![v.into(), low[..].into(), high[..].into(), interior[..].into(), value.into()])
}

/// Filled up with zeros to the sizes in every dimension but `dim`.
fn padded_but(b: &mut Builder<'_>, v: ValueId, sizes: &[SymExpr], dim: usize) -> Result<ValueId, OpError> {
    let mut to = b.sizes(v)?;
    for (d, size) in sizes.iter().enumerate() {
        if d != dim {
            to[d] = size.clone();
        }
    }
    padded(b, v, &to, 0.0)
}

/// The one integer that an argument is.
fn one_int(call: &ComplexCall<'_>, name: &str) -> Result<i64, OpError> {
    match call.ints(name)?[..] {
        [one] => Ok(one),
        _ => Err(call.bad_arg(name, "must be one integer")),
    }
}
