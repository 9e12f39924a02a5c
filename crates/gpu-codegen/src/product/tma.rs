//! Operands of a product as the tensor memory accelerator reads them: which are supported, and the tensor map of each.
//!
//! An operand has one dimension of rows, one of inner points, and the batch dimensions that advance it. The rows or the
//! inner points are contiguous in memory: 128 bytes of them are a line of a box. Not here: the text of kernels
//! (`tma_text`).

use ir_core::{DType, SymExpr};
use kernel_ir::Program;

use crate::TensorMap;
use crate::product::tile::{Axis, Product, count, is_multiple, merged};

/// Bytes of a line of a box, the unit of the swizzle.
pub(crate) const LINE: i64 = 128;
/// The alignment of addresses and strides.
pub(crate) const GRAIN: i64 = 16;
/// Maximum number of dimensions of a tensor map.
pub(crate) const MAX_DIMENSIONS: usize = 5;
/// The largest size of a dimension whose coordinates, including a tile beyond its end, fit 32 bits.
const MAX_POINTS: i64 = i32::MAX as i64 - 512;

/// The major (contiguous) dimension of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Major {
    /// Inner points are contiguous (K-major).
    Inner,
    /// Rows are contiguous (M- or N-major); supported for 16-bit floats alone.
    Rows,
}

impl Major {
    /// The name in the kernels' text.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Major::Inner => "K_MAJOR",
            Major::Rows => "MN_MAJOR",
        }
    }
}

/// Inner points per stage.
pub(crate) fn depth(dtype: DType) -> i64 {
    LINE / dtype.size().max(1) as i64
}

/// The major dimension with which TMA reads an operand; `None` where it cannot.
pub(crate) fn major(product: &Product<'_>, side: usize) -> Option<Major> {
    let (row, inner) = lines(product, side)?;
    let grain = GRAIN / product.dtype.size().max(1) as i64;
    let aligned = |e: &SymExpr| is_multiple(e, grain);
    let batch = moving(product, side);
    let one = |axis: &Option<Axis>| axis.as_ref().is_none_or(|a| a.steps[side] == SymExpr::ONE);
    let rest = aligned(&product.operands[side].offset)
        && batch.iter().all(|d| aligned(&product.batch[*d].steps[side]))
        && batch.len() + 2 <= MAX_DIMENSIONS
        && [count(product.rows_of(side)), count(&product.inner)]
            .iter()
            .all(|e| countable(product.program, e));
    if !rest {
        return None;
    }
    if inner.steps[side] == SymExpr::ONE && row.as_ref().is_none_or(|r| aligned(&r.steps[side])) {
        return Some(Major::Inner);
    }
    (product.dtype.size() == 2 && row.is_some() && one(&row) && aligned(&inner.steps[side]))
        .then_some(Major::Rows)
}

/// The single axis of rows (`None` for a single row) and of inner points of an operand without spatial coordinates.
fn lines(product: &Product<'_>, side: usize) -> Option<(Option<Axis>, Axis)> {
    if !product.spaces.is_empty() {
        return None;
    }
    let rows = merged(product.rows_of(side), side);
    let row = match &rows[..] {
        [] => None,
        [row] => Some(row.clone()),
        _ => return None,
    };
    match &merged(&product.inner, side)[..] {
        [inner] => Some((row, inner.clone())),
        _ => None,
    }
}

/// Whether a size is provably not 0 and its coordinates fit 32 bits; sizes without a known bound are assumed to fit.
pub(crate) fn countable(program: &Program, e: &SymExpr) -> bool {
    let (low, high) = e.range(&program.bounds());
    low.is_some_and(|n| n >= 1) && high.is_none_or(|n| n <= MAX_POINTS)
}

/// The batch axes that advance an operand.
pub(crate) fn moving(product: &Product<'_>, side: usize) -> Vec<usize> {
    let moves = |a: &Axis| a.extent != SymExpr::ONE && a.steps[side] != SymExpr::ZERO;
    (0..product.batch.len()).filter(|d| moves(&product.batch[*d])).collect()
}

/// The tensor map of an operand with boxes of `rows` rows, and its major dimension.
pub(crate) fn map(product: &Product<'_>, side: usize, rows: i64) -> Option<(TensorMap, Major)> {
    let major = major(product, side)?;
    let (row, inner) = lines(product, side)?;
    let grain = SymExpr::from_i64(GRAIN / product.dtype.size().max(1) as i64);
    // The stride of a single row is arbitrary; this one is valid for the driver.
    let row_step =
        row.as_ref().map_or_else(|| &inner.extent.ceil_div(&grain) * &grain, |r| r.steps[side].clone());
    let row_count = row.map_or(SymExpr::ONE, |r| r.extent);
    let line = depth(product.dtype) as u32;
    let (mut sizes, mut strides, mut window) = match major {
        Major::Inner => (vec![inner.extent, row_count], vec![row_step], vec![line, rows as u32]),
        Major::Rows => {
            (vec![row_count, inner.extent.clone()], vec![inner.steps[side].clone()], vec![line, line])
        }
    };
    for d in moving(product, side) {
        sizes.push(product.batch[d].extent.clone());
        strides.push(product.batch[d].steps[side].clone());
        window.push(1);
    }
    let operand = &product.operands[side];
    let map = TensorMap {
        buf: product.program.root(operand.buf),
        dtype: product.dtype,
        offset: operand.offset.clone(),
        sizes,
        strides,
        window,
    };
    Some((map, major))
}
