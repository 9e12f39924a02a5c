//! Algebra that is exact in floating point: one rule a function, its equation above it. What would round differently is
//! in [`super::fast_math`].

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{Class, DType, Scalar};
use kernel_ir::ScalarOp;
use prims::{Builder, OpError};

use super::matching::{def, def_of, sizes, uniform};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats, scalars};

const RULES: &[Rule] = &[
    numbers_for_tensors,
    neutral,
    absorbing,
    twice,
    same_operands,
    even_of_negative,
    signs,
    select_one,
    select_of_not,
    convert_of_convert,
];

/// Applies every rule.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, RULES)
}

type Given = Result<Option<ValueId>, OpError>;

fn operands<'a>(site: &Site<'a>) -> Option<(ScalarOp, &'a [Arg])> {
    Some((site.call.op.scalar_op()?, site.call.args))
}

/// The operand, where it has the type of the result (it may be a number).
fn whole(b: &Builder<'_>, site: &Site<'_>, arg: &Arg) -> Option<ValueId> {
    let Arg::Value(v) = arg else { return None };
    b.graph().meta(*v).filter(|m| m.dtype == site.meta.dtype && m.sizes == site.meta.sizes).map(|_| *v)
}

/// `op(x, expand(full(c))) = op(x, c)`: a number needs no tensor. One operand stays a tensor.
fn numbers_for_tensors(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let Some((_, args)) = operands(site) else { return Ok(None) };
    let numbers: Vec<Option<Scalar>> = args
        .iter()
        .map(|a| if let Arg::Value(_) = a { uniform(b.graph(), a, &site.cx.opaque) } else { None })
        .collect();
    // A truth value that chooses has no form as a number.
    let chooses = site.call.op.scalar_op() == Some(ScalarOp::Select);
    let first = usize::from(chooses);
    let tensors = |skip: &[Option<Scalar>]| {
        args.iter().zip(skip).skip(first).filter(|(a, n)| matches!(a, Arg::Value(_)) && n.is_none()).count()
    };
    if numbers.iter().skip(first).all(Option::is_none) || (tensors(&numbers) == 0 && !chooses) {
        return Ok(None);
    }
    // Where all branches would be numbers, the dtype would be lost.
    if chooses && tensors(&numbers) == 0 {
        return Ok(None);
    }
    let of = |(i, (a, n)): (usize, (&Arg, &Option<Scalar>))| match n {
        Some(n) if i >= first => Arg::from(*n),
        _ => a.clone(),
    };
    let args = args.iter().zip(&numbers).enumerate().map(of).collect();
    b.call_op(site.call.op, args).map(|outs| outs.first().copied())
}

/// `x + 0 = x`, `x * 1 = x`, `x - 0 = x`, …; on either side where operands commute.
fn neutral(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let Some((op, [x, y])) = operands(site) else { return Ok(None) };
    let number = |arg: &Arg| uniform(b.graph(), arg, &site.cx.opaque);
    if let (Some(v), Some(n)) = (whole(b, site, x), number(y))
        && scalars::right_neutral(op, n, site.meta.dtype)
    {
        return Ok(Some(v));
    }
    if let (Some(n), Some(v)) = (number(x), whole(b, site, y))
        && site.call.op.commutes()
        && scalars::right_neutral(op, n, site.meta.dtype)
    {
        return Ok(Some(v));
    }
    Ok(None)
}

/// `x * 0 = 0` of integers, `x & 0 = 0`, `x | true = true`.
fn absorbing(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let Some((op, [x, y])) = operands(site) else { return Ok(None) };
    let dtype = site.meta.dtype;
    let number =
        |arg: &Arg| uniform(b.graph(), arg, &site.cx.opaque).filter(|&n| scalars::absorbing(op, n, dtype));
    let found = number(y).or_else(|| if site.call.op.commutes() { number(x) } else { None });
    let Some(n) = found else { return Ok(None) };
    b.full(&site.meta.sizes, n, dtype).map(Some)
}

/// `-(-x) = x`, `not not x = x`, `| |x| | = |x|`, `floor(floor(x)) = floor(x)`.
fn twice(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let Some((op, [Arg::Value(x)])) = operands(site) else { return Ok(None) };
    let Some(inner) = def(b.graph(), *x).filter(|c| c.op.scalar_op() == Some(op)) else { return Ok(None) };
    if scalars::is_involution(op) {
        return Ok(whole(b, site, &inner.args[0]));
    }
    Ok(scalars::is_idempotent(op).then_some(*x))
}

/// `max(x, x) = x`, `x & x = x`; `max(max(x, y), y) = max(x, y)`.
fn same_operands(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let Some((op, [x, y])) = operands(site) else { return Ok(None) };
    if !scalars::gives_its_operand(op) {
        return Ok(None);
    }
    if x == y {
        return Ok(whole(b, site, x));
    }
    let Arg::Value(v) = x else { return Ok(None) };
    let inner = def(b.graph(), *v).filter(|c| c.op.scalar_op() == Some(op));
    Ok(if inner.is_some_and(|c| c.args[1] == *y) { whole(b, site, x) } else { None })
}

/// `|-x| = |x|`, `cos(-x) = cos(x)`.
fn even_of_negative(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let Some((op, [Arg::Value(x)])) = operands(site) else { return Ok(None) };
    if !scalars::is_even(op) || site.meta.dtype.is_complex() {
        return Ok(None);
    }
    let Some(inner) = def_of(b.graph(), *x, "prims.neg") else { return Ok(None) };
    let inner = inner.args[0].clone();
    b.scalar_op(op, &[inner]).map(Some)
}

/// `x + (-y) = x - y`, `x - (-y) = x + y`, `(-x) * (-y) = x * y`, `(-x) / (-y) = x / y`.
fn signs(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let Some((op, [x, y])) = operands(site) else { return Ok(None) };
    let negated = |arg: &Arg| match arg {
        Arg::Value(v) => def_of(b.graph(), *v, "prims.neg").map(|c| c.args[0].clone()),
        _ => None,
    };
    if site.meta.dtype.class() != Class::Float {
        return Ok(None);
    }
    let (op, x, y) = match (op, negated(x), negated(y)) {
        (ScalarOp::Add, _, Some(y)) => (ScalarOp::Sub, x.clone(), y),
        (ScalarOp::Add, Some(x), _) => (ScalarOp::Sub, y.clone(), x),
        (ScalarOp::Sub, _, Some(y)) => (ScalarOp::Add, x.clone(), y),
        (ScalarOp::Mul | ScalarOp::Div, Some(x), Some(y)) => (op, x, y),
        _ => return Ok(None),
    };
    b.scalar_op(op, &[x, y]).map(Some)
}

/// `select(c, x, x) = x`, `select(true, x, y) = x`, `select(false, x, y) = y`.
fn select_one(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let Some((ScalarOp::Select, [c, x, y])) = operands(site) else { return Ok(None) };
    let chosen = match uniform(b.graph(), c, &site.cx.opaque) {
        Some(c) => {
            if c.as_bool() {
                x
            } else {
                y
            }
        }
        None if x == y => x,
        None => return Ok(None),
    };
    match (whole(b, site, chosen), chosen.as_scalar()) {
        (Some(v), _) => Ok(Some(v)),
        (None, Some(n)) => b.full(&site.meta.sizes, n, site.meta.dtype).map(Some),
        _ => Ok(None),
    }
}

/// `select(not c, x, y) = select(c, y, x)`.
fn select_of_not(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    let Some((ScalarOp::Select, [Arg::Value(c), x, y])) = operands(site) else { return Ok(None) };
    let Some(inner) = def_of(b.graph(), *c, "prims.not") else { return Ok(None) };
    let c = inner.args[0].clone();
    b.scalar_op(ScalarOp::Select, &[c, y.clone(), x.clone()]).map(Some)
}

/// `convert(convert(x, wide), t) = convert(x, t)` where `wide` holds every number of `x` exactly; `convert(x, t) = x`
/// where `x` is of `t`.
fn convert_of_convert(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if site.call.op.target != "prims.convert" {
        return Ok(None);
    }
    let x = site.call.value("a")?;
    if b.dtype(x)? == site.meta.dtype && sizes(b.graph(), x) == Some(&site.meta.sizes[..]) {
        return Ok(Some(x));
    }
    let Some(inner) = def_of(b.graph(), x, "prims.convert") else { return Ok(None) };
    let source = inner.value("a")?;
    if !lossless(b.dtype(source)?, b.dtype(x)?) {
        return Ok(None);
    }
    b.cast(source, site.meta.dtype).map(Some)
}

/// Whether every number of `from` is one of `to`.
fn lossless(from: DType, to: DType) -> bool {
    use DType::*;
    from == to
        || match (from, to) {
            // Truth values are 0 and 1 everywhere.
            (Bool, _) => true,
            (F16 | BF16, F32 | F64 | C64 | C128) | (F32, F64 | C64 | C128) | (F64 | C64, C128) => true,
            (U8, I16 | I32 | I64) | (I8, I16 | I32 | I64) | (I16, I32 | I64) | (I32, I64) => true,
            (U8 | I8, F16 | F32 | F64) | (I16, F32 | F64) | (I32, F64) => true,
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    fn one(lines: &str, expected: &str) {
        changes(
            run,
            &PassCx::default(),
            &format!("%x: f32[3] = input \"x\"\n%y: f32[3] = input \"y\"\n\n{lines}"),
            expected,
        );
    }

    #[test]
    fn neutral_elements_go() {
        one(
            "%a: f32[3] = prims.mul(%x, 1.0)\n%b: f32[3] = prims.add(0.0, %a)\n%c: f32[3] = prims.div(%b, 1.0)\nreturn %c",
            "",
        );
        one(
            "%o: f32[] = prims.full([], 1.0, f32)\n%e: f32[3] = prims.expand(%o, [3])\n%a: f32[3] = prims.mul(%e, %x)\nreturn %a",
            "",
        );
        assert_unchanged(
            run,
            &PassCx::default(),
            "%x: f32[3] = input \"x\"\n\n%a: f32[3] = prims.sub(0.0, %x)\nreturn %a",
        );
    }

    #[test]
    fn tensors_of_one_number_become_numbers() {
        one(
            "%o: f32[] = prims.full([], 2.5, f32)\n%e: f32[3] = prims.expand(%o, [3])\n%a: f32[3] = prims.pow(%x, %e)\nreturn %a",
            "prims.pow",
        );
    }

    #[test]
    fn signs_cancel() {
        one("%n: f32[3] = prims.neg(%x)\n%a: f32[3] = prims.neg(%n)\nreturn %a", "");
        one("%n: f32[3] = prims.neg(%x)\n%a: f32[3] = prims.sub(%y, %n)\nreturn %a", "prims.add");
        one("%n: f32[3] = prims.neg(%x)\n%a: f32[3] = prims.add(%n, %y)\nreturn %a", "prims.sub");
        one("%n: f32[3] = prims.neg(%x)\n%a: f32[3] = prims.cos(%n)\nreturn %a", "prims.cos");
    }

    #[test]
    fn operators_that_do_nothing_twice() {
        one("%a: f32[3] = prims.abs(%x)\n%b: f32[3] = prims.abs(%a)\nreturn %b", "prims.abs");
        one("%a: f32[3] = prims.max(%x, 0.0)\n%b: f32[3] = prims.max(%a, 0.0)\nreturn %b", "prims.max");
        one("%a: f32[3] = prims.min(%x, %x)\nreturn %a", "");
    }

    #[test]
    fn choices_that_are_none() {
        one("%c: bool[3] = prims.lt(%x, %y)\n%a: f32[3] = prims.select(%c, %x, %x)\nreturn %a", "");
        one(
            "%c: bool[3] = prims.full([3], false, bool)\n%a: f32[3] = prims.select(%c, %x, %y)\nreturn %a",
            "",
        );
        one(
            "%c: bool[3] = prims.lt(%x, %y)\n%n: bool[3] = prims.not(%c)\n%a: f32[3] = prims.select(%n, %x, 1.0)\nreturn %a",
            "prims.lt prims.select",
        );
    }

    #[test]
    fn conversions_there_and_back() {
        one("%a: f64[3] = prims.convert(%x, f64)\n%b: f32[3] = prims.convert(%a, f32)\nreturn %b", "");
        assert_unchanged(
            run,
            &PassCx::default(),
            "%x: f32[3] = input \"x\"\n\n%a: bf16[3] = prims.convert(%x, bf16)\n%b: f32[3] = prims.convert(%a, f32)\nreturn %b",
        );
    }

    #[test]
    fn nothing_times_zero_of_integers() {
        changes(
            run,
            &PassCx::default(),
            "%x: i64[3] = input \"x\"\n\n%a: i64[3] = prims.mul(%x, 0)\nreturn %a",
            "prims.full",
        );
        assert_unchanged(
            run,
            &PassCx::default(),
            "%x: f32[3] = input \"x\"\n\n%a: f32[3] = prims.mul(%x, 0.0)\nreturn %a",
        );
    }
}
