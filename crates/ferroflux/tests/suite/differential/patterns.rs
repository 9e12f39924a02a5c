//! Larger shapes of subgraphs as networks have them, and operators that make values of nothing.

use fx_ir::Arg;
use ir_core::{DType, Shape, SymExpr};
use prims::OpError;

use super::generate::{Gen, Known};
use super::ops::{image, int, ints, partner, refused};

/// Channels weighted by their means: a squeeze and excitation block.
pub fn squeeze(g: &mut Gen) -> Result<Known, OpError> {
    let x = image(g);
    if g.allow_nan {
        return Err(refused());
    }
    let (sizes, dtype) = (g.sizes(x.id), g.dtype(x.id));
    let c = sizes[1].clone();
    let mean = g.call("aten.mean.dim", vec![x.id.into(), ints(&[2, 3]), true.into()], false, x.size)?;
    let w = g.input(dtype, &[c.clone(), c.clone(), 1.into(), 1.into()], "");
    let k = c.as_const().unwrap_or(1) as f64;
    let s = g.call("aten.conv2d.default", vec![mean.id.into(), w.id.into()], false, x.size * k * 1.5)?;
    let gate = *g.rng.pick(&["sigmoid", "hardsigmoid"]);
    let s = g.call(&format!("aten.{gate}.default"), vec![s.id.into()], false, 1.0)?;
    g.call("aten.mul.Tensor", vec![x.id.into(), s.id.into()], false, x.size)
}

/// Halves swapped, one negated, weighted by cosine and sine: rotary positions.
pub fn rotary(g: &mut Gen) -> Result<Known, OpError> {
    let x = g.float(2)?;
    let sizes = g.sizes(x.id);
    let rank = sizes.len();
    if rank < 2 {
        return Err(refused());
    }
    let width = sizes[rank - 1].as_const().filter(|n| *n > 0 && n % 2 == 0).ok_or_else(refused)?;
    let dtype = g.dtype(x.id);
    let half =
        |from: i64, to: i64| vec![x.id.into(), int(rank - 1), Arg::int(from), Arg::int(to), Arg::int(1)];
    let a = g.call("aten.slice.Tensor", half(0, width / 2), x.exact, x.size)?;
    let b = g.call("aten.slice.Tensor", half(width / 2, width), x.exact, x.size)?;
    let b = g.call("aten.neg.default", vec![b.id.into()], x.exact, x.size)?;
    let turned = vec![Arg::values([b.id, a.id]), Arg::int(-1)];
    let turned = g.call("aten.cat.default", turned, x.exact, x.size)?;
    let angle = g.input(dtype, &[sizes[rank - 2].clone(), sizes[rank - 1].clone()], "");
    let cos = g.call("aten.cos.default", vec![angle.id.into()], false, 1.0)?;
    let sin = g.call("aten.sin.default", vec![angle.id.into()], false, 1.0)?;
    let p = g.call("aten.mul.Tensor", vec![x.id.into(), cos.id.into()], false, x.size)?;
    let q = g.call("aten.mul.Tensor", vec![turned.id.into(), sin.id.into()], false, x.size)?;
    g.call("aten.add.Tensor", vec![p.id.into(), q.id.into()], false, 2.0 * x.size)
}

/// A softmax of scores of which some are minus infinity, times values.
pub fn masked_softmax(g: &mut Gen) -> Result<Known, OpError> {
    let x = g.float(2)?;
    let sizes = g.sizes(x.id);
    if sizes.len() < 2 || g.allow_nan {
        return Err(refused());
    }
    let square: Shape = sizes[sizes.len() - 2..].iter().cloned().collect();
    let ones = g.call(
        "aten.full.default",
        vec![square[..].into(), true.into(), DType::Bool.into(), Arg::None, Arg::None, Arg::None],
        true,
        1.0,
    )?;
    let low = g.call("aten.tril.default", vec![ones.id.into(), Arg::int(0)], true, 1.0)?;
    let high = g.call("aten.logical_not.default", vec![low.id.into()], true, 1.0)?;
    let minus = Arg::from(f64::NEG_INFINITY);
    let s = g.builder("masked").call1("aten.masked_fill.Scalar", vec![x.id.into(), high.id.into(), minus])?;
    let p = g.call("aten.softmax.int", vec![s.into(), Arg::int(-1)], false, 1.0)?;
    let n = g.dim();
    let dtype = g.dtype(x.id);
    let v = g.input(dtype, &[square[1].clone(), n], "");
    g.call("aten.matmul.default", vec![p.id.into(), v.id.into()], false, 1.5)
}

/// Cross entropy as it decomposes: logarithms of a softmax, looked up at a class.
pub fn class_loss(g: &mut Gen) -> Result<Known, OpError> {
    let x = g.float(2)?;
    let sizes = g.sizes(x.id);
    if sizes.len() != 2 || g.dtype(x.id).size() == 2 {
        return Err(refused());
    }
    let classes = sizes[1].as_const().filter(|n| *n > 0).ok_or_else(refused)?;
    let target = g.input(DType::I64, &[sizes[0].clone()], &format!("_lt{classes}"));
    let reduction = g.rng.below(3);
    let args = vec![x.id.into(), target.id.into(), Arg::None, int(reduction)];
    g.call("aten.cross_entropy_loss.default", args, false, 100.0)
}

/// Values of nothing: counting, a number everywhere.
pub fn creation(g: &mut Gen) -> Result<Known, OpError> {
    let n = g.dim();
    let float = g.float;
    let options = |d: DType| vec![d.into(), Arg::None, Arg::None, Arg::None];
    match g.rng.below(3) {
        0 => {
            let mut args: Vec<Arg> = vec![n.into()];
            args.extend(options(DType::I64));
            g.call("aten.arange.default", args, true, 33.0)
        }
        1 => {
            let mut args: Vec<Arg> = vec![n.into()];
            args.extend(options(float));
            let a = g.call("aten.arange.default", args, true, 33.0)?;
            g.call("aten.mul.Scalar", vec![a.id.into(), 0.125.into()], true, 4.0)
        }
        _ => {
            let mut args: Vec<Arg> = vec![[n, g.dim()][..].into(), 0.5.into()];
            args.extend(options(float));
            g.call("aten.full.default", args, true, 0.5)
        }
    }
}

/// Triangles, windows as a view, repetition.
pub fn rearranged(g: &mut Gen) -> Result<Known, OpError> {
    let x = g.float(1)?;
    let sizes = g.sizes(x.id);
    let rank = sizes.len();
    let d = g.rng.below(rank);
    match g.rng.below(5) {
        0 if rank > 1 => {
            let at = g.rng.below(3) as i64 - 1;
            let name = *g.rng.pick(&["tril", "triu"]);
            g.call(&format!("aten.{name}.default"), vec![x.id.into(), Arg::int(at)], x.exact, x.size)
        }
        1 if rank < 5 && sizes[d].as_const().is_some_and(|n| n > 2) => {
            let args = vec![x.id.into(), int(d), Arg::int(3), Arg::int(1 + g.rng.below(2) as i64)];
            g.call("aten.unfold.default", args, x.exact, x.size)
        }
        2 => {
            let times: Vec<usize> = (0..rank).map(|_| 1 + g.rng.below(2)).collect();
            g.call("aten.repeat.default", vec![x.id.into(), ints(&times)], x.exact, x.size)
        }
        3 => {
            let outs =
                g.builder("chunk").call("aten.chunk.default", vec![x.id.into(), Arg::int(2), int(d)])?;
            let parts: Vec<Known> = outs.iter().map(|v| g.learn(*v, x.exact, x.size)).collect();
            let last = *parts.last().ok_or_else(refused)?;
            if parts.len() < 2 || g.sizes(parts[0].id) != g.sizes(last.id) {
                return Ok(last);
            }
            let args = vec![parts[0].id.into(), last.id.into()];
            g.call("aten.mul.Tensor", args, false, x.size * x.size)
        }
        _ => {
            let one = [SymExpr::ONE];
            let w = g.input(g.dtype(x.id), &one, "");
            g.call("aten.mul.Tensor", vec![x.id.into(), w.id.into()], false, x.size * 1.5)
        }
    }
}

/// Other convolutions, and larger images.
pub fn image_ops(g: &mut Gen) -> Result<Known, OpError> {
    if g.allow_nan {
        return Err(refused());
    }
    let x = image(g);
    let (sizes, dtype) = (g.sizes(x.id), g.dtype(x.id));
    let c = sizes[1].as_const().filter(|c| *c <= 8).ok_or_else(refused)?;
    let pair = |n: i64| Arg::List(vec![Arg::int(n), Arg::int(n)]);
    match g.rng.below(3) {
        0 => {
            let w = g.input(dtype, &[c.into(), 3.into(), 2.into(), 2.into()], "");
            let args = vec![x.id.into(), w.id.into(), Arg::None, pair(2), pair(0), pair(0)];
            g.call("aten.conv_transpose2d.input", args, false, x.size * c as f64 * 2.0)
        }
        1 => {
            let factor = Arg::List(vec![2.0.into(), 2.0.into()]);
            g.call("aten.upsample_nearest2d.vec", vec![x.id.into(), Arg::None, factor], x.exact, x.size)
        }
        _ => {
            let flat = [sizes[0].clone(), sizes[1].clone(), &sizes[2] * &sizes[3]];
            let v = g.call("aten.view.default", vec![x.id.into(), flat[..].into()], x.exact, x.size)?;
            let w = g.input(dtype, &[4.into(), c.into(), 3.into()], "");
            let args = vec![v.id.into(), w.id.into(), Arg::None, ints(&[1]), ints(&[1])];
            g.call("aten.conv1d.default", args, false, x.size * c as f64 * 4.5)
        }
    }
}

/// A feed-forward block around which the input goes: normalised, up, activated, gated, down, added.
pub fn feed_forward(g: &mut Gen) -> Result<Known, OpError> {
    let x = g.float(2)?;
    let (sizes, dtype) = (g.sizes(x.id), g.dtype(x.id));
    let width = sizes[sizes.len() - 1].clone();
    let k = g.number(&width).max(1) as f64;
    let hidden = g.dim();
    let w = g.input(dtype, std::slice::from_ref(&width), "");
    let y = vec![x.id.into(), [width.clone()][..].into(), w.id.into(), 0.01.into()];
    let y = g.call("aten.rms_norm.default", y, false, 6.0)?;
    let (up, gate) = (
        g.input(dtype, &[hidden.clone(), width.clone()], ""),
        g.input(dtype, &[hidden.clone(), width.clone()], ""),
    );
    let a = g.call("aten.linear.default", vec![y.id.into(), up.id.into()], false, 9.0 * k)?;
    let a = g.call("aten.mul.Scalar", vec![a.id.into(), (1.0 / (3.0 * k)).into()], false, 3.0)?;
    let b = g.call("aten.linear.default", vec![y.id.into(), gate.id.into()], false, 9.0 * k)?;
    let b = g.call("aten.mul.Scalar", vec![b.id.into(), (1.0 / (3.0 * k)).into()], false, 3.0)?;
    let b = g.call("aten.silu.default", vec![b.id.into()], false, 3.0)?;
    let c = g.call("aten.mul.Tensor", vec![a.id.into(), b.id.into()], false, 9.0)?;
    let n = g.number(&hidden).max(1) as f64;
    let down = g.input(dtype, &[width, hidden], "");
    let z = g.call("aten.linear.default", vec![c.id.into(), down.id.into()], false, 14.0 * n)?;
    let z = g.call("aten.mul.Scalar", vec![z.id.into(), (1.0 / n).into()], false, 14.0)?;
    g.call("aten.add.Tensor", vec![z.id.into(), x.id.into()], false, 14.0 + x.size)
}

/// Statistics of rows used by rows of another size or order.
pub fn crossed_statistics(g: &mut Gen) -> Result<Known, OpError> {
    let x = g.float(2)?;
    let rank = g.rank(x.id);
    if rank < 2 {
        return Err(refused());
    }
    let (d, e) = (g.rng.below(rank), g.rng.below(rank));
    let top = g.call("aten.amax.default", vec![x.id.into(), ints(&[d]), true.into()], x.exact, x.size)?;
    let mean = g.call("aten.mean.dim", vec![x.id.into(), ints(&[e]), true.into()], false, x.size)?;
    let y = g.call("aten.sub.Tensor", vec![x.id.into(), top.id.into()], false, 2.0 * x.size)?;
    let z = g.call("aten.sub.Tensor", vec![y.id.into(), mean.id.into()], false, 3.0 * x.size)?;
    let r = partner(g, z);
    let z = g.call("aten.add.Tensor", vec![z.id.into(), r.id.into()], false, 3.0 * x.size + r.size)?;
    g.call("aten.sum.dim_IntList", vec![z.id.into(), ints(&[d]), true.into()], false, 1e3)
}

/// Attention over the heads of a value, with projections before it or without.
pub fn attention(g: &mut Gen) -> Result<Known, OpError> {
    let found = g.find(|g, k| g.dtype(k.id).is_float() && g.rank(k.id) == 3 && k.size <= 30.0);
    let x = found.ok_or_else(refused)?;
    let (sizes, dtype) = (g.sizes(x.id), g.dtype(x.id));
    let width = sizes[2].as_const().filter(|n| *n > 0).ok_or_else(refused)?;
    let heads = (1..=4).rev().find(|h| width % h == 0).unwrap_or(1);
    let split: Shape =
        [sizes[0].clone(), sizes[1].clone(), heads.into(), (width / heads).into()].into_iter().collect();
    let mut parts: Vec<Arg> = Vec::new();
    for _ in 0..3 {
        let mut y = x;
        if g.rng.one_in(2) {
            let w = g.input(dtype, &[width.into(), width.into()], "");
            y =
                g.call("aten.linear.default", vec![x.id.into(), w.id.into()], false, x.size * width as f64)?;
            y = g.call("aten.mul.Scalar", vec![y.id.into(), (1.0 / y.size).into()], false, 1.0)?;
        }
        let v = g.call("aten.view.default", vec![y.id.into(), split[..].into()], y.exact, y.size)?;
        let v = g.call("aten.transpose.int", vec![v.id.into(), Arg::int(1), Arg::int(2)], y.exact, y.size)?;
        parts.push(v.id.into());
    }
    let causal = g.rng.one_in(3);
    let mask = match g.rng.below(3) {
        0 if !causal => {
            let t = sizes[1].clone();
            let own: Shape = [1.into(), 1.into(), t.clone(), t].into_iter().collect();
            g.input(dtype, &own, "").id.into()
        }
        _ => Arg::None,
    };
    parts.extend([mask, 0.0.into(), causal.into()]);
    let y = g.call("aten.scaled_dot_product_attention.default", parts, false, x.size)?;
    let y = g.call("aten.transpose.int", vec![y.id.into(), Arg::int(1), Arg::int(2)], false, y.size)?;
    g.call("aten.reshape.default", vec![y.id.into(), sizes[..].into()], false, y.size)
}

/// Values and positions of a sort.
pub fn sort(g: &mut Gen) -> Result<Known, OpError> {
    let k = g.find(|g, k| k.exact && g.rank(k.id) > 0 && g.dtype(k.id).is_float()).ok_or_else(refused)?;
    let d = g.rng.below(g.rank(k.id));
    let descending: Arg = g.rng.one_in(2).into();
    let outs = g.builder("sort").call("aten.sort.default", vec![k.id.into(), int(d), descending])?;
    g.learn(outs[1], true, 100.0);
    Ok(g.learn(outs[0], true, k.size))
}
