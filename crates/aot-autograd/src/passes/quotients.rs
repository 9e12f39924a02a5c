//! Several quotients by one logistic denominator, `c + exp(x)`, as products with its reciprocal: the gradient of SiLU divides by it
//! three times, and a division takes as long as ten multiplications.
//!
//! Only for such denominators: a quotient of whole numbers, which rounds to a whole number, must stay a quotient. Only in `f32` and `f64`:
//! a reciprocal that is rounded to 16 bits may be subnormal, or overflow. And only in graphs that are not differentiated any more, since
//! the gradient of a quotient is better than that of the product. The product is rounded once more than the quotient.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::DType;
use kernel_ir::ScalarOp;
use prims::{Builder, OpError};

use super::matching::{def, uniform};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[by_a_reciprocal];

/// The smallest number in a denominator, whose reciprocal is far from overflow.
const LEAST: f64 = 1e-18;

pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    if cx.to_be_differentiated { Stats::default() } else { apply(graph, cx, RULES) }
}

/// `a / d = a * (1 / d)` where something else reads `d` too, another quotient for the most part. Equal reciprocals are merged afterwards (`cse`).
fn by_a_reciprocal(b: &mut Builder<'_>, site: &Site<'_>) -> Result<Option<ValueId>, OpError> {
    let divides =
        site.call.op.scalar_op() == Some(ScalarOp::Div) && matches!(site.meta.dtype, DType::F32 | DType::F64);
    let [a, Arg::Value(d)] = site.call.args else { return Ok(None) };
    let (graph, opaque) = (b.graph(), &site.cx.opaque);
    let is_one = uniform(graph, a, opaque).is_some_and(|n| n.as_f64() == 1.0);
    if !divides || is_one || site.reads(*d) < 2 || !is_logistic(graph, *d, opaque) {
        return Ok(None);
    }
    let reciprocal = b.scalar_op(ScalarOp::Div, &[1.0.into(), (*d).into()])?;
    b.scalar_op(ScalarOp::Mul, &[a.clone(), reciprocal.into()]).map(Some)
}

/// Whether a value is the sum of a positive number and an exponential, whose reciprocal cannot overflow.
fn is_logistic(graph: &Graph, v: ValueId, opaque: &[ValueId]) -> bool {
    let Some(sum) = def(graph, v).filter(|c| c.op.scalar_op() == Some(ScalarOp::Add)) else { return false };
    let number = |a: &Arg| uniform(graph, a, opaque).is_some_and(|n| n.as_f64() > LEAST);
    let exponential = |a: &Arg| match a {
        Arg::Value(v) => def(graph, *v).is_some_and(|c| c.op.scalar_op() == Some(ScalarOp::Exp)),
        _ => false,
    };
    match sum.args {
        [x, y] => (number(x) && exponential(y)) || (exponential(x) && number(y)),
        _ => false,
    }
}
