//! Values that become 8-bit integers are clamped once, before they are rounded. A quantization rounds a multiple of its operand, adds
//! a zero point and clamps to the integers' range; behind a rectifier that is a second clamp, and backends that know the range of what
//! they convert need none of its special cases.
//!
//! All equations here are exact in floating point: rounding, and multiplication by a positive number, are monotone. With
//! `clamp(x) = min(max(x, l), h)` and whole `l`, `h` and `z`:
//!
//! - `clamp(round(x)) = round(clamp(x))`, `clamp(x + z) = clamp'(x) + z` of whole `x` with bounds less `z`,
//! - `clamp(x) · c = clamp'(x · c)` with bounds times `c`, rounded as the product is, and
//! - a clamp of a clamp is a clamp. `NaN` passes through all of them.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Scalar};
use kernel_ir::ScalarOp;
use prims::{Builder, OpError};

use super::matching::def;
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[before_rounding];

/// Applies the rule.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, RULES)
}

/// The least and the largest result of a clamp; infinite where there is no bound.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bounds {
    low: f64,
    high: f64,
}

impl Bounds {
    const NONE: Bounds = Bounds { low: f64::NEG_INFINITY, high: f64::INFINITY };

    fn of(self, x: f64) -> f64 {
        x.max(self.low).min(self.high)
    }
    /// The clamp to these bounds of a clamp to others.
    fn after(self, inner: Bounds) -> Bounds {
        Bounds { low: self.of(inner.low), high: self.of(inner.high) }
    }
    fn map(self, f: impl Fn(f64) -> f64) -> Bounds {
        let end = |x: f64| if x.is_finite() { f(x) } else { x };
        Bounds { low: end(self.low), high: end(self.high) }
    }
    fn all(self, holds: impl Fn(f64) -> bool) -> bool {
        [self.low, self.high].into_iter().all(|x| !x.is_finite() || holds(x))
    }
}

/// `op(v, n)` or `op(n, v)` of a value and a number that is not `NaN`.
fn with_number(graph: &Graph, v: ValueId, op: ScalarOp) -> Option<(ValueId, f64)> {
    let call = def(graph, v).filter(|c| c.op.scalar_op() == Some(op))?;
    let [x, y] = call.args else { return None };
    let number = |arg: &Arg| arg.as_scalar().map(Scalar::as_f64).filter(|n| !n.is_nan());
    match (x, y) {
        (Arg::Value(x), n) | (n, Arg::Value(x)) => Some((*x, number(n)?)),
        _ => None,
    }
}

/// What a value is a clamp of, and to which bounds.
fn clamped(graph: &Graph, mut v: ValueId) -> (ValueId, Bounds) {
    let mut bounds = Bounds::NONE;
    loop {
        let inner = match (with_number(graph, v, ScalarOp::Max), with_number(graph, v, ScalarOp::Min)) {
            (Some((x, low)), _) => (x, Bounds { low, ..Bounds::NONE }),
            (_, Some((x, high))) => (x, Bounds { high, ..Bounds::NONE }),
            _ => return (v, bounds),
        };
        v = inner.0;
        bounds = bounds.after(inner.1);
    }
}

/// Whole numbers of which sums are exact.
fn is_small(x: f64) -> bool {
    x.fract() == 0.0 && x.abs() <= 65536.0
}

/// `convert(clamp(round(clamp(x) · c) + z)) = convert(round(clamp(x · c)) + z)`, where any of `c`, `z` and the inner clamp may be missing.
fn before_rounding(b: &mut Builder<'_>, site: &Site<'_>) -> Result<Option<ValueId>, OpError> {
    let c = &site.call;
    if c.op.target != "prims.convert" || !matches!(site.meta.dtype, DType::U8 | DType::I8) {
        return Ok(None);
    }
    let graph = b.graph();
    let Some(Arg::Value(converted)) = c.args.first() else { return Ok(None) };
    let (sum, outer) = clamped(graph, *converted);
    if graph.meta(sum).is_none_or(|m| m.dtype != DType::F32) || outer == Bounds::NONE || !outer.all(is_small)
    {
        return Ok(None);
    }
    let (rounded, zero) = with_number(graph, sum, ScalarOp::Add).unwrap_or((sum, 0.0));
    let Some(call) = def(graph, rounded).filter(|c| c.op.scalar_op() == Some(ScalarOp::Round)) else {
        return Ok(None);
    };
    let (Some(Arg::Value(exact)), true) = (call.args.first(), is_small(zero)) else { return Ok(None) };
    let factor = with_number(graph, *exact, ScalarOp::Mul)
        .filter(|(_, c)| (*c as f32) > 0.0 && (*c as f32).is_finite());
    let (x, bounds) = match factor {
        None => clamped(graph, *exact),
        Some((product, c)) => {
            let (x, bounds) = clamped(graph, product);
            // As the product is rounded.
            (x, bounds.map(|bound| f64::from(bound as f32 * c as f32)))
        }
    };
    // Bounds that are too large for the product say nothing of it.
    if bounds.low.is_infinite() && bounds.low > 0.0 || bounds.high.is_infinite() && bounds.high < 0.0 {
        return Ok(None);
    }
    let bounds = outer.map(|bound| bound - zero).after(bounds);
    let mut y = match factor {
        None => x,
        Some((_, c)) => b.mul(x, c)?,
    };
    for (op, bound) in [(ScalarOp::Max, bounds.low), (ScalarOp::Min, bounds.high)] {
        if bound.is_finite() {
            y = b.scalar_op(op, &[y.into(), Scalar::Float(bound).into()])?;
        }
    }
    y = b.scalar_op(ScalarOp::Round, &[y.into()])?;
    if zero != 0.0 {
        y = b.scalar_op(ScalarOp::Add, &[y.into(), Scalar::Float(zero).into()])?;
    }
    b.cast(y, site.meta.dtype).map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes, evaluate, graph};
    use super::*;

    fn quantized(steps: &str, last: &str) -> String {
        format!("%x: f32[64] = input \"x\"\n\n{steps}\n%q: u8[64] = prims.convert(%{last}, u8)\nreturn %q")
    }

    const RECTIFIED: &str = "%r: f32[64] = prims.max(%x, 0.0)
%s: f32[64] = prims.min(%r, 6.0)
%m: f32[64] = prims.mul(%s, 42.5)
%o: f32[64] = prims.round(%m)
%a: f32[64] = prims.max(%o, 0.0)
%b: f32[64] = prims.min(%a, 255.0)";
    const MOVED: &str = "%m: f32[64] = prims.mul(%x, 3.3)
%o: f32[64] = prims.round(%m)
%z: f32[64] = prims.add(%o, 117.0)
%a: f32[64] = prims.max(%z, 0.0)
%b: f32[64] = prims.min(%a, 255.0)";

    #[test]
    fn clamps_are_one_before_the_rounding_and_results_are_the_same() {
        let pass = PassCx::inference();
        let whole = "prims.mul prims.max prims.min prims.round prims.convert";
        changes(run, &pass, &quantized(RECTIFIED, "b"), whole);
        let moved = "prims.mul prims.max prims.min prims.round prims.add prims.convert";
        changes(run, &pass, &quantized(MOVED, "b"), moved);
        for steps in [RECTIFIED, MOVED] {
            let before = graph(&quantized(steps, "b"));
            let mut after = graph(&quantized(steps, "b"));
            run(&mut after, &pass);
            let [before, after] = [&before, &after].map(|g| evaluate(g)[0].iter_f64().collect::<Vec<_>>());
            assert_eq!(before, after);
        }
    }

    #[test]
    fn what_is_not_monotone_or_not_whole_stays() {
        let pass = PassCx::inference();
        for (from, to) in [("255.0", "254.5"), ("prims.round(%m)", "prims.sin(%m)")] {
            assert_unchanged(run, &pass, &quantized(&RECTIFIED.replace(from, to), "b"));
        }
        // Nothing is clamped behind the rounding.
        assert_unchanged(run, &pass, &quantized(RECTIFIED, "o"));
        // Multiplication by a negative number turns the order: only the outer clamp moves.
        let twice = "prims.max prims.min prims.mul prims.max prims.min prims.round prims.convert";
        changes(run, &pass, &quantized(&RECTIFIED.replace("42.5", "-42.5"), "b"), twice);
    }

    #[test]
    fn a_clamp_of_a_clamp_is_a_clamp() {
        let outer = Bounds { low: 0.0, high: 255.0 };
        assert_eq!(outer.after(Bounds { low: -3.0, high: 300.0 }), outer);
        assert_eq!(outer.after(Bounds { low: 5.0, high: 9.0 }), Bounds { low: 5.0, high: 9.0 });
        // All results are the bound itself.
        assert_eq!(outer.after(Bounds { low: 300.0, ..Bounds::NONE }), Bounds { low: 255.0, high: 255.0 });
    }
}
