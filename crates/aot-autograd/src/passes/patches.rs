//! Convolutions whose windows do not overlap, which cut an image into patches, become matrix products. What belongs to a
//! convolution (padding, factors of its channels) has been folded into it before.

use fx_ir::{Graph, ValueId};
use ir_core::{Shape, SymExpr};
use prims::{Builder, Call, OpError};

use super::rewrite::{Site, apply};
use super::{PassCx, Stats};

/// Applies the rule.
pub(super) fn run(graph: &mut Graph, cx: &PassCx) -> Stats {
    apply(graph, cx, &[patches_into_product])
}

/// Fewest points of a window of which the product is worth the copy of the input that reorders its patches.
const PATCH: i64 = 16;

/// The number of windows along each spatial dimension, and their extents, of a convolution whose windows cover its input
/// without overlap.
fn patches(b: &Builder<'_>, c: &Call<'_>) -> Result<Option<Vec<(i64, i64)>>, OpError> {
    let all = |name: &str, n: i64| c.ints(name).map(|v| v.iter().all(|x| *x == n));
    if c.bool("transposed")? || c.int("groups")? != 1 || !all("padding", 0)? || !all("dilation", 1)? {
        return Ok(None);
    }
    let (x, w) = (b.sizes(c.value("input")?)?, b.sizes(c.value("weight")?)?);
    let dims = c.ints("stride")?.into_iter().zip(x[2..].iter().zip(&w[2..]));
    let of_dim = |(stride, (size, window)): (i64, (&SymExpr, &SymExpr))| {
        let size = size.as_const().filter(|n| *n > 0 && n % stride == 0)?;
        (window.as_const() == Some(stride)).then_some((size / stride, stride))
    };
    let found: Option<Vec<(i64, i64)>> = dims.map(of_dim).collect();
    Ok(found.filter(|dims| dims.iter().map(|(_, window)| window).product::<i64>() >= PATCH))
}

/// `conv(x, w)` with windows side by side is the product of the patches `[n·…, c·window]` and the weight `[c·window, o]`.
fn patches_into_product(b: &mut Builder<'_>, site: &Site<'_>) -> Result<Option<ValueId>, OpError> {
    let c = &site.call;
    if c.op.target != "prims.conv" || !site.meta.dtype.is_float() {
        return Ok(None);
    }
    let Some(dims) = patches(b, c)? else { return Ok(None) };
    let (x, w) = (c.value("input")?, c.value("weight")?);
    let (x_sizes, w_sizes) = (b.sizes(x)?, b.sizes(w)?);
    let size = SymExpr::from_i64;
    // [n, c, count, window, …] to [n, count…, c, window…].
    let parts: Shape =
        x_sizes[..2].iter().cloned().chain(dims.iter().flat_map(|&(n, k)| [size(n), size(k)])).collect();
    let counts = (0..dims.len()).map(|d| 2 + 2 * d);
    let order: Vec<usize> =
        [0].into_iter().chain(counts.clone()).chain([1]).chain(counts.map(|d| d + 1)).collect();
    let rows = dims.iter().fold(x_sizes[0].clone(), |product, &(n, _)| product * size(n));
    let depth = w_sizes[1..].iter().fold(SymExpr::ONE, |product, n| product * n);
    let x = b.reshape(x, &parts)?;
    let x = b.permute(x, &order)?;
    let x = b.reshape(x, &Shape::from_iter([rows, depth.clone()]))?;
    let w = b.reshape(w, &Shape::from_iter([w_sizes[0].clone(), depth]))?;
    let w = b.permute(w, &[1, 0])?;
    let y = b.call1("prims.matmul", vec![x.into(), w.into()])?;
    // [n, count…, o] to [n, o, count…].
    let whole: Shape = [x_sizes[0].clone()]
        .into_iter()
        .chain(dims.iter().map(|&(n, _)| size(n)))
        .chain([w_sizes[0].clone()])
        .collect();
    let order: Vec<usize> = [0, whole.len() - 1].into_iter().chain(1..whole.len() - 1).collect();
    let y = b.reshape(y, &whole)?;
    b.permute(y, &order).map(Some)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_unchanged, changes};
    use super::*;

    #[test]
    fn patches_are_a_product() {
        let conv = "%y: f32[2, 5, 3, 2] = prims.conv(%x, %w, [4, 4], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)";
        let body = format!(
            "%x: f32[2, 3, 12, 8] = input \"x\"\n%w: f32[5, 3, 4, 4] = parameter \"w\"\n\n{conv}\nreturn %y"
        );
        let calls = "prims.reshape prims.permute prims.reshape prims.reshape prims.permute prims.matmul prims.reshape prims.permute";
        changes(run, &PassCx::training(), &body, calls);
        // Windows that leave a rest of the input.
        let rest = body.replace("12, 8", "13, 8");
        assert_unchanged(run, &PassCx::training(), &rest);
        // Windows that overlap.
        let overlapping =
            body.replace("[4, 4], [0", "[4, 2], [0").replace("3, 2] = prims.conv", "3, 3] = prims.conv");
        assert_unchanged(run, &PassCx::training(), &overlapping);
    }
}
