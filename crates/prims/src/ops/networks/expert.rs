//! Products with one of several matrices, selected row by row: mixtures of experts.

use ir_core::{DType, SymExpr};
use kernel_ir::ReduceOp;

use crate::ops::shapes::shape::{self, Made, out};
use crate::{Builder, Call, OpDef};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    // Not ATen's: the custom operator that the `transformers` library exports its mixtures of experts with. Rows up to
    // `offs[0]` are multiplied with `weight[0]`, rows from there up to `offs[1]` with `weight[1]`, and so on; rows
    // after the last are zeros.
    composite!(
        "transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor",
        grouped
    ),
];

/// Every matrix multiplies all rows; each row keeps the product of its own. The cost is that of as many products as
/// there are matrices.
fn grouped(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, w) = (c.value("input")?, c.value("weight")?);
    let offs = b.cast(c.value("offs")?, DType::I64)?;
    let (sizes_x, sizes_w) = (b.sizes(x)?, b.sizes(w)?);
    let ([rows, _], [groups, _, columns]) = (&sizes_x[..], &sizes_w[..]) else {
        return Err(c.invalid("takes rows [m, k] and matrices [g, k, n]"));
    };
    let groups = shape::known(c, groups, "number of matrices")?;
    // A row's group is the number of ends that are not after it.
    let numbers = shape::iota_at(b, rows, 0, 2)?;
    let ends = b.unsqueeze(offs, 0)?;
    let passed = b.ge(numbers, ends)?;
    let passed = b.cast(passed, DType::I64)?;
    let group = b.reduce(ReduceOp::Sum, passed, &[1], true)?;
    let dtype = b.dtype(x)?;
    let full = [rows.clone(), columns.clone()];
    let mut result = b.full(&full, 0i64, dtype)?;
    for g in 0..groups {
        let matrix = shape::select(b, w, 0, SymExpr::from_i64(g))?;
        let y = b.call1("prims.matmul", vec![x.into(), matrix.into()])?;
        let own = b.eq(group, g)?;
        let own = b.expand(own, &full)?;
        result = b.select(own, y, result)?;
    }
    out(result)
}
