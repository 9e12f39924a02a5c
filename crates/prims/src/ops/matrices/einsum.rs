//! Einstein sums: operands are taken in pairs, each pair one batched matrix product.

use fx_ir::ValueId;
use ir_core::{DType, Shape, SymExpr, numel};
use kernel_ir::ReduceOp;

use crate::ops::shapes::diagonal::diagonal;
use crate::ops::shapes::shape::{Made, out};
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entry.
pub(in crate::ops) const OPS: &[OpDef] =
    &[composite!("aten::einsum(str equation, Tensor[] tensors, *, int[]? path=None) -> Tensor", einsum)
        .autocast(Autocast::LOWER_ON_GPU)];

/// A label: a letter, or a dimension of the ellipsis counted from its end.
type Label = u32;

/// Letters as they are; dimension `n` from the end of an ellipsis is beyond all letters.
fn ellipsis(n: usize) -> Label {
    0x1_0000 + n as u32
}

/// A tensor whose dimensions have these labels, each once.
struct Labelled {
    value: ValueId,
    labels: Vec<Label>,
}

/// The labels of one term; an ellipsis stands for what the letters leave of `rank` dimensions.
fn labels(c: &Call<'_>, term: &str, rank: usize) -> Result<Vec<Label>, OpError> {
    let letters = term.chars().filter(char::is_ascii_alphabetic).count();
    let dots = term.contains("...");
    let wild = rank.checked_sub(letters).filter(|n| dots || *n == 0);
    let wild = wild.ok_or_else(|| c.invalid(format!("`{term}` does not fit {rank} dimensions")))?;
    let mut list = Vec::new();
    let mut rest = term;
    while let Some(first) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            list.extend((0..wild).rev().map(ellipsis));
            rest = after;
            continue;
        }
        if !first.is_ascii_alphabetic() {
            return Err(c.invalid(format!("`{first}` in an equation")));
        }
        list.push(first as Label);
        rest = &rest[1..];
    }
    Ok(list)
}

/// The labels of the result: as given, or the ellipsis and then what occurs once, in alphabetical order.
fn result_labels(c: &Call<'_>, given: Option<&str>, terms: &[Vec<Label>]) -> Result<Vec<Label>, OpError> {
    let mut wild: Vec<Label> = terms.iter().flatten().copied().filter(|l| *l >= ellipsis(0)).collect();
    wild.sort_unstable();
    wild.dedup();
    wild.reverse();
    match given {
        Some(term) => {
            let letters = term.chars().filter(char::is_ascii_alphabetic).count();
            let count = if term.contains("...") { wild.len() } else { 0 };
            labels(c, term, letters + count)
        }
        None => {
            let count = |l: Label| terms.iter().flatten().filter(|x| **x == l).count();
            let mut once: Vec<Label> =
                terms.iter().flatten().copied().filter(|l| *l < ellipsis(0) && count(*l) == 1).collect();
            once.sort_unstable();
            Ok(wild.into_iter().chain(once).collect())
        }
    }
}

fn einsum(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let equation: String =
        c.opt_str("equation")?.unwrap_or("").chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&equation[..], None),
    };
    let mut tensors = c.values("tensors")?;
    let texts: Vec<&str> = left.split(',').collect();
    if texts.len() != tensors.len() {
        return Err(c.invalid(format!("`{equation}` has {} operands, not {}", texts.len(), tensors.len())));
    }
    let mut terms = Vec::new();
    for (text, &v) in texts.iter().zip(&tensors) {
        terms.push(labels(c, text, b.rank(v)?)?);
    }
    let result = result_labels(c, right, &terms)?;
    // A sum over one operand alone is that of `sum`, which adds integers in 64 bits; a product's is not.
    let summed = |l: &Label| !result.contains(l) && terms.iter().filter(|t| t.contains(l)).count() == 1;
    if terms.iter().flatten().any(summed) {
        for v in &mut tensors {
            if b.dtype(*v)?.is_integral() {
                *v = b.cast(*v, DType::I64)?;
            }
        }
    }
    let mut operands = Vec::new();
    for (&value, labels) in tensors.iter().zip(terms) {
        operands.push(without_repeats(b, c, Labelled { value, labels })?);
    }
    let mut rest = operands.into_iter();
    let mut all = rest.next().ok_or_else(|| c.invalid("has no operand"))?;
    let later: Vec<Labelled> = rest.collect();
    for n in 0..later.len() {
        let wanted = |l: Label| result.contains(&l) || later[n + 1..].iter().any(|o| o.labels.contains(&l));
        all = pair(b, all, &later[n], &wanted)?;
    }
    out(finish(b, c, all, &result)?)
}

/// Repeated labels are diagonals.
fn without_repeats(b: &mut Builder<'_>, c: &Call<'_>, mut x: Labelled) -> Result<Labelled, OpError> {
    while let Some((d1, d2)) = repeated(&x.labels) {
        x.value = diagonal(b, c, x.value, 0, d1, d2)?;
        let label = x.labels[d1];
        x.labels.remove(d2);
        x.labels.remove(d1);
        x.labels.push(label);
    }
    Ok(x)
}

fn repeated(labels: &[Label]) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|i| (i + 1..labels.len()).find(|&j| labels[i] == labels[j]).map(|j| (i, j)))
}

/// Sums the dimensions whose labels nothing uses.
fn drop_unwanted(
    b: &mut Builder<'_>,
    x: Labelled,
    wanted: &dyn Fn(Label) -> bool,
) -> Result<Labelled, OpError> {
    let dims: Vec<usize> = (0..x.labels.len()).filter(|&d| !wanted(x.labels[d])).collect();
    let value = b.reduce(ReduceOp::Sum, x.value, &dims, false)?;
    Ok(Labelled { value, labels: x.labels.into_iter().filter(|l| wanted(*l)).collect() })
}

/// `x` with exactly these labels in this order; missing ones have size 1.
fn arranged(b: &mut Builder<'_>, x: &Labelled, labels: &[Label]) -> Result<ValueId, OpError> {
    let order: Vec<usize> = labels.iter().filter_map(|l| x.labels.iter().position(|m| m == l)).collect();
    let moved = b.permute(x.value, &order)?;
    let mut sizes = b.sizes(moved)?.into_iter();
    let one = |l: &Label| if x.labels.contains(l) { sizes.next() } else { None };
    let sizes: Shape = labels.iter().map(one).map(|s| s.unwrap_or(SymExpr::ONE)).collect();
    b.reshape(moved, &sizes)
}

/// The product of two operands, summed over labels that nothing else wants.
fn pair(
    b: &mut Builder<'_>,
    x: Labelled,
    y: &Labelled,
    wanted: &dyn Fn(Label) -> bool,
) -> Result<Labelled, OpError> {
    let y = Labelled { value: y.value, labels: y.labels.clone() };
    let y_labels = y.labels.clone();
    let x_labels = x.labels.clone();
    let x = drop_unwanted(b, x, &|l| wanted(l) || y_labels.contains(&l))?;
    let y = drop_unwanted(b, y, &|l| wanted(l) || x_labels.contains(&l))?;
    let both: Vec<Label> = x.labels.iter().copied().filter(|l| y.labels.contains(l)).collect();
    let (batch, inner): (Vec<Label>, Vec<Label>) = both.into_iter().partition(|l| wanted(*l));
    let own = |z: &Labelled, other: &Labelled| -> Vec<Label> {
        z.labels.iter().copied().filter(|l| !other.labels.contains(l)).collect()
    };
    let (rows, columns) = (own(&x, &y), own(&y, &x));
    let join = |lists: [&[Label]; 3]| -> Vec<Label> { lists.concat() };
    let (lx, ly) = (join([&batch, &rows, &inner]), join([&batch, &inner, &columns]));
    let (vx, vy) = (arranged(b, &x, &lx)?, arranged(b, &y, &ly)?);
    let (sx, sy) = (b.sizes(vx)?, b.sizes(vy)?);
    // A dimension of size 1 broadcasts against its namesake.
    let wider = |a: &SymExpr, z: &SymExpr| if *a == SymExpr::ONE { z.clone() } else { a.clone() };
    let nb = batch.len();
    let sizes_b: Shape = (0..nb).map(|d| wider(&sx[d], &sy[d])).collect();
    let sizes_i: Shape = (0..inner.len()).map(|d| wider(&sx[nb + rows.len() + d], &sy[nb + d])).collect();
    let (sizes_r, sizes_c) = (&sx[nb..nb + rows.len()], &sy[nb + inner.len()..]);
    let full_x: Shape = sizes_b.iter().chain(sizes_r).chain(&sizes_i).cloned().collect();
    let full_y: Shape = sizes_b.iter().chain(&sizes_i).chain(sizes_c).cloned().collect();
    let (vx, vy) = (b.expand(vx, &full_x)?, b.expand(vy, &full_y)?);
    let vx = b.reshape(vx, &[numel(&sizes_b), numel(sizes_r), numel(&sizes_i)])?;
    let vy = b.reshape(vy, &[numel(&sizes_b), numel(&sizes_i), numel(sizes_c)])?;
    let xy = b.call1("prims.matmul", vec![vx.into(), vy.into()])?;
    let sizes: Shape = sizes_b.iter().chain(sizes_r).chain(sizes_c).cloned().collect();
    Ok(Labelled { value: b.reshape(xy, &sizes)?, labels: join([&batch, &rows, &columns]) })
}

fn finish(b: &mut Builder<'_>, c: &Call<'_>, x: Labelled, result: &[Label]) -> Result<ValueId, OpError> {
    let x = drop_unwanted(b, x, &|l| result.contains(&l))?;
    if let Some(missing) = result.iter().find(|l| !x.labels.contains(l) && **l < ellipsis(0)) {
        let letter = char::from_u32(*missing).unwrap_or('?');
        return Err(c.invalid(format!("the result has a label `{letter}` that no operand has")));
    }
    arranged(b, &x, result)
}
