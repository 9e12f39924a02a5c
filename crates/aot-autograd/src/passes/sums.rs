//! Removes terms whose sum is zero: an element less the mean of all elements. The gradient of every normalisation has such
//! terms, each of which costs a pass over memory. The rest rounds slightly differently: without the rounding errors of the
//! terms that cancel. And sums of lines with one element that is not zero, as the gradient of a loss over classes has them,
//! become that element.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{ReduceOp, ScalarOp};
use prims::{Builder, Call, OpError};

use super::matching::{def, def_of, sizes, through, uniform};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[centred, picked];

/// Applies the rule.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, RULES)
}

/// Most terms of a sum that are examined.
const MOST_TERMS: usize = 16;
/// Most consecutive calls that are looked through.
const DEEPEST: usize = 24;

/// A summand: `leaf * factors`, negated or not. Factors are constant along the dimensions that are reduced.
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

/// `sum(select(position == index, x, 0)) = x` along one dimension, 0 where the index is no position.
fn picked(b: &mut Builder<'_>, site: &Site<'_>) -> Result<Option<ValueId>, OpError> {
    let dtype = site.meta.dtype;
    if site.call.op.target != "prims.sum" || !matches!(dtype, DType::F32 | DType::F64) {
        return Ok(None);
    }
    let v = site.call.value("a")?;
    let Some(dims) = dims_of(b.graph(), &site.call).filter(|dims| dims.len() == 1) else { return Ok(None) };
    let Some(terms) = terms(b.graph(), v, &dims) else { return Ok(None) };
    let [term] = &terms[..] else { return Ok(None) };
    let Some((index, x)) = one_hot(b.graph(), term.leaf, &dims) else { return Ok(None) };
    let classes = b.sizes(v)?[dims[0]].clone();
    let low = b.scalar_op(ScalarOp::Ge, &[index.into(), 0i64.into()])?;
    let high = b.scalar_op(ScalarOp::Lt, &[index.into(), classes.into()])?;
    let within = b.scalar_op(ScalarOp::And, &[low.into(), high.into()])?;
    let sum = b.scalar_op(ScalarOp::Select, &[within.into(), x, Scalar::zero(dtype).into()])?;
    let sum = b.reshape(sum, &site.meta.sizes)?;
    times_factors(b, sum, term, &dims, &site.meta.sizes).map(Some)
}

/// The index and the element of `select(position == index, x, 0)`, where both repeat along the one dimension.
fn one_hot(graph: &Graph, v: ValueId, dims: &[usize]) -> Option<(ValueId, Arg)> {
    let select = def(graph, v).filter(|c| c.op.scalar_op() == Some(ScalarOp::Select))?;
    let [Arg::Value(cond), x, zero] = select.args else { return None };
    let is_zero = uniform(graph, zero, &[]).is_some_and(|n| n.as_f64() == 0.0);
    let eq = def(graph, *cond).filter(|c| is_zero && c.op.scalar_op() == Some(ScalarOp::Eq))?;
    let [a, b] = eq.args else { return None };
    let index = [(a, b), (b, a)].into_iter().find(|(line, _)| is_position(graph, line, dims))?.1;
    match factor(graph, index, dims)? {
        Arg::Value(index) => Some((index, factor(graph, x, dims)?)),
        _ => None,
    }
}

/// Whether an operand is the position along the one dimension.
fn is_position(graph: &Graph, arg: &Arg, dims: &[usize]) -> bool {
    let Arg::Value(v) = arg else { return false };
    let (whole, d) = (sizes(graph, *v), dims[0]);
    let kept = through(graph, *v, "prims.expand").unwrap_or(*v);
    let line = behind_reshape(graph, kept);
    let along = |s: &[SymExpr]| (0..s.len()).all(|i| i == d || s[i] == SymExpr::ONE);
    let counts = || {
        let call = def_of(graph, line, "prims.iota")?;
        let (start, step) = (call.sym("start").ok()?, call.sym("step").ok()?);
        Some(start == SymExpr::ZERO && step == SymExpr::ONE)
    };
    let same =
        whole.zip(sizes(graph, kept)).is_some_and(|(w, k)| k.len() == w.len() && along(k) && k[d] == w[d]);
    same && counts() == Some(true)
}

/// The sum of a term's leaf, times its factors.
fn scaled_sum(b: &mut Builder<'_>, term: &Term, dims: &[usize], to: &[SymExpr]) -> Result<ValueId, OpError> {
    let sum = b.reduce(ReduceOp::Sum, term.leaf, dims, false)?;
    times_factors(b, sum, term, dims, to)
}

/// The sum of a term's leaf, times the factors of the term.
fn times_factors(
    b: &mut Builder<'_>,
    mut sum: ValueId,
    term: &Term,
    dims: &[usize],
    to: &[SymExpr],
) -> Result<ValueId, OpError> {
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

/// The parts of a term; `None` where its leaf is not a sum, product with a factor or negation.
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

    /// One element of each line, as the gradient of a `gather` has it.
    const PICKED: &str = "%t: i64[4, 1] = input \"t\"
%g: f32[4, 1] = input \"g\"

%i: i64[7] = prims.iota(7, 0, 1, i64)
%r: i64[1, 7] = prims.reshape(%i, [1, 7])
%ie: i64[4, 7] = prims.expand(%r, [4, 7])
%te: i64[4, 7] = prims.expand(%t, [4, 7])
%c: bool[4, 7] = prims.eq(%ie, %te)
%ge: f32[4, 7] = prims.expand(%g, [4, 7])
%s: f32[4, 7] = prims.select(%c, %ge, 0.0)";

    #[test]
    fn lines_of_one_element_are_that_element() {
        let body =
            format!("{PICKED}\n%n: f32[4, 7] = prims.neg(%s)\n%y: f32[4] = prims.sum(%n, [1])\nreturn %y");
        let after = "prims.ge prims.lt prims.and prims.select prims.reshape prims.neg";
        changes(run, &PassCx::training(), &body, after);
        // Over the other dimension there may be several, and another start is another position.
        let across = format!("{PICKED}\n%y: f32[7] = prims.sum(%s, [0])\nreturn %y");
        assert_unchanged(run, &PassCx::training(), &across);
        let shifted = body.replace("prims.iota(7, 0, 1", "prims.iota(7, 1, 1");
        assert_unchanged(run, &PassCx::training(), &shifted);
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
