//! Subgraphs whose values share memory: concatenations of what operators compute, of inputs and of one value twice; blocks in
//! which every layer reads all results before it; products whose addend dies in them.
//!
//! Not here: what the memory plan makes of them, which the tests of `kernel-ir` and `inductor` look at.

use fx_ir::Arg;
use ir_core::{Shape, SymExpr};
use prims::OpError;

use super::generate::{Gen, Known};
use super::ops::{int, ints, refused};

/// Most parts of a concatenation.
const PARTS: usize = 5;

/// A value of a concatenation along `d` that may have another size there than `x`.
fn part(g: &mut Gen, x: Known, d: usize) -> Result<Known, OpError> {
    let (sizes, dtype) = (g.sizes(x.id), g.dtype(x.id));
    let rank = sizes.len();
    match g.rng.below(8) {
        // As it is: an input, a weight, a value that something else reads, or the same again.
        0 => Ok(x),
        1 => {
            let mut own = sizes;
            own[d] = g.dim();
            Ok(g.input(dtype, &own, ""))
        }
        2 => {
            let fits = |g: &Gen, k: &Known| {
                let m = g.meta(k.id);
                let agree = |e: usize| e == d || m.sizes[e] == sizes[e];
                m.dtype == dtype && m.rank() == rank && k.size <= 30.0 && (0..rank).all(agree)
            };
            Ok(g.find(fits).unwrap_or(x))
        }
        3 => {
            let end = sizes[d].as_const().filter(|n| *n > 1).ok_or_else(refused)?;
            let from = g.rng.below(end as usize);
            let args = vec![x.id.into(), int(d), int(from), Arg::int(end), Arg::int(1)];
            g.call("aten.slice.Tensor", args, x.exact, x.size)
        }
        4 => {
            let dims = ints(&[g.rng.below(rank)]);
            let top = g.call("aten.amax.default", vec![x.id.into(), dims, true.into()], x.exact, x.size)?;
            let args = vec![x.id.into(), top.id.into()];
            g.call("aten.sub.Tensor", args, false, 2.0 * x.size)
        }
        5 => product(g, x),
        6 => {
            let args = vec![x.id.into(), int(rank - 1)];
            g.call("aten.cumsum.default", args, false, 20.0 * x.size)
        }
        _ => {
            let name = *g.rng.pick(&["tanh", "relu", "neg", "sigmoid"]);
            g.call(&format!("aten.{name}.default"), vec![x.id.into()], false, x.size.max(1.0))
        }
    }
}

/// A product of the last dimension with a weight, of about the same magnitude; its last dimension is as before.
fn product(g: &mut Gen, x: Known) -> Result<Known, OpError> {
    let (sizes, dtype) = (g.sizes(x.id), g.dtype(x.id));
    let width = sizes[sizes.len() - 1].clone();
    let k = g.number(&width).max(1) as f64;
    let w = g.input(dtype, &[width.clone(), width], "");
    let y = g.call("aten.linear.default", vec![x.id.into(), w.id.into()], false, 1.5 * k * x.size)?;
    g.call("aten.mul.Scalar", vec![y.id.into(), (1.0 / k).into()], false, 1.5 * x.size)
}

/// Several values one after the other, along any dimension, counted from either end.
pub fn concatenation(g: &mut Gen) -> Result<Known, OpError> {
    let x = g.float(1)?;
    let rank = g.rank(x.id);
    let d = g.rng.below(rank);
    let mut parts: Vec<Known> = Vec::new();
    for _ in 0..2 + g.rng.below(PARTS - 1) {
        // What does not fit is left out.
        parts.extend(part(g, x, d));
    }
    if parts.len() < 2 {
        return Err(refused());
    }
    let size = parts.iter().fold(0.0, |most, k| k.size.max(most));
    let exact = parts.iter().all(|k| k.exact);
    let dim = if g.rng.one_in(3) { Arg::int(d as i64 - rank as i64) } else { int(d) };
    let all = Arg::values(parts.iter().map(|k| k.id).collect::<Vec<_>>());
    g.call("aten.cat.default", vec![all, dim], exact, size)
}

/// Layers that read everything before them.
pub fn dense_block(g: &mut Gen) -> Result<Known, OpError> {
    let x = g.float(2)?;
    let rank = g.rank(x.id);
    let d = g.rng.below(rank);
    let mut parts = vec![x];
    let mut all = x;
    for _ in 0..2 + g.rng.below(3) {
        let name = *g.rng.pick(&["tanh", "relu", "sin"]);
        let y = g.call(&format!("aten.{name}.default"), vec![all.id.into()], false, all.size.max(1.0))?;
        let y = if g.rng.one_in(2) { product(g, y)? } else { y };
        parts.push(y);
        let list = Arg::values(parts.iter().map(|k| k.id).collect::<Vec<_>>());
        all = g.call("aten.cat.default", vec![list, int(d)], false, y.size.max(all.size))?;
        if g.numel(&g.sizes(all.id)) > 1500 {
            break;
        }
    }
    Ok(all)
}

/// `x + W f(V x)`, where `x` may die; with one row or many, and sums of more terms than one pass of a product has.
pub fn residual(g: &mut Gen) -> Result<Known, OpError> {
    let x = g.float(1)?;
    let (mut sizes, dtype) = (g.sizes(x.id), g.dtype(x.id));
    let mut x = x;
    if g.rng.one_in(3) {
        // One row.
        let width = sizes[sizes.len() - 1].clone();
        let leading: Vec<usize> = (0..sizes.len() - 1).collect();
        if !leading.is_empty() {
            x =
                g.call("aten.amax.default", vec![x.id.into(), ints(&leading), true.into()], x.exact, x.size)?;
        }
        sizes = [SymExpr::ONE, width].into_iter().collect::<Shape>();
        x = g.call("aten.reshape.default", vec![x.id.into(), sizes[..].into()], x.exact, x.size)?;
    }
    let width = sizes[sizes.len() - 1].clone();
    let hidden = if g.rng.one_in(3) { SymExpr::from_i64(700) } else { g.dim() };
    let (k, n) = (g.number(&width).max(1) as f64, g.number(&hidden).max(1) as f64);
    // Two products, so that the addend has memory.
    let own = product(g, x)?;
    let (up, down) =
        (g.input(dtype, &[hidden.clone(), width.clone()], ""), g.input(dtype, &[width.clone(), hidden], ""));
    let y = g.call("aten.linear.default", vec![own.id.into(), up.id.into()], false, 1.5 * k * own.size)?;
    let y = g.call("aten.mul.Scalar", vec![y.id.into(), (1.0 / k).into()], false, 1.5 * own.size)?;
    let y = g.call("aten.tanh.default", vec![y.id.into()], false, 1.0)?;
    let z = g.call("aten.linear.default", vec![y.id.into(), down.id.into()], false, 1.5 * n)?;
    let r = g.call("aten.add.Tensor", vec![z.id.into(), own.id.into()], false, 1.5 * n + own.size)?;
    let r = if g.rng.one_in(2) { g.call("aten.relu.default", vec![r.id.into()], false, r.size)? } else { r };
    g.call("aten.mul.Scalar", vec![r.id.into(), (1.0 / n).into()], false, r.size / n)
}

/// Products of one value, of widths that are whole vectors, one behind the other, and what reads all of them.
pub fn wide_parts(g: &mut Gen) -> Result<Known, OpError> {
    let width = *g.rng.pick(&[8i64, 16, 32]);
    let mut sizes: Shape = [g.dim()].into_iter().collect();
    if g.rng.one_in(3) {
        sizes.push((*g.rng.pick(&[1i64, 2, 3])).into());
    }
    sizes.push(width.into());
    if g.numel(&sizes) > 1500 {
        return Err(refused());
    }
    let float = g.float;
    let x = g.input(float, &sizes, "");
    let mut parts: Vec<Known> = Vec::new();
    let count = 2 + g.rng.below(3);
    while parts.len() < count {
        let next = match g.rng.below(8) {
            0 => x,
            1 => *parts.last().unwrap_or(&x),
            _ => wide_part(g, parts.last().copied().filter(|p| g.sizes(p.id) == sizes).unwrap_or(x), width)?,
        };
        parts.push(next);
    }
    let last = sizes.len() - 1;
    // Along another dimension where all are alike.
    let alike = parts.iter().all(|p| g.sizes(p.id) == sizes);
    let d = if alike && g.rng.one_in(3) { g.rng.below(last) } else { last };
    let all = Arg::values(parts.iter().map(|k| k.id).collect::<Vec<_>>());
    let y = g.call("aten.cat.default", vec![all, int(d)], false, 10.0)?;
    match g.rng.below(3) {
        0 => product(g, y),
        1 => g.call("aten.tanh.default", vec![y.id.into()], false, 1.0),
        _ => Ok(y),
    }
}

/// A product of `x`, as wide or of another whole number of vectors, as it is or with something behind it.
fn wide_part(g: &mut Gen, x: Known, width: i64) -> Result<Known, OpError> {
    let to = *g.rng.pick(&[width, width, 8, 24]);
    let w = g.input(g.dtype(x.id), &[to.into(), width.into()], "");
    let n = width as f64;
    let y = g.call("aten.linear.default", vec![x.id.into(), w.id.into()], false, 1.5 * n * x.size)?;
    let y = g.call("aten.mul.Scalar", vec![y.id.into(), (1.0 / n).into()], false, 1.5 * x.size)?;
    match g.rng.below(4) {
        0 => g.call("aten.relu.default", vec![y.id.into()], false, y.size),
        1 => g.call("aten.softmax.int", vec![y.id.into(), Arg::int(-1)], false, 1.0),
        _ => Ok(y),
    }
}
