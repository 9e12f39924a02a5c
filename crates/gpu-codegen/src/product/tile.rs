//! What a tiled product is: axes that move the addresses of two factors, whether a matrix product or a convolution, and
//! how its factors can be read several elements at once.
//!
//! Every axis says how far a step of it goes in each factor's memory. Those of `rows` move the left factor alone, those of
//! `cols` the right one, `inner` and `batch` both. A convolution's axes also move coordinates that must lie within the
//! input. Not here: the text of kernels (`tile_text`), which shapes of tiles there are (`tile_rule`).

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::{BufId, Epilogue, Program};

/// One loop of a product.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    /// How often.
    pub(crate) extent: SymExpr,
    /// Elements that a step goes in the left and in the right factor.
    pub(crate) steps: [SymExpr; 2],
    /// The spatial coordinate that it moves, and by how much.
    pub(crate) space: Option<(usize, i64)>,
    /// The dimension of the result that it moves, and by how much.
    pub(crate) result: Option<(usize, SymExpr)>,
}

impl Axis {
    fn is_one(&self) -> bool {
        self.extent == SymExpr::ONE
    }
}

/// A spatial coordinate: valid from 0 to below `size`.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    /// Its value where every axis is at 0.
    pub(crate) start: i64,
    /// Where it ends.
    pub(crate) size: SymExpr,
}

/// A factor: elements of a buffer's memory from `offset` on.
#[derive(Clone, Debug)]
pub(crate) struct Factor {
    pub(crate) buf: BufId,
    pub(crate) offset: SymExpr,
}

/// A product and what becomes of it.
pub(crate) struct Product<'a> {
    pub(crate) program: &'a Program,
    pub(crate) epilogue: &'a Epilogue,
    /// Dtype of both factors: one that tiles are made for.
    pub(crate) dtype: DType,
    pub(crate) factors: [Factor; 2],
    pub(crate) batch: Vec<Axis>,
    pub(crate) rows: Vec<Axis>,
    pub(crate) cols: Vec<Axis>,
    pub(crate) inner: Vec<Axis>,
    /// Of the left factor.
    pub(crate) spaces: Vec<Space>,
}

/// How a factor's tile is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Chunks of so many elements along the inner dimension.
    AlongInner(i64),
    /// Chunks of so many elements along its rows.
    AlongRows(i64),
    /// Element by element, neighbouring threads along the inner dimension.
    SingleInner,
    /// Element by element, neighbouring threads along the rows.
    SingleRows,
}

impl Reading {
    /// Elements of a copy.
    pub(crate) fn width(self) -> i64 {
        match self {
            Reading::AlongInner(w) | Reading::AlongRows(w) => w,
            Reading::SingleInner | Reading::SingleRows => 1,
        }
    }
    /// The name in the kernels' text.
    pub(crate) fn mode(self) -> &'static str {
        match self {
            Reading::AlongInner(_) => "ALONG_INNER",
            Reading::AlongRows(_) => "ALONG_ROWS",
            Reading::SingleInner => "SINGLE_INNER",
            Reading::SingleRows => "SINGLE_ROWS",
        }
    }
}

/// The number of points of axes.
pub(crate) fn count(axes: &[Axis]) -> SymExpr {
    axes.iter().fold(SymExpr::ONE, |n, a| n * &a.extent)
}

/// Whether the value is surely a multiple of `n`.
pub(crate) fn is_multiple(e: &SymExpr, n: i64) -> bool {
    let (terms, constant) = e.terms();
    constant % n == 0 && terms.iter().all(|(factor, _)| factor % n == 0)
}

/// A size's number, by the sizes at capture where it is symbolic.
pub(crate) fn hint(program: &Program, e: &SymExpr) -> i64 {
    let value = |a: &Atom| match a {
        Atom::Sym(id) => Some(program.symbols[*id].hint.unwrap_or(64)),
        _ => None,
    };
    e.eval(&value).unwrap_or(64)
}

/// The axes of one factor's address, outermost first, neighbours made one where memory allows. Axes that move a spatial
/// coordinate stay alone in the left factor.
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
    /// Puts the axes of rows and of the inner dimension into the order in which the factors are read in the largest
    /// pieces: which axis is innermost is free.
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

    /// The rows of a factor's tiles.
    pub(crate) fn rows_of(&self, side: usize) -> &[Axis] {
        if side == 0 { &self.rows } else { &self.cols }
    }

    /// How a factor is best read.
    pub(crate) fn reading(&self, side: usize) -> Reading {
        let (rows, inner) = (merged(self.rows_of(side), side), merged(&self.inner, side));
        let single = if self.dtype.size() == 4 { 1 } else { 0 };
        let along_inner = self.width(side, &inner, &rows).unwrap_or(0);
        let along_rows = self.width(side, &rows, &inner).unwrap_or(0);
        if along_inner > 1 && along_inner >= along_rows {
            return Reading::AlongInner(along_inner);
        }
        if along_rows > 1 {
            return Reading::AlongRows(along_rows);
        }
        // Neighbouring threads read neighbours where there are any.
        let unit = |axes: &[Axis]| axes.last().is_some_and(|a| a.steps[side] == SymExpr::ONE);
        match (unit(&inner) || !unit(&rows), single) {
            (true, 1) => Reading::AlongInner(1),
            (false, 1) => Reading::AlongRows(1),
            (true, _) => Reading::SingleInner,
            (false, _) => Reading::SingleRows,
        }
    }

    /// Elements of the largest copy along the last of `along`; `None` where there is none of 4 bytes.
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
            .chain([&last.extent, &self.factors[side].offset])
            .collect();
        // A coordinate's start goes into the address too; it is a multiple of an axis' step.
        [16, 8, 4]
            .into_iter()
            .map(|n| n / bytes)
            .find(|&w| w >= 1 && others.iter().all(|e| is_multiple(e, w)))
    }
}

/// The axes with each of them innermost in turn, the order as it is first.
fn innermost_orders(axes: &[Axis]) -> Vec<Vec<Axis>> {
    let mut out = vec![axes.to_vec()];
    for n in 0..axes.len().saturating_sub(1) {
        let mut turned = axes.to_vec();
        let axis = turned.remove(n);
        turned.push(axis);
        out.push(turned);
    }
    out
}

/// Copies per 16 bytes; single elements that stand in the way of everything else cost the most.
fn reading_cost(reading: Reading, bytes: i64) -> i64 {
    match reading {
        Reading::AlongInner(w) | Reading::AlongRows(w) => 16 / (w * bytes),
        Reading::SingleInner | Reading::SingleRows => 64,
    }
}
