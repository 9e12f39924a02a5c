//! The operators that random graphs are made of: one function per family, each takes what fits and appends its calls.

use fx_ir::Arg;
use ir_core::{DType, Shape, SymExpr};
use prims::OpError;

use super::generate::{Gen, Known};
use super::{memory, patterns};

type Step = fn(&mut Gen) -> Result<Known, OpError>;

/// Families by weight.
const STEPS: &[(usize, Step)] = &[
    (8, unary),
    (8, binary),
    (3, exact_unary),
    (3, compare_and_select),
    (2, integers),
    (2, converted),
    (7, view),
    (5, shape_view),
    (6, reduction),
    (2, positions),
    (2, scan),
    (3, softmax),
    (4, norm),
    (3, join),
    (2, pad),
    (4, lookup),
    (3, scatter),
    (5, matmul),
    (3, conv_block),
    (2, pool),
    (2, patterns::attention),
    (1, patterns::sort),
    (2, patterns::squeeze),
    (2, patterns::rotary),
    (2, patterns::masked_softmax),
    (1, patterns::class_loss),
    (2, patterns::creation),
    (4, patterns::rearranged),
    (2, patterns::image_ops),
    (2, patterns::feed_forward),
    (3, patterns::crossed_statistics),
];

/// Families whose values share memory: parts of concatenations, and results over what dies in them.
const SHARING: &[(usize, Step)] = &[
    (4, unary),
    (4, binary),
    (2, view),
    (2, shape_view),
    (2, reduction),
    (1, softmax),
    (2, join),
    (2, matmul),
    (1, conv_block),
    (1, scatter),
    (6, memory::concatenation),
    (8, memory::wide_parts),
    (3, memory::dense_block),
    (5, memory::residual),
];

/// One step of a graph's growth.
pub fn step(g: &mut Gen) -> Result<Known, OpError> {
    let steps = if g.sharing { SHARING } else { STEPS };
    let total: usize = steps.iter().map(|(w, _)| w).sum();
    let mut at = g.rng.below(total);
    for (weight, step) in steps {
        if at < *weight {
            return step(g);
        }
        at -= weight;
    }
    unary(g)
}

pub fn refused() -> OpError {
    OpError::Unknown("nothing fits".into())
}

pub fn int(n: usize) -> Arg {
    Arg::int(n as i64)
}

pub fn ints(list: &[usize]) -> Arg {
    Arg::List(list.iter().map(|d| Arg::int(*d as i64)).collect())
}

fn unary(g: &mut Gen) -> Result<Known, OpError> {
    let k = g.float(0)?;
    let bounded = ["tanh", "sigmoid", "sin", "cos", "erf"];
    let growing = ["gelu", "silu", "softplus", "elu", "hardswish", "mish", "leaky_relu", "log_sigmoid"];
    match g.rng.below(6) {
        0 | 1 => {
            let name = *g.rng.pick(&bounded);
            g.call(&format!("aten.{name}.default"), vec![k.id.into()], false, 1.0)
        }
        2 => {
            let name = *g.rng.pick(&growing);
            g.call(&format!("aten.{name}.default"), vec![k.id.into()], false, k.size + 1.0)
        }
        3 if k.size <= 4.0 => g.call("aten.exp.default", vec![k.id.into()], false, k.size.exp()),
        4 => {
            let a = g.call("aten.abs.default", vec![k.id.into()], k.exact, k.size)?;
            let b = g.call("aten.add.Scalar", vec![a.id.into(), 0.5.into()], false, k.size + 0.5)?;
            let name = *g.rng.pick(&["log", "sqrt", "rsqrt", "reciprocal", "log1p"]);
            g.call(&format!("aten.{name}.default"), vec![b.id.into()], false, k.size + 2.0)
        }
        _ => {
            let c = g.rng.below(7) as f64 / 2.0 - 1.5;
            g.call("aten.mul.Scalar", vec![k.id.into(), c.into()], false, k.size * 2.0)
        }
    }
}

/// A second operand that broadcasts with the first: a known value, or an input with some sizes 1 or left out.
pub fn partner(g: &mut Gen, a: Known) -> Known {
    let (sizes, dtype) = (g.sizes(a.id), g.dtype(a.id));
    let fits = |g: &Gen, k: &Known| {
        let other = g.meta(k.id);
        other.dtype == dtype
            && k.size <= 30.0
            && other.sizes.iter().rev().zip(sizes.iter().rev()).all(|(x, y)| {
                x == y || *x == SymExpr::ONE || (*y == SymExpr::ONE && x.as_const().is_some_and(|n| n < 5))
            })
    };
    if !g.rng.one_in(3)
        && let Some(k) = g.find(fits)
    {
        return k;
    }
    let drop = if sizes.is_empty() { 0 } else { g.rng.below(sizes.len()) };
    let mut own: Shape = sizes[if g.rng.one_in(2) { drop } else { 0 }..].iter().cloned().collect();
    for s in &mut own {
        if g.rng.one_in(4) {
            *s = SymExpr::ONE;
        } else if s.as_const().is_none() && g.rng.one_in(6) {
            // Another symbol: the builder must note that the two are equal.
            *s = g.dim();
        }
    }
    let suffix = if dtype.is_int() { "_lt9" } else { "" };
    g.input(dtype, &own, suffix)
}

fn binary(g: &mut Gen) -> Result<Known, OpError> {
    let a = g.float(0)?;
    let b = partner(g, a);
    let (x, y) = if g.rng.one_in(2) { (a, b) } else { (b, a) };
    let exact = a.exact && b.exact;
    let args = vec![x.id.into(), y.id.into()];
    match g.rng.below(8) {
        0 | 1 => g.call("aten.add.Tensor", args, false, a.size + b.size),
        2 => g.call("aten.sub.Tensor", args, false, a.size + b.size),
        3 | 4 => g.call("aten.mul.Tensor", args, false, a.size * b.size),
        5 => g.call("aten.maximum.default", args, exact, a.size.max(b.size)),
        6 => g.call("aten.minimum.default", args, exact, a.size.max(b.size)),
        _ => {
            let d = g.call("aten.abs.default", vec![y.id.into()], false, y.size)?;
            let d = g.call("aten.add.Scalar", vec![d.id.into(), 0.5.into()], false, y.size + 0.5)?;
            g.call("aten.div.Tensor", vec![x.id.into(), d.id.into()], false, 2.0 * x.size)
        }
    }
}

/// A float value that is the same in every precision.
fn exact(g: &mut Gen) -> Result<Known, OpError> {
    g.find(|g, k| k.exact && g.dtype(k.id).is_float()).ok_or_else(refused)
}

fn exact_unary(g: &mut Gen) -> Result<Known, OpError> {
    let k = exact(g)?;
    let name = *g.rng.pick(&["neg", "abs", "relu", "floor", "ceil", "round", "trunc", "sign"]);
    g.call(&format!("aten.{name}.default"), vec![k.id.into()], true, k.size + 1.0)
}

fn compare_and_select(g: &mut Gen) -> Result<Known, OpError> {
    let a = exact(g)?;
    let b = partner(g, a);
    if !b.exact {
        return Err(refused());
    }
    let name = *g.rng.pick(&["lt", "le", "gt", "ge", "eq", "ne"]);
    let mask = g.call(&format!("aten.{name}.Tensor"), vec![a.id.into(), b.id.into()], true, 1.0)?;
    if g.rng.one_in(4) {
        return Ok(mask);
    }
    let x = g.float(0)?;
    let y = partner(g, x);
    match g.rng.below(3) {
        0 => {
            g.call("aten.masked_fill.Scalar", vec![x.id.into(), mask.id.into(), 0.25.into()], x.exact, x.size)
        }
        _ => {
            let args = vec![mask.id.into(), x.id.into(), y.id.into()];
            g.call("aten.where.self", args, x.exact && y.exact, x.size.max(y.size))
        }
    }
}

fn integers(g: &mut Gen) -> Result<Known, OpError> {
    let found = g.find(|g, k| g.dtype(k.id) == DType::I64 && k.size < 1e6);
    let a = match found {
        Some(k) => k,
        None => {
            let sizes: Shape = (0..1 + g.rng.below(3)).map(|_| g.dim()).collect();
            g.input(DType::I64, &sizes, "_lt9")
        }
    };
    match g.rng.below(6) {
        0 => g.call("aten.remainder.Scalar", vec![a.id.into(), Arg::int(3)], true, 3.0),
        1 => g.call("aten.floor_divide.Scalar", vec![a.id.into(), Arg::int(2)], true, a.size),
        2 => g.call("aten.eq.Scalar", vec![a.id.into(), Arg::int(1)], true, 1.0),
        3 => g.call("aten.bitwise_and.Scalar", vec![a.id.into(), Arg::int(5)], true, 5.0),
        n => {
            let b = partner(g, a);
            let name = if n == 4 { "add" } else { "mul" };
            g.call(
                &format!("aten.{name}.Tensor"),
                vec![a.id.into(), b.id.into()],
                true,
                a.size * b.size + a.size,
            )
        }
    }
}

fn converted(g: &mut Gen) -> Result<Known, OpError> {
    let k = g.find(|_, k| k.size < 1000.0).ok_or_else(refused)?;
    let from = g.dtype(k.id);
    let to = *g.rng.pick(&[g.float, g.float, DType::F32, DType::I64, DType::Bool]);
    // An integer of NaN is anything.
    if from.is_float() && !to.is_float() && (!k.exact || g.allow_nan) {
        return Err(refused());
    }
    let exact = k.exact && (!from.is_float() || from == to || to == DType::I64 || to == DType::Bool);
    let args = vec![k.id.into(), to.into()];
    g.call("prims.convert", args, exact, k.size)
}

fn any(g: &mut Gen, rank: usize) -> Result<Known, OpError> {
    g.find(|g, k| g.rank(k.id) >= rank).ok_or_else(refused)
}

/// Views that keep the rank.
fn view(g: &mut Gen) -> Result<Known, OpError> {
    let k = any(g, 1)?;
    let rank = g.rank(k.id);
    let d = g.rng.below(rank);
    let size = g.sizes(k.id)[d].clone();
    let n = size.as_const().unwrap_or(1);
    match g.rng.below(6) {
        0 | 1 => {
            let order = g.rng.permutation(rank);
            g.call("aten.permute.default", vec![k.id.into(), ints(&order)], k.exact, k.size)
        }
        2 => g.call("aten.flip.default", vec![k.id.into(), ints(&[d])], k.exact, k.size),
        3 if n > 1 => {
            let step = 1 + g.rng.below(2) as i64;
            let start = g.rng.below(n as usize) as i64;
            let end = start + 1 + g.rng.below((n - start) as usize) as i64;
            let args = vec![k.id.into(), int(d), Arg::int(start), Arg::int(end), Arg::int(step)];
            g.call("aten.slice.Tensor", args, k.exact, k.size)
        }
        4 => g.call("aten.roll.default", vec![k.id.into(), ints(&[1]), ints(&[d])], k.exact, k.size),
        _ => {
            let end = &size - 1;
            if g.number(&end) < 1 || size.as_const().is_none() {
                return Err(refused());
            }
            let args = vec![k.id.into(), int(d), Arg::int(0), end.into(), Arg::int(1)];
            g.call("aten.slice.Tensor", args, k.exact, k.size)
        }
    }
}

/// Views that change the rank: reshape, unsqueeze, expand, select.
fn shape_view(g: &mut Gen) -> Result<Known, OpError> {
    let k = any(g, 0)?;
    let sizes = g.sizes(k.id);
    let rank = sizes.len();
    match g.rng.below(5) {
        0 if rank > 1 => {
            // Two neighbours become one.
            let d = g.rng.below(rank - 1);
            let mut new = sizes.clone();
            new[d] = &sizes[d] * &sizes[d + 1];
            new.remove(d + 1);
            g.call("aten.view.default", vec![k.id.into(), new[..].into()], k.exact, k.size)
        }
        1 if rank > 0 && rank < 5 => {
            let d = g.rng.below(rank);
            let n = sizes[d].as_const().ok_or_else(refused)?;
            let factor = (2..=4).find(|f| n % f == 0 && n > 0).ok_or_else(refused)?;
            let mut new = sizes.clone();
            let (outer, inner) = if g.rng.one_in(2) { (n / factor, factor) } else { (factor, n / factor) };
            new[d] = outer.into();
            new.insert(d + 1, inner.into());
            g.call("aten.view.default", vec![k.id.into(), new[..].into()], k.exact, k.size)
        }
        2 if rank < 5 => {
            let d = g.rng.below(rank + 1);
            let v = g.call("aten.unsqueeze.default", vec![k.id.into(), int(d)], k.exact, k.size)?;
            if g.rng.one_in(2) {
                return Ok(v);
            }
            let mut new = sizes.clone();
            new.insert(d, g.dim());
            g.call("aten.expand.default", vec![v.id.into(), new[..].into()], k.exact, k.size)
        }
        3 if rank > 0 => {
            let d = g.rng.below(rank);
            let n = sizes[d].as_const().filter(|n| *n > 0).ok_or_else(refused)?;
            let at = g.rng.below(n as usize);
            g.call("aten.select.int", vec![k.id.into(), int(d), int(at)], k.exact, k.size)
        }
        _ => {
            let flat = ir_core::numel(&sizes);
            g.call("aten.view.default", vec![k.id.into(), [flat][..].into()], k.exact, k.size)
        }
    }
}

fn some_dims(g: &mut Gen, rank: usize) -> Vec<usize> {
    let count = 1 + if g.rng.one_in(2) { 0 } else { g.rng.below(rank) };
    let mut dims = g.rng.permutation(rank);
    dims.truncate(count);
    dims
}

fn reduction(g: &mut Gen) -> Result<Known, OpError> {
    let k = if g.rng.one_in(5) { any(g, 1)? } else { g.float(1)? };
    let (rank, dtype) = (g.rank(k.id), g.dtype(k.id));
    if rank == 0 {
        return Err(refused());
    }
    let dims = some_dims(g, rank);
    let sizes = g.sizes(k.id);
    let n = dims.iter().fold(1.0, |n, d| n * g.number(&sizes[*d]) as f64);
    let keep: Arg = g.rng.one_in(2).into();
    if dtype == DType::Bool {
        let name = *g.rng.pick(&["any", "all"]);
        return g.call(&format!("aten.{name}.dims"), vec![k.id.into(), ints(&dims), keep], true, 1.0);
    }
    let float = dtype.is_float();
    match g.rng.below(7) {
        0 | 1 => {
            g.call("aten.sum.dim_IntList", vec![k.id.into(), ints(&dims), keep], !float, k.size * n * 2.0)
        }
        2 | 3 if float => g.call("aten.mean.dim", vec![k.id.into(), ints(&dims), keep], false, k.size),
        4 if float => {
            let args = vec![k.id.into(), ints(&dims), Arg::int(0), keep];
            g.call("aten.var.correction", args, false, k.size * k.size)
        }
        5 => g.call("aten.amin.default", vec![k.id.into(), ints(&dims), keep], k.exact, k.size),
        _ => g.call("aten.amax.default", vec![k.id.into(), ints(&dims), keep], k.exact, k.size),
    }
}

fn positions(g: &mut Gen) -> Result<Known, OpError> {
    let k = g.find(|g, k| k.exact && g.rank(k.id) > 0 && g.dtype(k.id) != DType::Bool).ok_or_else(refused)?;
    let rank = g.rank(k.id);
    let dim = if g.rng.one_in(4) { Arg::None } else { int(g.rng.below(rank)) };
    let keep: Arg = g.rng.one_in(2).into();
    let name = *g.rng.pick(&["argmax", "argmin"]);
    g.call(&format!("aten.{name}.default"), vec![k.id.into(), dim, keep], true, 100.0)
}

fn scan(g: &mut Gen) -> Result<Known, OpError> {
    let k = g.float(1)?;
    let rank = g.rank(k.id);
    let d = g.rng.below(rank);
    let n = g.number(&g.sizes(k.id)[d].clone()) as f64;
    g.call("aten.cumsum.default", vec![k.id.into(), int(d)], false, k.size * n)
}

fn softmax(g: &mut Gen) -> Result<Known, OpError> {
    let k = g.float(1)?;
    let d = g.rng.below(g.rank(k.id));
    match g.rng.below(4) {
        0 => g.call("aten.log_softmax.int", vec![k.id.into(), int(d)], false, 2.0 * k.size + 4.0),
        1 => g.call("aten.logsumexp.default", vec![k.id.into(), ints(&[d])], false, k.size + 4.0),
        _ => g.call("aten.softmax.int", vec![k.id.into(), int(d)], false, 1.0),
    }
}

fn norm(g: &mut Gen) -> Result<Known, OpError> {
    let mut k = g.float(2)?;
    if g.rng.one_in(2) {
        let b = partner(g, k);
        k = g.call("aten.add.Tensor", vec![k.id.into(), b.id.into()], false, k.size + b.size)?;
    }
    let (sizes, dtype) = (g.sizes(k.id), g.dtype(k.id));
    if sizes.is_empty() {
        return Err(refused());
    }
    let last = [sizes[sizes.len() - 1].clone()];
    let w = g.input(dtype, &last, "");
    match g.rng.below(4) {
        0 | 1 => {
            let b = g.input(dtype, &last, "");
            let args = vec![k.id.into(), last[..].into(), w.id.into(), b.id.into(), 0.01.into()];
            g.call("aten.layer_norm.default", args, false, 6.0)
        }
        2 => {
            let args = vec![k.id.into(), last[..].into(), w.id.into(), 0.01.into()];
            g.call("aten.rms_norm.default", args, false, 6.0)
        }
        _ => {
            let channels = sizes.get(1).and_then(SymExpr::as_const).filter(|c| *c > 0).ok_or_else(refused)?;
            let groups = if channels % 2 == 0 { 2 } else { 1 };
            let args = vec![k.id.into(), Arg::int(groups), Arg::None, Arg::None, 0.01.into()];
            g.call("aten.group_norm.default", args, false, 6.0)
        }
    }
}

fn join(g: &mut Gen) -> Result<Known, OpError> {
    let a = any(g, 1)?;
    let (rank, dtype, sizes) = (g.rank(a.id), g.dtype(a.id), g.sizes(a.id));
    let d = g.rng.below(rank);
    let fits = |g: &Gen, k: &Known| {
        let m = g.meta(k.id);
        m.dtype == dtype && m.rank() == rank && (0..rank).all(|e| e == d || m.sizes[e] == sizes[e])
    };
    let b = g.find(fits).unwrap_or(a);
    let mut parts = vec![a.id, b.id];
    if g.rng.one_in(3) {
        parts.push(a.id);
    }
    let exact = a.exact && b.exact;
    let same = g.sizes(b.id) == sizes;
    let name = if same && g.rng.one_in(4) { "stack" } else { "cat" };
    g.call(&format!("aten.{name}.default"), vec![Arg::values(parts), int(d)], exact, a.size.max(b.size))
}

fn pad(g: &mut Gen) -> Result<Known, OpError> {
    let k = g.float(1)?;
    let dims = 1 + g.rng.below(g.rank(k.id).min(2));
    let amounts: Vec<i64> = (0..2 * dims).map(|_| g.rng.below(3) as i64).collect();
    let args = vec![k.id.into(), amounts[..].into(), 0.5.into()];
    g.call("aten.constant_pad_nd.default", args, k.exact, k.size)
}

fn lookup(g: &mut Gen) -> Result<Known, OpError> {
    let result = looked_up(g)?;
    Ok(g.looked_up(result))
}

fn looked_up(g: &mut Gen) -> Result<Known, OpError> {
    let k = g.float(1)?;
    let sizes = g.sizes(k.id);
    let d = g.rng.below(sizes.len());
    let bound = sizes[d].as_const().filter(|n| *n > 0).ok_or_else(refused)?;
    match g.rng.below(4) {
        0 => {
            let n = g.dim();
            let at = g.index(&[n], bound);
            g.call("aten.index_select.default", vec![k.id.into(), int(d), at.id.into()], k.exact, k.size)
        }
        1 => {
            let mut own = sizes.clone();
            own[d] = g.dim();
            let at = g.index(&own, bound);
            g.call("aten.gather.default", vec![k.id.into(), int(d), at.id.into()], k.exact, k.size)
        }
        2 if sizes.len() == 2 && d == 0 => {
            let own: Shape = (0..1 + g.rng.below(2)).map(|_| g.dim()).collect();
            let at = g.index(&own, bound);
            g.call("aten.embedding.default", vec![k.id.into(), at.id.into()], k.exact, k.size)
        }
        _ => {
            let n = g.dim();
            let at = g.index(&[n], bound);
            let mut list = vec![Arg::None; d];
            list.push(at.id.into());
            g.call("aten.index.Tensor", vec![k.id.into(), Arg::List(list)], k.exact, k.size)
        }
    }
}

fn scatter(g: &mut Gen) -> Result<Known, OpError> {
    let result = scattered(g)?;
    Ok(g.looked_up(result))
}

fn scattered(g: &mut Gen) -> Result<Known, OpError> {
    let k = g.float(1)?;
    let (sizes, dtype) = (g.sizes(k.id), g.dtype(k.id));
    let d = g.rng.below(sizes.len());
    let bound = sizes[d].as_const().filter(|n| *n > 0).ok_or_else(refused)?;
    let n = g.dim();
    let count = g.number(&n) as f64;
    if g.rng.one_in(2) {
        let mut own = sizes.clone();
        own[d] = n;
        let (at, src) = (g.index(&own, bound), g.input(dtype, &own, ""));
        let args = vec![k.id.into(), int(d), at.id.into(), src.id.into()];
        return g.call("aten.scatter_add.default", args, false, k.size + 1.5 * count);
    }
    let mut own = sizes.clone();
    own[d] = n.clone();
    let (at, src) = (g.index(&[n], bound), g.input(dtype, &own, ""));
    let args = vec![k.id.into(), int(d), at.id.into(), src.id.into()];
    g.call("aten.index_add.default", args, false, k.size + 1.5 * count)
}

fn matmul(g: &mut Gen) -> Result<Known, OpError> {
    let a = g.float(1)?;
    let (sizes, dtype) = (g.sizes(a.id), g.dtype(a.id));
    let k = sizes[sizes.len() - 1].clone();
    let n = g.dim();
    let size = a.size * 1.5 * g.number(&k).max(1) as f64;
    let mut y = match g.rng.below(4) {
        0 | 1 => {
            let w = g.input(dtype, &[n.clone(), k], "");
            let bias = if g.rng.one_in(2) { Arg::None } else { g.input(dtype, &[n], "").id.into() };
            g.call("aten.linear.default", vec![a.id.into(), w.id.into(), bias], false, size)?
        }
        2 => {
            let w = g.input(dtype, &[k, n], "");
            g.call("aten.matmul.default", vec![a.id.into(), w.id.into()], false, size)?
        }
        _ => {
            let b = g.float(2)?;
            if g.rank(b.id) < 2 || g.dtype(b.id) != dtype {
                return Err(refused());
            }
            let t =
                g.call("aten.transpose.int", vec![b.id.into(), Arg::int(-1), Arg::int(-2)], false, b.size)?;
            let b = if g.rng.one_in(2) { b } else { t };
            g.call("aten.matmul.default", vec![a.id.into(), b.id.into()], false, size * b.size)?
        }
    };
    if y.size > 30.0 {
        y = g.call("aten.mul.Scalar", vec![y.id.into(), (1.0 / y.size).into()], false, 1.0)?;
    }
    if g.rng.one_in(2) {
        y = g.call("aten.gelu.default", vec![y.id.into()], false, y.size)?;
    }
    if g.rng.one_in(2) {
        let r = partner(g, y);
        y = g.call("aten.add.Tensor", vec![y.id.into(), r.id.into()], false, y.size + r.size)?;
    }
    Ok(y)
}

/// An image: a known value of rank 4 with known channels, or an input.
pub fn image(g: &mut Gen) -> Known {
    let fits = |g: &Gen, k: &Known| {
        let m = g.meta(k.id);
        m.dtype.is_float()
            && m.rank() == 4
            && k.size <= 30.0
            && m.sizes[1..].iter().all(|s| s.as_const().is_some_and(|n| n > 0))
    };
    if let Some(k) = g.find(fits) {
        return k;
    }
    let batch = g.dim();
    let channels = *g.rng.pick(&[1, 2, 3, 4, 8]);
    let side = *g.rng.pick(&[4, 5, 7, 8]);
    let (float, wide) = (g.float, side + g.rng.below(2) as i64);
    g.input(float, &[batch, channels.into(), side.into(), wide.into()], "")
}

fn conv_block(g: &mut Gen) -> Result<Known, OpError> {
    // What a NaN does to its neighbours depends on how a convolution skips padding and splits groups.
    if g.allow_nan {
        return Err(refused());
    }
    let x = image(g);
    let (sizes, dtype) = (g.sizes(x.id), g.dtype(x.id));
    let c = sizes[1].as_const().ok_or_else(refused)?;
    if c > 16 {
        return Err(refused());
    }
    let groups = match g.rng.below(4) {
        0 => c,
        1 if c % 2 == 0 => 2,
        _ => 1,
    };
    let out = if groups == 1 { *g.rng.pick(&[1, 3, 4, 8, 16]) } else { groups * (1 + g.rng.below(2) as i64) };
    let window = *g.rng.pick(&[1, 1, 2, 3, 3]);
    let (stride, padding) = (1 + g.rng.below(2) as i64, g.rng.below(2) as i64);
    let dilation = 1 + i64::from(g.rng.one_in(5));
    let w = g.input(dtype, &[out.into(), (c / groups).into(), window.into(), window.into()], "");
    let bias = if g.rng.one_in(2) { Arg::None } else { g.input(dtype, &[out.into()], "").id.into() };
    let pair = |n: i64| Arg::List(vec![Arg::int(n), Arg::int(n)]);
    let args =
        vec![x.id.into(), w.id.into(), bias, pair(stride), pair(padding), pair(dilation), Arg::int(groups)];
    let size = x.size * 1.5 * ((c / groups) * window * window) as f64;
    let mut y = g.call("aten.conv2d.default", args, false, size)?;
    if y.size > 30.0 {
        y = g.call("aten.mul.Scalar", vec![y.id.into(), (1.0 / y.size).into()], false, 1.0)?;
    }
    if g.rng.one_in(2) {
        let stats: Vec<Known> = (0..3).map(|_| g.input(dtype, &[out.into()], "")).collect();
        let var = g.input(dtype, &[out.into()], "");
        let var = g.call("aten.abs.default", vec![var.id.into()], false, 1.5)?;
        let var = g.call("aten.add.Scalar", vec![var.id.into(), 0.5.into()], false, 2.0)?;
        let mut args: Vec<Arg> = vec![y.id.into()];
        args.extend(stats.iter().map(|s| Arg::from(s.id)));
        args.extend([var.id.into(), false.into(), 0.1.into(), 1e-5.into(), false.into()]);
        y = g.call("aten.batch_norm.default", args, false, (y.size + 1.5) * 3.0)?;
    }
    if g.rng.one_in(2) {
        y = g.call("aten.relu.default", vec![y.id.into()], false, y.size)?;
    }
    if g.rng.one_in(3) {
        let r = partner(g, y);
        y = g.call("aten.add.Tensor", vec![y.id.into(), r.id.into()], false, y.size + r.size)?;
    }
    Ok(y)
}

fn pool(g: &mut Gen) -> Result<Known, OpError> {
    let x = image(g);
    let pair = |n: i64| Arg::List(vec![Arg::int(n), Arg::int(n)]);
    let (window, stride) = (2 + g.rng.below(2) as i64, 1 + g.rng.below(2) as i64);
    let padding = g.rng.below(2) as i64;
    let args = vec![x.id.into(), pair(window), pair(stride), pair(padding)];
    match g.rng.below(3) {
        0 => g.call("aten.max_pool2d.default", args, x.exact, x.size),
        1 => g.call("aten.avg_pool2d.default", args, false, x.size),
        _ => g.call("aten.adaptive_avg_pool2d.default", vec![x.id.into(), pair(window)], false, x.size),
    }
}
