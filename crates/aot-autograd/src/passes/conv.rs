//! Folds neighbours into convolutions: zero padding before them, and a factor per channel after them where weights are
//! frozen (batch normalisation in evaluation). Convolutions whose windows do not overlap, which cut an image into patches,
//! become matrix products.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{Scalar, Shape, SymExpr};
use kernel_ir::ScalarOp;
use prims::{Builder, Call, OpError};

use super::matching::{def, def_of, sizes, through};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[padding_into_conv, factor_into_weight, factor_over_sum, patches_into_product];

/// Applies every rule.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, RULES)
}

type Given = Result<Option<ValueId>, OpError>;

/// The arguments of a call with some replaced by name.
fn with(call: &Call<'_>, new: Vec<(&str, Arg)>) -> Vec<Arg> {
    let mut args = call.args.to_vec();
    for (name, arg) in new {
        if let Some(i) = call.op.schema.arg_index(name) {
            args[i] = arg;
        }
    }
    args
}

/// `conv(pad(x, l, h, value = 0), w, padding = p) = conv(x, w, padding = p + (l, h))`, of the spatial dimensions.
fn padding_into_conv(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let c = &site.call;
    if c.op.target != "prims.conv" || c.bool("transposed")? {
        return Ok(None);
    }
    let Some(pad) = def_of(b.graph(), c.value("input")?, "prims.pad") else { return Ok(None) };
    let numbers = |name: &str| -> Option<Vec<i64>> { pad.ints(name).ok() };
    let (Some(low), Some(high), Some(interior)) = (numbers("low"), numbers("high"), numbers("interior"))
    else {
        return Ok(None);
    };
    // Minus zero differs from zero only where nothing is added to it.
    let zero = pad.scalar("value")?.as_f64() == 0.0 && !matches!(pad.scalar("value")?, Scalar::Complex(..));
    let grows = low.iter().chain(&high).all(|&n| n >= 0) && interior.iter().all(|&n| n == 0);
    if !zero || !grows || low[..2] != [0, 0] || high[..2] != [0, 0] {
        return Ok(None);
    }
    let mut padding = c.ints("padding")?;
    for (d, pair) in padding.chunks_mut(2).enumerate() {
        let [before, after] = pair else { return Ok(None) };
        *before += low[d + 2];
        *after += high[d + 2];
    }
    let args = with(c, vec![("input", pad.args[0].clone()), ("padding", padding.as_slice().into())]);
    b.call1("prims.conv", args).map(Some)
}

/// The two tensor operands of a product, each way round.
fn orders(site: &Site<'_>, op: ScalarOp) -> Vec<(ValueId, ValueId)> {
    match site.call.args {
        [Arg::Value(x), Arg::Value(y)] if site.call.op.scalar_op() == Some(op) => vec![(*x, *y), (*y, *x)],
        _ => Vec::new(),
    }
}

/// The vector `s` of a value `expand(reshape(s, [1, C, 1, …]))`, where that is constant.
fn per_channel(b: &Builder<'_>, site: &Site<'_>, v: ValueId) -> Option<ValueId> {
    let graph = b.graph();
    let kept = through(graph, v, "prims.expand").filter(|_| site.is_constant(v))?;
    let shape = sizes(graph, kept)?;
    let full = sizes(graph, v)?;
    let only_channels = shape.len() == full.len()
        && shape.len() >= 3
        && shape.iter().enumerate().all(|(d, s)| if d == 1 { *s == full[1] } else { *s == SymExpr::ONE });
    only_channels.then_some(kept)
}

/// The convolution of these arguments with its weight times `s`, which has one number per channel of the result.
fn scaled_conv(
    b: &mut Builder<'_>,
    mut args: Vec<Arg>,
    w: ValueId,
    s: ValueId,
    transposed: bool,
) -> Result<ValueId, OpError> {
    let w_sizes = b.sizes(w)?;
    let channels = b.sizes(s)?[1].clone();
    let mut shape = Shape::from_elem(SymExpr::ONE, w_sizes.len());
    shape[usize::from(transposed)] = channels;
    let s = b.reshape(s, &shape)?;
    let s = b.expand(s, &w_sizes)?;
    // The weight is the second argument of the prim.
    args[1] = b.mul(w, s)?.into();
    b.call1("prims.conv", args)
}

/// `conv(x, w) * s = conv(x, w * s)` where `w` and `s`, one number per channel, are constant.
fn factor_into_weight(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    for (product, factor) in orders(site, ScalarOp::Mul) {
        let Some(s) = per_channel(b, site, factor) else { continue };
        let Some(call) = def_of(b.graph(), product, "prims.conv") else { continue };
        let (w, transposed) = (call.value("weight")?, call.bool("transposed")?);
        if !site.reads_alone(product) || !site.is_constant(w) || (transposed && call.int("groups")? != 1) {
            continue;
        }
        let args = call.args.to_vec();
        return scaled_conv(b, args, w, s, transposed).map(Some);
    }
    Ok(None)
}

/// `(conv(x, w) + c) * s = conv(x, w) * s + c * s` where `c` and `s`, one number per channel, are constant.
fn factor_over_sum(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    for (sum, factor) in orders(site, ScalarOp::Mul) {
        let Some(s) = per_channel(b, site, factor) else { continue };
        let Some(call) = def(b.graph(), sum).filter(|c| c.op.scalar_op() == Some(ScalarOp::Add)) else {
            continue;
        };
        let [Arg::Value(x), Arg::Value(y)] = call.args else { continue };
        for (product, bias) in [(*x, *y), (*y, *x)] {
            let Some(c) = per_channel(b, site, bias) else { continue };
            let Some(conv) = def_of(b.graph(), product, "prims.conv") else { continue };
            let frozen = site.is_constant(conv.value("weight")?);
            let grouped_transposed = conv.bool("transposed")? && conv.int("groups")? != 1;
            if !frozen || grouped_transposed || !site.reads_alone(sum) || !site.reads_alone(product) {
                continue;
            }
            let (w, args) = (conv.value("weight")?, conv.args.to_vec());
            let transposed = conv.bool("transposed")?;
            let product = scaled_conv(b, args, w, s, transposed)?;
            let bias = b.mul(c, s)?;
            return b.add(product, bias).map(Some);
        }
    }
    Ok(None)
}

/// Fewest points of a window of which the product is worth the copy of the input that reorders its patches.
const PATCH: i64 = 16;

/// The number of windows along each spatial dimension, and their extents, of a convolution whose windows cover its input
/// without overlap.
fn patches(b: &Builder<'_>, c: &Call<'_>) -> Result<Option<Vec<(i64, i64)>>, OpError> {
    let all = |name: &str, n: i64| c.ints(name).map(|v| v.iter().all(|x| *x == n));
    if c.bool("transposed")? || c.int("groups")? != 1 || !all("padding", 0)? || !all("dilation", 1)? {
        return Ok(None);
    }
    let (x, w) = (b.sizes(c.value("input")?)?, b.sizes(c.value("weight")?)?);
    let dims = c.ints("stride")?.into_iter().zip(x[2..].iter().zip(&w[2..]));
    let of_dim = |(stride, (size, window)): (i64, (&SymExpr, &SymExpr))| {
        let size = size.as_const().filter(|n| *n > 0 && n % stride == 0)?;
        (window.as_const() == Some(stride)).then_some((size / stride, stride))
    };
    let found: Option<Vec<(i64, i64)>> = dims.map(of_dim).collect();
    Ok(found.filter(|dims| dims.iter().map(|(_, window)| window).product::<i64>() >= PATCH))
}

/// `conv(x, w)` with windows side by side is the product of the patches `[n·…, c·window]` and the weight `[c·window, o]`.
fn patches_into_product(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let c = &site.call;
    if c.op.target != "prims.conv" || !site.meta.dtype.is_float() {
        return Ok(None);
    }
    let Some(dims) = patches(b, c)? else { return Ok(None) };
    let (x, w) = (c.value("input")?, c.value("weight")?);
    let (x_sizes, w_sizes) = (b.sizes(x)?, b.sizes(w)?);
    let size = SymExpr::from_i64;
    // [n, c, count, window, …] to [n, count…, c, window…].
    let parts: Shape =
        x_sizes[..2].iter().cloned().chain(dims.iter().flat_map(|&(n, k)| [size(n), size(k)])).collect();
    let counts = (0..dims.len()).map(|d| 2 + 2 * d);
    let order: Vec<usize> =
        [0].into_iter().chain(counts.clone()).chain([1]).chain(counts.map(|d| d + 1)).collect();
    let rows = dims.iter().fold(x_sizes[0].clone(), |product, &(n, _)| product * size(n));
    let depth = w_sizes[1..].iter().fold(SymExpr::ONE, |product, n| product * n);
    let x = b.reshape(x, &parts)?;
    let x = b.permute(x, &order)?;
    let x = b.reshape(x, &Shape::from_iter([rows, depth.clone()]))?;
    let w = b.reshape(w, &Shape::from_iter([w_sizes[0].clone(), depth]))?;
    let w = b.permute(w, &[1, 0])?;
    let y = b.call1("prims.matmul", vec![x.into(), w.into()])?;
    // [n, count…, o] to [n, o, count…].
    let whole: Shape = [x_sizes[0].clone()]
        .into_iter()
        .chain(dims.iter().map(|&(n, _)| size(n)))
        .chain([w_sizes[0].clone()])
        .collect();
    let order: Vec<usize> = [0, whole.len() - 1].into_iter().chain(1..whole.len() - 1).collect();
    let y = b.reshape(y, &whole)?;
    b.permute(y, &order).map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    const NORM: &str = "%x: f32[1, 2, 5, 5] = input \"x\"
%w: f32[3, 2, 3, 3] = parameter \"w\"
%c: f32[1, 3, 1, 1] = parameter \"c\"
%s: f32[1, 3, 1, 1] = buffer \"s\"

%y: f32[1, 3, 3, 3] = prims.conv(%x, %w, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
%ce: f32[1, 3, 3, 3] = prims.expand(%c, [1, 3, 3, 3])
%se: f32[1, 3, 3, 3] = prims.expand(%s, [1, 3, 3, 3])";

    #[test]
    fn zeros_before_a_convolution() {
        let body = "%x: f32[1, 2, 5, 5] = input \"x\"\n%w: f32[3, 2, 3, 3] = parameter \"w\"\n\n%p: f32[1, 2, 7, 8] = prims.pad(%x, [0, 0, 1, 2], [0, 0, 1, 1], [0, 0, 0, 0], 0.0)\n%y: f32[1, 3, 7, 6] = prims.conv(%p, %w, [1, 1], [1, 1, 0, 0], [1, 1], false, [0, 0], 1)\nreturn %y";
        changes(run, &PassCx::default(), body, "prims.conv");
        assert_unchanged(run, &PassCx::default(), &body.replace(", 0.0)", ", 1.0)"));
    }

    #[test]
    fn factors_go_into_frozen_weights() {
        let body = format!("{NORM}\n%z: f32[1, 3, 3, 3] = prims.mul(%y, %se)\nreturn %z");
        changes(run, &PassCx::inference(), &body, "prims.reshape prims.expand prims.mul prims.conv");
        assert_unchanged(run, &PassCx::training(), &body);
        assert_unchanged(run, &PassCx::inference(), &format!("{body}\nreturn %y"));
    }

    #[test]
    fn a_bias_is_scaled_too() {
        let body = format!(
            "{NORM}\n%b: f32[1, 3, 3, 3] = prims.add(%y, %ce)\n%z: f32[1, 3, 3, 3] = prims.mul(%se, %b)\nreturn %z"
        );
        changes(
            run,
            &PassCx::inference(),
            &body,
            "prims.reshape prims.expand prims.mul prims.conv prims.mul prims.expand prims.add",
        );
    }

    #[test]
    fn patches_are_a_product() {
        let conv = "%y: f32[2, 5, 3, 2] = prims.conv(%x, %w, [4, 4], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)";
        let body = format!(
            "%x: f32[2, 3, 12, 8] = input \"x\"\n%w: f32[5, 3, 4, 4] = parameter \"w\"\n\n{conv}\nreturn %y"
        );
        let calls = "prims.reshape prims.permute prims.reshape prims.reshape prims.permute prims.matmul prims.reshape prims.permute";
        changes(run, &PassCx::training(), &body, calls);
        // Windows that leave a rest of the input.
        let rest = body.replace("12, 8", "13, 8");
        assert_unchanged(run, &PassCx::training(), &rest);
        // Windows that overlap.
        let overlapping =
            body.replace("[4, 4], [0", "[4, 2], [0").replace("3, 2] = prims.conv", "3, 3] = prims.conv");
        assert_unchanged(run, &PassCx::training(), &overlapping);
    }
}
