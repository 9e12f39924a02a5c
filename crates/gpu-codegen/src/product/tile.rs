//! The description of a tiled product, be it a matrix product or a convolution: axes that advance the addresses of two
//! operands, and how many elements of an operand one copy can read.
//!
//! Every axis has a stride in each operand. Those of `rows` advance the left operand alone, those of `cols` the right one,
//! `inner` and `batch` both. A convolution's axes also advance spatial coordinates, which must lie within the input. Not
//! here: the text of kernels (`tile_text`), and the choice of tile shapes (`tile_rule`).

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::{Along, BufId, Epilogue, Groups, Program};

/// One loop of a product.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// Number of iterations.
    pub(crate) extent: SymExpr,
    /// Strides in the left and in the right operand, in elements.
    pub(crate) steps: [SymExpr; 2],
    /// The spatial coordinate that it advances, and its step.
    pub(crate) space: Option<(usize, i64)>,
    /// The dimension of the result that it advances, and its step.
    pub(crate) result: Option<(usize, SymExpr)>,
}

impl Axis {
    fn is_one(&self) -> bool {
        self.extent == SymExpr::ONE
    }
}

/// A spatial coordinate, valid in `0..size`.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    /// Its value where every axis is 0.
    pub(crate) start: i64,
    /// The end of the valid range.
    pub(crate) size: SymExpr,
}

/// An operand: elements of a buffer's memory from `offset` on.
#[derive(Clone, Debug)]
pub(crate) struct TileOperand {
    pub(crate) buf: BufId,
    pub(crate) offset: SymExpr,
}

/// A product with its epilogue.
pub(crate) struct Product<'a> {
    pub(crate) program: &'a Program,
    pub(crate) epilogue: &'a Epilogue,
    /// Dtype of both operands; one that tiles support.
    pub(crate) dtype: DType,
    /// Whether it is a convolution's.
    pub(crate) is_convolution: bool,
    pub(crate) operands: [TileOperand; 2],
    pub(crate) batch: Vec<Axis>,
    pub(crate) rows: Vec<Axis>,
    pub(crate) cols: Vec<Axis>,
    pub(crate) inner: Vec<Axis>,
    /// The spatial coordinates of the left operand.
    pub(crate) spaces: Vec<Space>,
    /// Groups of rows, or of the depth. The batch is then that of the groups: it advances the right operand, or the result.
    pub(crate) groups: Option<&'a Groups>,
}

/// How copies read an operand's tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Vectors of this many elements along the inner dimension.
    AlongInner(i64),
    /// Vectors of this many elements along its rows.
    AlongRows(i64),
    /// Single elements, adjacent threads along the inner dimension.
    SingleInner,
    /// Single elements, adjacent threads along the rows.
    SingleRows,
}

impl Reading {
    /// Elements per copy.
    pub(crate) fn width(self) -> i64 {
        match self {
            Reading::AlongInner(w) | Reading::AlongRows(w) => w,
            Reading::SingleInner | Reading::SingleRows => 1,
        }
    }
    /// The name of the mode in the kernels' text.
    pub(crate) fn mode(self) -> &'static str {
        match self {
            Reading::AlongInner(_) => "ALONG_INNER",
            Reading::AlongRows(_) => "ALONG_ROWS",
            Reading::SingleInner => "SINGLE_INNER",
            Reading::SingleRows => "SINGLE_ROWS",
        }
    }
}

/// Number of points of a list of axes.
pub(crate) fn count(axes: &[Axis]) -> SymExpr {
    axes.iter().fold(SymExpr::ONE, |n, a| n * &a.extent)
}

/// Whether the value is provably a multiple of `n`.
pub(crate) fn is_multiple(e: &SymExpr, n: i64) -> bool {
    let (terms, constant) = e.terms();
    constant % n == 0 && terms.iter().all(|(factor, _)| factor % n == 0)
}

/// The value of a size; where it is symbolic, its value at capture.
pub(crate) fn hint(program: &Program, e: &SymExpr) -> i64 {
    let value = |a: &Atom| match a {
        Atom::Sym(id) => Some(program.symbols[*id].hint.unwrap_or(64)),
        _ => None,
    };
    e.eval(&value).unwrap_or(64)
}

/// The axes of one operand's address, outermost first, with adjacent axes merged where memory allows. Axes of the left
/// operand that advance a spatial coordinate are not merged.
pub(crate) fn merged(axes: &[Axis], side: usize) -> Vec<Axis> {
    let mut out: Vec<Axis> = Vec::new();
    for axis in axes.iter().filter(|a| !a.is_one()) {
        let placeless = |a: &Axis| side == 1 || a.space.is_none();
        match out.last_mut() {
            Some(outer)
                if placeless(outer)
                    && placeless(axis)
                    && outer.steps[side] == &axis.steps[side] * &axis.extent =>
            {
                outer.extent = &outer.extent * &axis.extent;
                outer.steps = axis.steps.clone();
            }
            _ => out.push(axis.clone()),
        }
    }
    if side == 1 {
        out.iter_mut().for_each(|a| a.space = None);
    }
    out
}

impl Product<'_> {
    /// The groups of rows.
    pub(crate) fn groups_of_rows(&self) -> Option<&Groups> {
        self.groups.filter(|g| g.along == Along::Rows)
    }

    /// The groups of the depth.
    pub(crate) fn groups_of_depth(&self) -> Option<&Groups> {
        self.groups.filter(|g| g.along == Along::Depth)
    }

    /// The number of products that a launch has tiles of: rows of all groups are those of one.
    pub(crate) fn entries(&self) -> SymExpr {
        if self.groups_of_rows().is_some() { SymExpr::ONE } else { count(&self.batch) }
    }

    /// Reorders the axes of rows and of the inner dimension so that the widest copies are possible: which axis is
    /// innermost is free.
    pub(crate) fn arrange(&mut self) {
        let bytes = self.dtype.size() as i64;
        let mut best: Option<(i64, Vec<Axis>, Vec<Axis>)> = None;
        for rows in innermost_orders(&self.rows) {
            for inner in innermost_orders(&self.inner) {
                self.rows.clone_from(&rows);
                self.inner.clone_from(&inner);
                let cost: i64 = [0, 1].iter().map(|&side| reading_cost(self.reading(side), bytes)).sum();
                if best.as_ref().is_none_or(|(least, ..)| cost < *least) {
                    best = Some((cost, rows.clone(), inner));
                }
            }
        }
        if let Some((_, rows, inner)) = best {
            (self.rows, self.inner) = (rows, inner);
        }
    }

    /// The axes of the rows of an operand's tiles.
    pub(crate) fn rows_of(&self, side: usize) -> &[Axis] {
        if side == 0 { &self.rows } else { &self.cols }
    }

    /// The best way to read an operand's tile.
    pub(crate) fn reading(&self, side: usize) -> Reading {
        let (rows, inner) = (merged(self.rows_of(side), side), merged(&self.inner, side));
        let single = if self.dtype.size() == 4 { 1 } else { 0 };
        // The depth of a group begins anywhere, and so do its rows.
        let along_inner = match self.groups_of_depth() {
            None => self.width(side, &inner, &rows).unwrap_or(0),
            Some(_) => 0,
        };
        let along_rows = match self.groups_of_rows() {
            Some(_) if side == 0 => 0,
            _ => self.width(side, &rows, &inner).unwrap_or(0),
        };
        if along_inner > 1 && along_inner >= along_rows {
            return Reading::AlongInner(along_inner);
        }
        if along_rows > 1 {
            return Reading::AlongRows(along_rows);
        }
        // Adjacent threads read adjacent elements along a contiguous axis, where there is one.
        let unit = |axes: &[Axis]| axes.last().is_some_and(|a| a.steps[side] == SymExpr::ONE);
        match (unit(&inner) || !unit(&rows), single) {
            (true, 1) => Reading::AlongInner(1),
            (false, 1) => Reading::AlongRows(1),
            (true, _) => Reading::SingleInner,
            (false, _) => Reading::SingleRows,
        }
    }

    /// Elements of the widest copy along the last of `along`; `None` where even 4 bytes are not possible.
    fn width(&self, side: usize, along: &[Axis], across: &[Axis]) -> Option<i64> {
        let (last, outer) = along.split_last()?;
        if last.steps[side] != SymExpr::ONE || (side == 0 && last.space.is_some()) {
            return None;
        }
        let bytes = self.dtype.size() as i64;
        let batch = self.batch.iter().filter(|a| !a.is_one());
        let others: Vec<&SymExpr> = outer
            .iter()
            .chain(across)
            .chain(batch)
            .map(|a| &a.steps[side])
            .chain([&last.extent, &self.operands[side].offset])
            .collect();
        // A coordinate's start is a part of the address; it is a multiple of an axis' step.
        [16, 8, 4]
            .into_iter()
            .map(|n| n / bytes)
            .find(|&w| w >= 1 && others.iter().all(|e| is_multiple(e, w)))
    }
}

/// The axes in all orders that differ in the innermost one, beginning with the given order.
fn innermost_orders(axes: &[Axis]) -> Vec<Vec<Axis>> {
    let mut out = vec![axes.to_vec()];
    for n in 0..axes.len().saturating_sub(1) {
        let mut order = axes.to_vec();
        let axis = order.remove(n);
        order.push(axis);
        out.push(order);
    }
    out
}

/// Copies per 16 bytes; single elements cost the most.
fn reading_cost(reading: Reading, bytes: i64) -> i64 {
    match reading {
        Reading::AlongInner(w) | Reading::AlongRows(w) => 16 / (w * bytes),
        Reading::SingleInner | Reading::SingleRows => 64,
    }
}
