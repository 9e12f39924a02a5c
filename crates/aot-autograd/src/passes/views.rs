//! Redundant views and moves: views of views, views of everything, and moves of no element. One rule per function, its
//! equation above it.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{Shape, SymExpr};
use prims::{Builder, Lower, OpError};

use super::matching::{def_of, permutation, sizes, swaps_last_two, through};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[
    nothing_to_do,
    detach,
    permute_of_permute,
    permute_of_ones,
    reshape_of_reshape,
    expand_of_expand,
    slice_of_slice,
    slice_of_cat,
    pad_of_nothing,
    cat_of_few,
    reduce_one,
    transposed_product,
    product_of_merged,
];

/// Applies every rule.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, RULES)
}

type Given = Result<Option<ValueId>, OpError>;

fn is(site: &Site<'_>, target: &str) -> bool {
    site.call.op.target == target
}

/// `reshape(x, sizes(x)) = x`, and so `expand`.
fn nothing_to_do(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.reshape") && !is(site, "prims.expand") {
        return Ok(None);
    }
    let x = site.call.value("a")?;
    Ok((sizes(b.graph(), x) == Some(&site.meta.sizes[..])).then_some(x))
}

/// `detach(x) = x` where nothing is differentiated any more.
fn detach(_: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.detach") || site.cx.to_be_differentiated {
        return Ok(None);
    }
    site.call.value("a").map(Some)
}

/// `permute(permute(x, p), q) = permute(x, p[q])`; the identity is removed.
fn permute_of_permute(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.permute") {
        return Ok(None);
    }
    let (x, Some(outer)) = (site.call.value("a")?, permutation(&site.call)) else { return Ok(None) };
    if outer.iter().enumerate().all(|(i, &d)| i == d) {
        return Ok(Some(x));
    }
    let Some(call) = def_of(b.graph(), x, "prims.permute") else { return Ok(None) };
    let (source, Some(inner)) = (call.value("a")?, permutation(&call)) else { return Ok(None) };
    let dims: Vec<usize> = outer.iter().map(|&d| inner[d]).collect();
    b.permute(source, &dims).map(Some)
}

/// A permutation that only moves dimensions of size 1 is a reshape.
fn permute_of_ones(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.permute") {
        return Ok(None);
    }
    let (x, Some(dims)) = (site.call.value("a")?, permutation(&site.call)) else { return Ok(None) };
    let Some(from) = sizes(b.graph(), x) else { return Ok(None) };
    let wide: Vec<usize> = dims.iter().copied().filter(|&d| from[d] != SymExpr::ONE).collect();
    if wide.len() == dims.len() || !wide.is_sorted() {
        return Ok(None);
    }
    b.reshape(x, &site.meta.sizes).map(Some)
}

/// `reshape(reshape(x, s), t) = reshape(x, t)`.
fn reshape_of_reshape(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.reshape") {
        return Ok(None);
    }
    let Some(source) = through(b.graph(), site.call.value("a")?, "prims.reshape") else { return Ok(None) };
    b.reshape(source, &site.meta.sizes).map(Some)
}

/// `expand(expand(x, s), t) = expand(x, t)`.
fn expand_of_expand(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.expand") {
        return Ok(None);
    }
    let Some(source) = through(b.graph(), site.call.value("a")?, "prims.expand") else { return Ok(None) };
    b.expand(source, &site.meta.sizes).map(Some)
}

/// `slice(x, d, 0, n, 1) = x` where x has n there; `slice(slice(x, d, a, _, p), d, b, n, q) = slice(x, d, a + b p, n, p q)`.
fn slice_of_slice(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.slice") {
        return Ok(None);
    }
    let (c, x) = (&site.call, site.call.value("a")?);
    let rank = site.meta.rank();
    let (dim, start, step) = (c.dim(c.int("dim")?, rank)?, c.sym("start")?, c.int("step")?);
    let length = c.sym("length")?;
    if start == SymExpr::ZERO && step == 1 && b.sizes(x)?.get(dim) == Some(&length) {
        return Ok(Some(x));
    }
    let Some(inner) = def_of(b.graph(), x, "prims.slice") else { return Ok(None) };
    if inner.dim(inner.int("dim")?, rank)? != dim {
        return Ok(None);
    }
    let (source, first, stride) = (inner.value("a")?, inner.sym("start")?, inner.int("step")?);
    let Some(both) = step.checked_mul(stride) else { return Ok(None) };
    b.slice(source, dim, first + start * stride, length, both).map(Some)
}

/// A slice of a concatenation that lies within one part is a slice of that part.
fn slice_of_cat(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.slice") {
        return Ok(None);
    }
    let (c, rank) = (&site.call, site.meta.rank());
    let dim = c.dim(c.int("dim")?, rank)?;
    let (Some(start), Some(length), step) =
        (c.sym("start")?.as_const(), c.sym("length")?.as_const(), c.int("step")?)
    else {
        return Ok(None);
    };
    let Some(cat) = def_of(b.graph(), c.value("a")?, "prims.cat") else { return Ok(None) };
    if step < 1 || length < 1 || cat.dim(cat.int("dim")?, rank)? != dim {
        return Ok(None);
    }
    let last = start + (length - 1) * step;
    let mut before = 0;
    for part in cat.values("tensors")? {
        let Some(size) = b.sizes(part)?[dim].as_const() else { return Ok(None) };
        if start >= before && last < before + size {
            let start = SymExpr::from_i64(start - before);
            return b.slice(part, dim, start, SymExpr::from_i64(length), step).map(Some);
        }
        before += size;
    }
    Ok(None)
}

/// `pad(x, 0, 0, 0) = x`; `pad(pad(x, a, b, 0, v), c, d, 0, v) = pad(x, a + c, b + d, 0, v)` where nothing is cut off.
fn pad_of_nothing(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.pad") {
        return Ok(None);
    }
    let c = &site.call;
    let (x, low, high, interior) = (c.value("a")?, c.syms("low")?, c.syms("high")?, c.ints("interior")?);
    let none = |list: &[SymExpr]| list.iter().all(|e| *e == SymExpr::ZERO);
    if interior.iter().any(|&i| i != 0) {
        return Ok(None);
    }
    if none(&low) && none(&high) {
        return Ok(Some(x));
    }
    let Some(inner) = def_of(b.graph(), x, "prims.pad") else { return Ok(None) };
    let (source, first, last) = (inner.value("a")?, inner.syms("low")?, inner.syms("high")?);
    let grows = |list: &[SymExpr]| list.iter().all(|e| e.as_const().is_some_and(|e| e >= 0));
    let alike = inner.ints("interior")?.iter().all(|&i| i == 0) && inner.arg("value") == c.arg("value");
    if !alike || ![&low, &high, &first, &last].into_iter().all(|l| grows(l)) {
        return Ok(None);
    }
    let sum =
        |x: &[SymExpr], y: &[SymExpr]| Arg::List(x.iter().zip(y).map(|(x, y)| Arg::Int(x + y)).collect());
    let args = vec![
        source.into(),
        sum(&low, &first),
        sum(&high, &last),
        c.arg("interior").clone(),
        c.arg("value").clone(),
    ];
    b.call1("prims.pad", args).map(Some)
}

/// `cat([x]) = x`; parts without elements are removed, `cat([cat([x, y]), z]) = cat([x, y, z])`.
fn cat_of_few(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.cat") {
        return Ok(None);
    }
    let (c, rank) = (&site.call, site.meta.rank());
    let dim = c.dim(c.int("dim")?, rank)?;
    let parts = c.values("tensors")?;
    let mut flat = Vec::with_capacity(parts.len());
    for &part in &parts {
        let inner = def_of(b.graph(), part, "prims.cat").filter(|_| site.reads_alone(part));
        match inner {
            Some(inner) if inner.dim(inner.int("dim")?, rank)? == dim => {
                flat.extend(inner.values("tensors")?)
            }
            _ => flat.push(part),
        }
    }
    let graph = b.graph();
    flat.retain(|&v| sizes(graph, v).is_none_or(|s| s[dim] != SymExpr::ZERO));
    match flat[..] {
        [one] => Ok(Some(one)),
        [] => Ok(parts.first().copied()),
        _ if flat == parts => Ok(None),
        _ => b.call1("prims.cat", vec![Arg::values(flat), (dim as i64).into()]).map(Some),
    }
}

/// A reduction over dimensions of size 1 alone is a reshape (except for positions, which change the dtype).
fn reduce_one(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    // Reductions to a position have no operator that combines two of them.
    let combines = matches!(site.call.op.lower(), Some(Lower::Reduce(op)) if op.combine().is_some());
    if !combines {
        return Ok(None);
    }
    let x = site.call.value("a")?;
    let from = b.meta(x)?.clone();
    let dims = site.call.ints("dims")?;
    if from.dtype != site.meta.dtype {
        return Ok(None);
    }
    for d in dims {
        let d = site.call.dim(d, from.rank())?;
        if from.sizes.get(d).is_some_and(|s| *s != SymExpr::ONE) {
            return Ok(None);
        }
    }
    // Any and all of numbers other than truth values do not exist; every other reduction gives its only element.
    b.reshape(x, &site.meta.sizes).map(Some)
}

/// `(xᵀ y)ᵀ = yᵀ x`: not applied where one of the operands is transposed already.
fn transposed_product(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.permute") || !permutation(&site.call).is_some_and(|p| swaps_last_two(&p)) {
        return Ok(None);
    }
    let product = site.call.value("a")?;
    if !site.reads_alone(product) {
        return Ok(None);
    }
    let Some(call) = def_of(b.graph(), product, "prims.matmul") else { return Ok(None) };
    let (x, y) = (call.value("a")?, call.value("b")?);
    let (back_x, back_y) = (transposed(b.graph(), x), transposed(b.graph(), y));
    if back_x.is_none() && back_y.is_none() {
        return Ok(None);
    }
    let order = last_two_swapped(site.meta.rank());
    let mut turn = |v: ValueId, back: Option<ValueId>| match back {
        Some(back) => Ok(back),
        None => b.permute(v, &order),
    };
    let (left, right) = (turn(y, back_y)?, turn(x, back_x)?);
    b.call1("prims.matmul", vec![left.into(), right.into()]).map(Some)
}

/// `merge(x) merge(y) = merge(x y)` for batch dimensions that a view joined: the product reads its operands where they lie, while
/// joining, for example, the heads of `[batch, heads, rows, columns]` with the batch takes a copy where heads lie side by side.
fn product_of_merged(b: &mut Builder<'_>, site: &Site<'_>) -> Given {
    if !is(site, "prims.matmul") {
        return Ok(None);
    }
    let (x, y) = (site.call.value("a")?, site.call.value("b")?);
    let Some(batch) = batch_before(b.graph(), x).or_else(|| batch_before(b.graph(), y)) else {
        return Ok(None);
    };
    let matrices =
        |own: &[SymExpr]| -> Shape { batch.iter().chain(&own[own.len() - 2..]).cloned().collect() };
    let mut split = |v: ValueId| match transposed(b.graph(), v) {
        None => viewed(b, v, &matrices),
        Some(turned) => {
            let whole = viewed(b, turned, &matrices)?;
            b.permute(whole, &last_two_swapped(batch.len() + 2))
        }
    };
    let (x, y) = (split(x)?, split(y)?);
    let product = b.call1("prims.matmul", vec![x.into(), y.into()])?;
    b.reshape(product, &site.meta.sizes).map(Some)
}

/// A view of a value with these sizes of its own, past a view that it is.
fn viewed(b: &mut Builder<'_>, v: ValueId, to: &dyn Fn(&[SymExpr]) -> Shape) -> Result<ValueId, OpError> {
    let to = to(&b.sizes(v)?);
    let source = through(b.graph(), v, "prims.reshape").unwrap_or(v);
    if sizes(b.graph(), source) == Some(&to[..]) { Ok(source) } else { b.reshape(source, &to) }
}

/// The batch dimensions of an operand of a product before a view joined them to fewer ones, those of size 1 left out, which a view
/// drops without joining anything. Two of them at most: attention is recognised with two (batch and heads), not with more.
fn batch_before(graph: &Graph, v: ValueId) -> Option<Shape> {
    let v = transposed(graph, v).unwrap_or(v);
    let (joined, before) = (sizes(graph, v)?, sizes(graph, through(graph, v, "prims.reshape")?)?);
    let (own, batch) = (joined.len().checked_sub(2)?, before.len().checked_sub(2)?);
    let many = |dims: &[SymExpr]| -> Shape { dims.iter().filter(|s| **s != SymExpr::ONE).cloned().collect() };
    let kept = many(&before[..batch]);
    let joins = own > 0 && before[batch..] == joined[own..] && kept.len() > many(&joined[..own]).len();
    (joins && kept.len() <= 2).then_some(kept)
}

/// The matrices of which a value is the transposed ones.
fn transposed(graph: &Graph, v: ValueId) -> Option<ValueId> {
    let call = def_of(graph, v, "prims.permute")?;
    permutation(&call).filter(|p| swaps_last_two(p)).and_then(|_| call.value("a").ok())
}

fn last_two_swapped(rank: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 1, rank - 2);
    order
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    fn one(lines: &str, expected: &str) {
        let body = format!("%x: f32[2, 3, 4] = input \"x\"\n%y: f32[2, 3, 4] = input \"y\"\n\n{lines}");
        changes(run, &PassCx::default(), &body, expected);
    }

    #[test]
    fn permutations_join() {
        one(
            "%a: f32[4, 2, 3] = prims.permute(%x, [2, 0, 1])\n%b: f32[2, 3, 4] = prims.permute(%a, [1, 2, 0])\nreturn %b",
            "",
        );
        one(
            "%a: f32[4, 2, 3] = prims.permute(%x, [2, 0, 1])\n%b: f32[3, 2, 4] = prims.permute(%a, [2, 1, 0])\nreturn %b",
            "prims.permute",
        );
        changes(
            run,
            &PassCx::default(),
            "%x: f32[2, 1, 4] = input \"x\"\n\n%a: f32[1, 2, 4] = prims.permute(%x, [1, 0, 2])\nreturn %a",
            "prims.reshape",
        );
    }

    #[test]
    fn reshapes_and_expansions_join() {
        one(
            "%a: f32[24] = prims.reshape(%x, [24])\n%b: f32[6, 4] = prims.reshape(%a, [6, 4])\nreturn %b",
            "prims.reshape",
        );
        one(
            "%a: f32[24] = prims.reshape(%x, [24])\n%b: f32[2, 3, 4] = prims.reshape(%a, [2, 3, 4])\nreturn %b",
            "",
        );
        changes(
            run,
            &PassCx::default(),
            "%x: f32[3, 1] = input \"x\"\n\n%a: f32[3, 4] = prims.expand(%x, [3, 4])\n%b: f32[2, 3, 4] = prims.expand(%a, [2, 3, 4])\nreturn %b",
            "prims.expand",
        );
    }

    #[test]
    fn slices_join() {
        one("%a: f32[2, 3, 4] = prims.slice(%x, 1, 0, 3, 1)\nreturn %a", "");
        one(
            "%a: f32[2, 3, 3] = prims.slice(%x, 2, 3, 3, -1)\n%b: f32[2, 3, 2] = prims.slice(%a, 2, 0, 2, 2)\nreturn %b",
            "prims.slice",
        );
        one(
            "%c: f32[2, 6, 4] = prims.cat([%x, %y], 1)\n%b: f32[2, 2, 4] = prims.slice(%c, 1, 4, 2, 1)\nreturn %b",
            "prims.slice",
        );
        assert_unchanged(
            run,
            &PassCx::default(),
            "%x: f32[4] = input \"x\"\n\n%c: f32[8] = prims.cat([%x, %x], 0)\n%b: f32[2] = prims.slice(%c, 0, 3, 2, 1)\nreturn %b",
        );
    }

    #[test]
    fn pads_and_concatenations_join() {
        one("%a: f32[2, 3, 4] = prims.pad(%x, [0, 0, 0], [0, 0, 0], [0, 0, 0], 0.0)\nreturn %a", "");
        one(
            "%a: f32[2, 3, 6] = prims.pad(%x, [0, 0, 1], [0, 0, 1], [0, 0, 0], 0.5)\n%b: f32[2, 5, 7] = prims.pad(%a, [0, 1, 0], [0, 1, 1], [0, 0, 0], 0.5)\nreturn %b",
            "prims.pad",
        );
        one(
            "%a: f32[2, 3, 8] = prims.cat([%x, %y], 2)\n%b: f32[2, 3, 12] = prims.cat([%a, %x], 2)\nreturn %b",
            "prims.cat",
        );
        one("%b: f32[2, 3, 4] = prims.cat([%x], 2)\nreturn %b", "");
    }

    #[test]
    fn reductions_of_one_element() {
        changes(
            run,
            &PassCx::default(),
            "%x: f32[2, 1, 4] = input \"x\"\n\n%a: f32[2, 4] = prims.sum(%x, [1])\nreturn %a",
            "prims.reshape",
        );
        assert_unchanged(
            run,
            &PassCx::default(),
            "%x: i64[2, 1, 4] = input \"x\"\n\n%a: i64[2, 4] = prims.argmax(%x, [1])\nreturn %a",
        );
    }

    #[test]
    fn products_are_not_turned_twice() {
        one(
            "%t: f32[2, 4, 3] = prims.permute(%x, [0, 2, 1])\n%p: f32[2, 4, 4] = prims.matmul(%t, %y)\n%b: f32[2, 4, 4] = prims.permute(%p, [0, 2, 1])\nreturn %b",
            "prims.permute prims.matmul",
        );
    }

    #[test]
    fn a_gradient_stop_stays_while_it_means_something() {
        let body = "%x: f32[2] = input \"x\"\n\n%a: f32[2] = prims.detach(%x)\nreturn %a";
        assert_unchanged(run, &PassCx::before_joint(), body);
        changes(run, &PassCx::default(), body, "");
    }

    #[test]
    fn products_of_joined_batches_keep_them_apart() {
        let inputs = "%q: f32[2, 5, 3, 4] = input \"q\"
%k: f32[2, 6, 3, 4] = input \"k\"
%f: f32[6, 4, 6] = input \"f\"

%h: f32[2, 3, 5, 4] = prims.permute(%q, [0, 2, 1, 3])
%a: f32[6, 5, 4] = prims.reshape(%h, [6, 5, 4])";
        let both = "%g: f32[2, 3, 4, 6] = prims.permute(%k, [0, 2, 3, 1])
%b: f32[6, 4, 6] = prims.reshape(%g, [6, 4, 6])";
        let turned = "%g: f32[2, 3, 6, 4] = prims.permute(%k, [0, 2, 1, 3])
%j: f32[6, 6, 4] = prims.reshape(%g, [6, 6, 4])
%b: f32[6, 4, 6] = prims.permute(%j, [0, 2, 1])";
        let product = "%p: f32[6, 5, 6] = prims.matmul(%a, %b)
%r: f32[2, 3, 5, 6] = prims.reshape(%p, [2, 3, 5, 6])
return %r";
        let check = |lines: &str, expected: &str| {
            changes(run, &PassCx::default(), &format!("{inputs}\n{lines}\n{product}"), expected);
        };
        check(both, "prims.permute prims.permute prims.matmul");
        // The second of the two permutations of `k` is joined with the first one where the rules are applied next.
        check(turned, "prims.permute prims.permute prims.permute prims.matmul");
        let one = product.replace("%b", "%f");
        let body = format!("{inputs}\n{one}");
        changes(run, &PassCx::default(), &body, "prims.permute prims.reshape prims.matmul");
        // The rows are joined with a part of the batch: these are other matrices.
        let rows = format!("{inputs}\n%m: f32[3, 10, 4] = prims.reshape(%h, [3, 10, 4])\n%y: f32[3, 4, 6] = prims.slice(%f, 0, 0, 3, 1)
%p: f32[3, 10, 6] = prims.matmul(%m, %y)\nreturn %p");
        assert_unchanged(run, &PassCx::default(), &rows);
    }

    #[test]
    fn products_whose_operands_lost_a_dimension_of_one_stay() {
        let body = |before: &str, joined: &str| {
            format!(
                "%q: f32[{before}, 5, 4] = input \"q\"
%k: f32[{joined}, 4, 6] = input \"k\"

%a: f32[{joined}, 5, 4] = prims.reshape(%q, [{joined}, 5, 4])
%p: f32[{joined}, 5, 6] = prims.matmul(%a, %k)
return %p"
            )
        };
        assert_unchanged(run, &PassCx::default(), &body("1, 2, 3", "2, 3"));
        assert_unchanged(run, &PassCx::default(), &body("1, 6", "6"));
        // A product of three batch dimensions is no attention.
        assert_unchanged(run, &PassCx::default(), &body("2, 3, 4", "6, 4"));
        assert_unchanged(run, &PassCx::default(), &body("2, 3, 4", "24"));
        changes(
            run,
            &PassCx::default(),
            &body("2, 1, 3", "6"),
            "prims.reshape prims.reshape prims.matmul prims.reshape",
        );
    }
}
