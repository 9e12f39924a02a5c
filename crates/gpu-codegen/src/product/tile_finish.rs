//! The epilogue of a tiled product. Where the result is contiguous along the columns, a thread takes several adjacent
//! columns, so that the epilogue's loads and stores are vectors.

use std::collections::BTreeMap;
use std::fmt::Write;

use ir_core::{Atom, SymExpr};
use kernel_ir::{BufId, Inst, InstKind, StoreMode};

use crate::GenError;
use crate::address::address;
use crate::product::tile::{Product, count, is_multiple};
use crate::product::tile_text::Writer;
use crate::text::lanes::{self, Lanes};

/// How threads take the points of a tile.
pub(crate) struct Finish {
    /// Columns per thread.
    pub(crate) lanes: i64,
    /// Whether adjacent threads have adjacent rows (one column each).
    pub(crate) rows_first: bool,
    /// Buffers that are accessed as vectors ([`Lanes::vectors`]).
    vectors: BTreeMap<BufId, SymExpr>,
    /// Those whose vectors are read elsewhere than in their memory, with the text of a vector.
    held: BTreeMap<BufId, String>,
}

impl Finish {
    /// The best choice for a product's epilogue; tiles are multiples of eight columns.
    pub(crate) fn of(product: &Product<'_>, tile: (i64, i64)) -> Finish {
        let plain =
            |rows_first| Finish { lanes: 1, rows_first, vectors: BTreeMap::new(), held: BTreeMap::new() };
        let [axis] = &product.cols[..] else { return plain(false) };
        let Some((var, step)) = &axis.result else { return plain(false) };
        let stores: Vec<(BufId, &[SymExpr])> =
            product.epilogue.insts.iter().filter_map(plain_store).collect();
        let Some(&(main, index)) = stores.first() else { return plain(false) };
        let widest = product.program.buffers[main].dtype.size().max(1) as i64;
        for count in [(16 / widest).min(8), 4, 2] {
            let lanes = Lanes { program: product.program, epilogue: product.epilogue, var: *var, count };
            let fits = count >= 2
                && *step == SymExpr::ONE
                && is_multiple(&axis.extent, count)
                && tile.1 % count == 0;
            if fits && lanes.address(main, index).is_some() {
                let vectors = lanes.vectors();
                return Finish { lanes: count, rows_first: false, vectors, held: BTreeMap::new() };
            }
        }
        plain(along_rows(product, main, index))
    }

    /// Whether threads access a buffer as vectors.
    pub(crate) fn is_vector(&self, buf: BufId) -> bool {
        self.vectors.contains_key(&buf)
    }

    /// Whether threads wait for memory at every point: the epilogue reads vectors there that differ from row to row.
    pub(crate) fn waits(&self, product: &Product<'_>) -> bool {
        let rows: Vec<usize> =
            product.rows.iter().filter_map(|axis| axis.result.as_ref()).map(|r| r.0).collect();
        let read = |inst: &Inst| match &inst.kind {
            InstKind::Load { buf, index, .. } if self.is_vector(*buf) && !self.held.contains_key(buf) => {
                let by_rows = |a: &Atom| matches!(a, Atom::Loop(v) if rows.contains(&(*v as usize)));
                index.iter().any(|e| e.any_leaf(by_rows))
            }
            _ => false,
        };
        product.epilogue.insts.iter().any(read)
    }

    /// Reads the vectors of a buffer by this text.
    pub(crate) fn hold(&mut self, buf: BufId, text: String) {
        self.held.insert(buf, text);
    }

    /// Returns statements that run the epilogue for `row`, columns `col…` and the batch indices `g0…`, with the sums in
    /// `sum`.
    pub(crate) fn text(&self, w: &mut Writer<'_>) -> Result<String, GenError> {
        let product = w.product;
        let epilogue = product.epilogue;
        let mut out = w.unravel(&product.rows, "m", "row");
        out.push_str(&w.unravel(&product.cols, "n", "col"));
        let moving = product.cols.first().and_then(|a| a.result.as_ref()).map(|r| r.0);
        for v in 0..epilogue.ranges.len() {
            let value = self.variable(w, v);
            // The variable along the lanes is incremented in the loop over lanes.
            let name = if moving == Some(v) { format!("lane0_{v}") } else { format!("i{v}") };
            let _ = writeln!(out, "const idx {name} = {value};");
        }
        out.push_str(&lanes::text(
            product.program,
            epilogue,
            (moving, self.lanes),
            (&self.vectors, &self.held),
            &mut w.uses,
        )?);
        Ok(out)
    }

    /// The value of a loop variable of the result at lane 0.
    fn variable(&self, w: &mut Writer<'_>, v: usize) -> String {
        let product = w.product;
        let mut terms = vec!["0".to_owned()];
        for (name, axes) in [("g", &product.batch), ("m", &product.rows), ("n", &product.cols)] {
            for (d, axis) in axes.iter().enumerate() {
                if let Some((_, step)) = axis.result.as_ref().filter(|r| r.0 == v) {
                    terms.push(format!("{name}{d} * {}", w.text(step)));
                }
            }
        }
        terms.join(" + ")
    }
}

fn plain_store(inst: &Inst) -> Option<(BufId, &[SymExpr])> {
    match &inst.kind {
        InstKind::Store { buf, index, mask: None, mode: StoreMode::Write, .. } => Some((*buf, index)),
        _ => None,
    }
}

/// Whether adjacent rows are contiguous in memory and adjacent columns are not.
fn along_rows(product: &Product<'_>, buf: BufId, index: &[SymExpr]) -> bool {
    let address = address(product.program, buf, index, &product.epilogue.ranges);
    let unit = |axis: Option<&crate::product::tile::Axis>| {
        let Some((var, step)) = axis.and_then(|a| a.result.as_ref()) else { return false };
        let coef = address.affine_in(&Atom::Loop(*var as u32)).map(|(coef, _)| coef * step);
        coef == Some(SymExpr::ONE)
    };
    let innermost = product.rows.iter().rev().find(|a| a.extent != SymExpr::ONE);
    unit(innermost) && !unit(product.cols.first()) && count(&product.rows) != SymExpr::ONE
}
