//! Folds neighbours into convolutions: zero padding before them, and a factor per channel after them where weights are
//! frozen (batch normalisation in evaluation).

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{Scalar, Shape, SymExpr};
use kernel_ir::ScalarOp;
use prims::{Builder, Call, OpError};

use super::matching::{def, def_of, sizes, through};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[padding_into_conv, factor_into_weight, factor_over_sum];

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
}
