//! Factors of a product as the copy engine reads them: which ones it can, and the tensor map of each.
//!
//! A factor is one dimension of rows, one of inner points and those of the batch that move it. One of the first two lies
//! together in memory: 128 bytes of it are a line of a box. Not here: the text of kernels (`tma_text`).

use ir_core::{DType, SymExpr};
use kernel_ir::Program;

use crate::TensorMap;
use crate::product::tile::{Axis, Product, count, is_multiple, merged};

/// Bytes of a line of a box: what the swizzle works on.
const LINE: i64 = 128;
/// What addresses and strides must be multiples of.
pub(crate) const GRAIN: i64 = 16;
/// Dimensions of a tensor map at most.
const MAX_DIMENSIONS: usize = 5;
/// The largest size of a dimension whose coordinates surely are 32-bit numbers, with a tile beyond its end.
const MAX_POINTS: i64 = i32::MAX as i64 - 512;

/// How a factor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Major {
    /// Inner points lie together.
    Inner,
    /// Rows lie together; of 16-bit floats alone.
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

/// Inner points of a stage.
pub(crate) fn depth(dtype: DType) -> i64 {
    LINE / dtype.size().max(1) as i64
}

/// How the copy engine reads a factor; `None` where it cannot.
pub(crate) fn major(product: &Product<'_>, side: usize) -> Option<Major> {
    let (row, inner) = lines(product, side)?;
    let grain = GRAIN / product.dtype.size().max(1) as i64;
    let aligned = |e: &SymExpr| is_multiple(e, grain);
    let batch = moving(product, side);
    let one = |axis: &Option<Axis>| axis.as_ref().is_none_or(|a| a.steps[side] == SymExpr::ONE);
    let rest = aligned(&product.factors[side].offset)
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

/// The one axis of rows (none: a single row) and the one of inner points of a factor that moves no coordinate in space.
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

/// Whether a size surely is no 0 and its coordinates fit 32 bits; of one without a known end it is taken that they do.
pub(crate) fn countable(program: &Program, e: &SymExpr) -> bool {
    let (low, high) = e.range(&program.bounds());
    low.is_some_and(|n| n >= 1) && high.is_none_or(|n| n <= MAX_POINTS)
}

/// The axes of the batch that move a factor.
pub(crate) fn moving(product: &Product<'_>, side: usize) -> Vec<usize> {
    let moves = |a: &Axis| a.extent != SymExpr::ONE && a.steps[side] != SymExpr::ZERO;
    (0..product.batch.len()).filter(|d| moves(&product.batch[*d])).collect()
}

/// The tensor map of a factor whose boxes have so many rows, and how it lies.
pub(crate) fn map(product: &Product<'_>, side: usize, rows: i64) -> Option<(TensorMap, Major)> {
    let major = major(product, side)?;
    let (row, inner) = lines(product, side)?;
    let grain = SymExpr::from_i64(GRAIN / product.dtype.size().max(1) as i64);
    // A single row has no step; any that the driver takes will do.
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
    let factor = &product.factors[side];
    let map = TensorMap {
        buf: product.program.root(factor.buf),
        dtype: product.dtype,
        offset: factor.offset.clone(),
        sizes,
        strides,
        window,
    };
    Some((map, major))
}
