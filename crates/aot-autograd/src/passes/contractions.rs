//! Products of matrices that are written as a product of broadcast tensors and its sum, as state-space models and old attention have them:
//!
//! ```text
//! sum(a[…, m, 1, k] * b[…, 1, n, k], over k)  =  a · bᵀ
//! ```
//!
//! A loop reads both operands for every product, a kernel of matrices for a tile of results at once. The terms are the same, in another order.
//! Options that say how products of matrices are computed (`tf32`) hold for them. Operands that are smaller in no dimension, and few rows or
//! columns, stay sums. So do 16-bit floats, whose products are rounded.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::ScalarOp;
use prims::{Builder, OpError};

use super::matching::{def, sizes, through};
use super::rewrite::{Rule, Site, apply};
use super::{PassCx, Stats};

const RULES: &[Rule] = &[contraction];

/// A product of matrices has this many rows and columns at least.
const LEAST: i64 = 16;
/// And sums so many terms.
const LEAST_TERMS: i64 = 8;

/// Finds every such sum.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, RULES)
}

/// The dimensions of a product, by what has them. Dimensions of size 1 are in none.
#[derive(Default)]
struct Dims {
    both: Vec<usize>,
    left: Vec<usize>,
    right: Vec<usize>,
    summed: Vec<usize>,
}

fn contraction(b: &mut Builder<'_>, site: &Site<'_>) -> Result<Option<ValueId>, OpError> {
    if site.call.op.target != "prims.sum" || !matches!(site.meta.dtype, DType::F32 | DType::F64) {
        return Ok(None);
    }
    let Some((left, right, whole, dims)) = parts(b.graph(), site) else { return Ok(None) };
    let a = matrices(b, left, &whole, [&dims.both, &dims.left, &dims.summed])?;
    let c = matrices(b, right, &whole, [&dims.both, &dims.summed, &dims.right])?;
    let product = b.call1("prims.matmul", vec![a.into(), c.into()])?;
    let order: Vec<usize> = [&dims.both[..], &dims.left, &dims.right].concat();
    let split: Shape = order.iter().map(|d| whole[*d].clone()).collect();
    let product = b.reshape(product, &split)?;
    let mut back: Vec<usize> = (0..order.len()).collect();
    back.sort_by_key(|n| order[*n]);
    let product = b.permute(product, &back)?;
    b.reshape(product, &site.meta.sizes).map(Some)
}

/// The operands before they were broadcast, the sizes of their product, and what its dimensions are.
fn parts(graph: &Graph, site: &Site<'_>) -> Option<(ValueId, ValueId, Shape, Dims)> {
    let product = site.call.value("a").ok()?;
    let call = def(graph, product).filter(|c| c.op.scalar_op() == Some(ScalarOp::Mul))?;
    let [Arg::Value(x), Arg::Value(y)] = call.args else { return None };
    let whole: Shape = sizes(graph, product)?.iter().cloned().collect();
    let over = site.call.ints("dims").ok()?;
    let over = over.iter().map(|d| site.call.dim(*d, whole.len()).ok()).collect::<Option<Vec<usize>>>()?;
    let (x, y) = (unexpanded(graph, *x), unexpanded(graph, *y));
    let has = |v: ValueId, d: usize| {
        let own = sizes(graph, v)?;
        Some((d + own.len()).checked_sub(whole.len()).is_some_and(|d| own[d] != SymExpr::ONE))
    };
    let mut dims = Dims::default();
    for d in (0..whole.len()).filter(|d| whole[*d] != SymExpr::ONE) {
        match (over.contains(&d), has(x, d)?, has(y, d)?) {
            (true, true, true) => dims.summed.push(d),
            (false, true, true) => dims.both.push(d),
            (false, true, false) => dims.left.push(d),
            (false, false, true) => dims.right.push(d),
            _ => return None,
        }
    }
    // A size that is a symbol is taken for a large one.
    let size = |dims: &[usize]| dims.iter().map(|d| whole[*d].as_const().unwrap_or(LEAST)).product::<i64>();
    let gains = size(&dims.left) >= LEAST && size(&dims.right) >= LEAST && size(&dims.summed) >= LEAST_TERMS;
    (gains && site.reads_alone(product)).then_some((x, y, whole, dims))
}

fn unexpanded(graph: &Graph, v: ValueId) -> ValueId {
    through(graph, v, "prims.expand").unwrap_or(v)
}

/// An operand with its dimensions in three groups, each joined to one; the first is left out where it has none.
fn matrices(
    b: &mut Builder<'_>,
    v: ValueId,
    whole: &[SymExpr],
    groups: [&Vec<usize>; 3],
) -> Result<ValueId, OpError> {
    let order = groups.map(|g| g.as_slice()).concat();
    let mut own = order.clone();
    own.sort_unstable();
    let kept: Shape = own.iter().map(|d| whole[*d].clone()).collect();
    let v = b.reshape(v, &kept)?;
    let places: Vec<usize> = order.iter().map(|d| own.iter().filter(|o| *o < d).count()).collect();
    let v = b.permute(v, &places)?;
    let joined = |dims: &Vec<usize>| dims.iter().fold(SymExpr::ONE, |n, d| n * &whole[*d]);
    let [batch, rows, columns] = groups.map(joined);
    let mut sizes: Shape = [rows, columns].into_iter().collect();
    if !groups[0].is_empty() {
        sizes.insert(0, batch);
    }
    b.reshape(v, &sizes)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    const BODY: &str = "%a: f32[2, 16, 3, 8] = input \"a\"
%b: f32[2, 20, 3, 8] = input \"b\"

%ar: f32[2, 16, 1, 3, 8] = prims.reshape(%a, [2, 16, 1, 3, 8])
%br: f32[2, 1, 20, 3, 8] = prims.reshape(%b, [2, 1, 20, 3, 8])
%ae: f32[2, 16, 20, 3, 8] = prims.expand(%ar, [2, 16, 20, 3, 8])
%be: f32[2, 16, 20, 3, 8] = prims.expand(%br, [2, 16, 20, 3, 8])
%m: f32[2, 16, 20, 3, 8] = prims.mul(%ae, %be)
%s: f32[2, 16, 20, 3] = prims.sum(%m, [4])";

    #[test]
    fn with_a_batch_of_two_dimensions() {
        let views = "prims.reshape prims.permute prims.reshape";
        let prims = format!("prims.reshape prims.reshape {views} {views} prims.matmul {views}");
        changes(
            run,
            &PassCx::default(),
            &format!("{BODY}\nreturn %s"),
            prims.trim_end_matches(" prims.reshape"),
        );
    }

    #[test]
    fn products_that_something_else_reads_stay() {
        assert_unchanged(run, &PassCx::default(), &format!("{BODY}\nreturn %s\nreturn %m"));
    }

    #[test]
    fn few_columns_stay() {
        let body = BODY.replace("20", "15");
        assert_unchanged(run, &PassCx::default(), &format!("{body}\nreturn %s"));
    }

    #[test]
    fn a_sum_over_what_one_operand_lacks_stays() {
        let body =
            BODY.replace("f32[2, 16, 20, 3] = prims.sum(%m, [4])", "f32[2, 20, 3, 8] = prims.sum(%m, [1])");
        assert_unchanged(run, &PassCx::default(), &format!("{body}\nreturn %s"));
    }
}
