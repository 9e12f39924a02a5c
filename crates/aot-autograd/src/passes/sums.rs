//! Sums of what is known to sum to nothing: an element less the mean of all. The gradient of every normalisation has such
//! terms, and with them a walk over memory of its own behind those that give its other sums. What is left rounds a little
//! differently: without the rounding errors of the terms that cancel.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{ReduceOp, ScalarOp};
use prims::{Builder, Call, OpError};

use super::matching::{def, def_of, sizes, through};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[centred];

/// Applies the rule.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, RULES)
}

/// Terms of a sum that are looked at.
const MOST_TERMS: usize = 16;
/// Calls in a row that are looked through.
const DEEPEST: usize = 24;

/// What is added up: `leaf * factors`, negated or not. Factors are the same along the dimensions that are reduced.
#[derive(Clone)]
struct Term {
    leaf: ValueId,
    factors: Vec<Arg>,
    negative: bool,
}

/// `sum(x a + (y - mean(y)) b) = sum(x) a`, where `a` and `b` are the same along the dimensions reduced.
fn centred(b: &mut Builder<'_>, site: &Site<'_>) -> Result<Option<ValueId>, OpError> {
    let dtype = site.meta.dtype;
    if site.call.op.target != "prims.sum" || !matches!(dtype, DType::F32 | DType::F64) {
        return Ok(None);
    }
    let v = site.call.value("a")?;
    let Some(dims) = dims_of(b.graph(), &site.call) else { return Ok(None) };
    let Some(terms) = terms(b.graph(), v, &dims) else { return Ok(None) };
    let all = terms.len();
    let rest: Vec<Term> = terms.into_iter().filter(|t| !is_centred(b.graph(), t.leaf, &dims)).collect();
    if rest.len() == all {
        return Ok(None);
    }
    match &rest[..] {
        [] => b.full(&site.meta.sizes, Scalar::zero(dtype), dtype).map(Some),
        [term] => scaled_sum(b, term, &dims, &site.meta.sizes).map(Some),
        // Two sums take longer than one.
        _ => Ok(None),
    }
}

/// The sum of a term's leaf, times its factors.
fn scaled_sum(b: &mut Builder<'_>, term: &Term, dims: &[usize], to: &[SymExpr]) -> Result<ValueId, OpError> {
    let mut sum = b.reduce(ReduceOp::Sum, term.leaf, dims, false)?;
    for factor in &term.factors {
        sum = match factor {
            Arg::Value(k) => {
                let own = b.sizes(*k)?;
                let kept: Shape =
                    own.into_iter().enumerate().filter(|(d, _)| !dims.contains(d)).map(|(_, s)| s).collect();
                let k = b.reshape(*k, &kept)?;
                let k = b.expand(k, to)?;
                b.mul(sum, k)?
            }
            number => b.scalar_op(ScalarOp::Mul, &[sum.into(), number.clone()])?,
        };
    }
    if term.negative { b.neg(sum) } else { Ok(sum) }
}

/// The dimensions that a sum reduces, in order.
fn dims_of(graph: &Graph, sum: &Call<'_>) -> Option<Vec<usize>> {
    let rank = sizes(graph, sum.value("a").ok()?)?.len();
    let dims = sum.ints("dims").ok()?;
    let mut dims: Vec<usize> = dims.into_iter().map(|d| sum.dim(d, rank).ok()).collect::<Option<_>>()?;
    dims.sort_unstable();
    dims.dedup();
    (!dims.is_empty()).then_some(dims)
}

/// A value as a sum of terms; `None` where there are too many.
fn terms(graph: &Graph, v: ValueId, dims: &[usize]) -> Option<Vec<Term>> {
    let mut open = vec![(Term { leaf: v, factors: Vec::new(), negative: false }, 0)];
    let mut done = Vec::new();
    while let Some((term, depth)) = open.pop() {
        if open.len() + done.len() > MOST_TERMS {
            return None;
        }
        match parts(graph, &term, dims).filter(|_| depth < DEEPEST && !is_centred(graph, term.leaf, dims)) {
            Some(parts) => open.extend(parts.into_iter().map(|p| (p, depth + 1))),
            None => done.push(term),
        }
    }
    Some(done)
}

/// What a term is made of; `None` where its leaf is no sum, product with a factor or negative.
fn parts(graph: &Graph, term: &Term, dims: &[usize]) -> Option<Vec<Term>> {
    let call = def(graph, term.leaf)?;
    let whole = |arg: &Arg| match arg {
        Arg::Value(v) => (sizes(graph, *v)? == sizes(graph, term.leaf)?).then_some(*v),
        _ => None,
    };
    let with = |leaf: ValueId, flip: bool| Term { leaf, negative: term.negative != flip, ..term.clone() };
    match (call.op.scalar_op()?, call.args) {
        (ScalarOp::Neg, [x]) => Some(vec![with(whole(x)?, true)]),
        (ScalarOp::Add, [x, y]) => Some(vec![with(whole(x)?, false), with(whole(y)?, false)]),
        (ScalarOp::Sub, [x, y]) => Some(vec![with(whole(x)?, false), with(whole(y)?, true)]),
        (ScalarOp::Mul, [x, y]) => {
            let (leaf, factor) = match (factor(graph, x, dims), factor(graph, y, dims)) {
                (_, Some(k)) => (whole(x)?, k),
                (Some(k), _) => (whole(y)?, k),
                _ => return None,
            };
            let mut term = with(leaf, false);
            term.factors.push(factor);
            Some(vec![term])
        }
        _ => None,
    }
}

/// The number, or the tensor with size 1 along `dims`, that an operand repeats there.
fn factor(graph: &Graph, arg: &Arg, dims: &[usize]) -> Option<Arg> {
    let Arg::Value(v) = arg else { return Some(arg.clone()) };
    let k = through(graph, *v, "prims.expand")?;
    let own = sizes(graph, k)?;
    let fits = own.len() == sizes(graph, *v)?.len() && dims.iter().all(|&d| own[d] == SymExpr::ONE);
    fits.then(|| k.into())
}

/// Whether a value is `x - mean(x)`, the mean being over these dimensions.
fn is_centred(graph: &Graph, v: ValueId, dims: &[usize]) -> bool {
    let operands = || {
        let call = def(graph, v).filter(|c| c.op.scalar_op() == Some(ScalarOp::Sub))?;
        let [Arg::Value(x), Arg::Value(mean)] = call.args else { return None };
        Some((*x, through(graph, *mean, "prims.expand")?))
    };
    operands().is_some_and(|(x, mean)| is_mean(graph, mean, x, dims) == Some(true))
}

/// Whether `mean` is `sum(x) / n` over these dimensions, which it keeps with size 1.
fn is_mean(graph: &Graph, mean: ValueId, x: ValueId, dims: &[usize]) -> Option<bool> {
    let all = sizes(graph, x)?;
    let kept = sizes(graph, mean)?;
    let places = kept.len() == all.len()
        && (0..all.len()).all(|d| kept[d] == if dims.contains(&d) { SymExpr::ONE } else { all[d].clone() });
    let quotient = behind_reshape(graph, mean);
    let division = def(graph, quotient).filter(|c| c.op.scalar_op() == Some(ScalarOp::Div))?;
    let [Arg::Value(sum), count] = division.args else { return None };
    let numel = dims.iter().fold(SymExpr::ONE, |n, d| n * &all[*d]).as_const()?;
    let counted = count.as_scalar()?.as_f64() == numel as f64;
    let sum = def_of(graph, behind_reshape(graph, *sum), "prims.sum")?;
    Some(places && counted && sum.value("a").ok()? == x && dims_of(graph, &sum)? == dims)
}

fn behind_reshape(graph: &Graph, v: ValueId) -> ValueId {
    through(graph, v, "prims.reshape").unwrap_or(v)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    const CENTRED: &str = "%x: f32[4, 3, 5] = input \"x\"
%g: f32[4, 3, 5] = input \"g\"
%k: f32[1, 3, 1] = input \"k\"

%s: f32[3] = prims.sum(%x, [0, 2])
%r: f32[1, 3, 1] = prims.reshape(%s, [1, 3, 1])
%m: f32[1, 3, 1] = prims.div(%r, 20.0)
%me: f32[4, 3, 5] = prims.expand(%m, [4, 3, 5])
%c: f32[4, 3, 5] = prims.sub(%x, %me)
%ke: f32[4, 3, 5] = prims.expand(%k, [4, 3, 5])
%ck: f32[4, 3, 5] = prims.mul(%ke, %c)
%gk: f32[4, 3, 5] = prims.mul(%g, %ke)";

    #[test]
    fn what_is_centred_falls_away() {
        let body = format!(
            "{CENTRED}\n%a: f32[4, 3, 5] = prims.add(%gk, %ck)\n%b: f32[4, 3, 5] = prims.add(%a, %ck)\n%n: f32[4, 3, 5] = prims.neg(%b)\n%y: f32[3] = prims.sum(%n, [0, 2])\nreturn %y"
        );
        changes(run, &PassCx::training(), &body, "prims.sum prims.reshape prims.mul prims.neg");
        let alone = format!("{CENTRED}\n%y: f32[3] = prims.sum(%ck, [0, 2])\nreturn %y");
        changes(run, &PassCx::training(), &alone, "prims.full");
    }

    #[test]
    fn other_sums_stay() {
        // Over other dimensions, of a square, of two terms that are not centred.
        let over = format!("{CENTRED}\n%y: f32[4, 3] = prims.sum(%c, [2])\nreturn %y");
        assert_unchanged(run, &PassCx::training(), &over);
        let square = format!(
            "{CENTRED}\n%q: f32[4, 3, 5] = prims.mul(%c, %c)\n%y: f32[3] = prims.sum(%q, [0, 2])\nreturn %y"
        );
        assert_unchanged(run, &PassCx::training(), &square);
        let two = format!(
            "{CENTRED}\n%a: f32[4, 3, 5] = prims.add(%gk, %ck)\n%b: f32[4, 3, 5] = prims.add(%a, %x)\n%y: f32[3] = prims.sum(%b, [0, 2])\nreturn %y"
        );
        assert_unchanged(run, &PassCx::training(), &two);
        // A mean of something else, and a quotient that is none.
        assert_unchanged(
            run,
            &PassCx::training(),
            &over
                .replace("20.0", "19.0")
                .replace("f32[4, 3] = prims.sum(%c, [2])", "f32[3] = prims.sum(%c, [0, 2])"),
        );
    }
}
