//! Algebra that changes rounding by more than a unit or two, or that holds only for finite numbers; it runs only on request.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::Class;
use kernel_ir::ScalarOp;
use prims::{Builder, OpError};

use super::matching::{def, def_of, through, uniform};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[circle, nothing_left, constants_meet, inverse, sum_of_sum];

/// Applies every rule, where results may round differently.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    if cx.fast_math { apply(graph, cx, RULES) } else { Stats::default() }
}

type Given = Result<Option<ValueId>, OpError>;

fn is_float(site: &Site<'_>) -> bool {
    site.meta.dtype.class() == Class::Float
}

fn scalar(site: &Site<'_>) -> Option<ScalarOp> {
    site.call.op.scalar_op().filter(|_| is_float(site))
}

/// The base of a square: `x * x` or `x` to the power of 2.
fn root(graph: &Graph, arg: &Arg, site: &Site<'_>) -> Option<ValueId> {
    let Arg::Value(v) = arg else { return None };
    let call = def(graph, *v)?;
    let (Arg::Value(x), y) = (call.args.first()?, call.args.get(1)?) else { return None };
    match call.op.scalar_op()? {
        ScalarOp::Mul => (*y == Arg::Value(*x)).then_some(*x),
        ScalarOp::Pow => uniform(graph, y, &site.cx.opaque).is_some_and(|n| n.as_f64() == 2.0).then_some(*x),
        _ => None,
    }
}

/// `sin² x + cos² x = 1`.
fn circle(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let (Some(ScalarOp::Add), [x, y]) = (scalar(site), site.call.args) else { return Ok(None) };
    let graph = b.graph();
    let (Some(x), Some(y)) = (root(graph, x, site), root(graph, y, site)) else { return Ok(None) };
    let angle = |sine: ValueId, cosine: ValueId| {
        let angle = through(graph, sine, "prims.sin")?;
        (through(graph, cosine, "prims.cos")? == angle).then_some(())
    };
    if angle(x, y).or_else(|| angle(y, x)).is_none() {
        return Ok(None);
    }
    b.full(&site.meta.sizes, 1.0, site.meta.dtype).map(Some)
}

/// `x - x = 0`, `x * 0 = 0`.
fn nothing_left(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let (Some(op), [x, y]) = (scalar(site), site.call.args) else { return Ok(None) };
    let zero = |a: &Arg| uniform(b.graph(), a, &site.cx.opaque).is_some_and(|n| n.as_f64() == 0.0);
    let nothing = match op {
        ScalarOp::Sub => x == y,
        ScalarOp::Mul => zero(x) || zero(y),
        _ => false,
    };
    if !nothing {
        return Ok(None);
    }
    b.full(&site.meta.sizes, 0.0, site.meta.dtype).map(Some)
}

/// `(x + a) + b = x + (a + b)`, `(x * a) * b = x * (a * b)` of numbers a and b.
fn constants_meet(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let (Some(op @ (ScalarOp::Add | ScalarOp::Mul)), [x, y]) = (scalar(site), site.call.args) else {
        return Ok(None);
    };
    let graph = b.graph();
    let number = |a: &Arg| uniform(graph, a, &site.cx.opaque);
    let split = |x: &Arg, y: &Arg| match (x, number(y), number(x)) {
        (Arg::Value(v), Some(n), None) => Some((*v, n)),
        _ => None,
    };
    let Some((inner, outer)) = split(x, y).or_else(|| split(y, x)) else { return Ok(None) };
    let Some(call) = def(graph, inner).filter(|c| c.op.scalar_op() == Some(op)) else { return Ok(None) };
    let Some((source, n)) =
        split(&call.args[0], &call.args[1]).or_else(|| split(&call.args[1], &call.args[0]))
    else {
        return Ok(None);
    };
    let both = op.eval(site.meta.dtype.compute(), &[n, outer]);
    b.scalar_op(op, &[source.into(), both.into()]).map(Some)
}

/// `log(exp(x)) = x`, `exp(log(x)) = x`.
fn inverse(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let (Some(op), [Arg::Value(x)]) = (scalar(site), site.call.args) else { return Ok(None) };
    let other = match op {
        ScalarOp::Exp => "prims.log",
        ScalarOp::Log => "prims.exp",
        _ => return Ok(None),
    };
    Ok(through(b.graph(), *x, other))
}

/// `sum(sum(x, d), e) = sum(x, d and e)`.
fn sum_of_sum(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if site.call.op.target != "prims.sum" || !is_float(site) {
        return Ok(None);
    }
    let inner = site.call.value("a")?;
    let Some(call) = def_of(b.graph(), inner, "prims.sum").filter(|_| site.reads_alone(inner)) else {
        return Ok(None);
    };
    let source = call.value("a")?;
    let rank = b.rank(source)?;
    let first: Vec<usize> =
        call.ints("dims")?.into_iter().map(|d| call.dim(d, rank)).collect::<Result<_, _>>()?;
    let left: Vec<usize> = (0..rank).filter(|d| !first.contains(d)).collect();
    let mut dims: Vec<i64> = first.iter().map(|&d| d as i64).collect();
    for d in site.call.ints("dims")? {
        let d = site.call.dim(d, left.len())?;
        dims.extend(left.get(d).map(|&d| d as i64));
    }
    b.call1("prims.sum", vec![source.into(), dims.as_slice().into()]).map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    fn one(lines: &str, expected: &str) {
        let body = format!("%x: f32[2, 3] = input \"x\"\n\n{lines}");
        changes(run, &PassCx::default().fast_math(true), &body, expected);
        assert_unchanged(run, &PassCx::default(), &body);
    }

    #[test]
    fn a_circle_is_one() {
        one(
            "%s: f32[2, 3] = prims.sin(%x)\n%c: f32[2, 3] = prims.cos(%x)\n%ss: f32[2, 3] = prims.mul(%s, %s)\n%cc: f32[2, 3] = prims.pow(%c, 2.0)\n%a: f32[2, 3] = prims.add(%cc, %ss)\nreturn %a",
            "prims.full",
        );
    }

    #[test]
    fn differences_and_constants() {
        one("%e: f32[2, 3] = prims.exp(%x)\n%a: f32[2, 3] = prims.sub(%e, %e)\nreturn %a", "prims.full");
        one("%e: f32[2, 3] = prims.mul(%x, 3.0)\n%a: f32[2, 3] = prims.mul(0.5, %e)\nreturn %a", "prims.mul");
        one("%e: f32[2, 3] = prims.exp(%x)\n%a: f32[2, 3] = prims.log(%e)\nreturn %a", "");
        one("%e: f32[3] = prims.sum(%x, [0])\n%a: f32[] = prims.sum(%e, [0])\nreturn %a", "prims.sum");
    }
}
