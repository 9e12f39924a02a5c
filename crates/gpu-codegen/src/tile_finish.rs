//! The epilogue of a tiled product: several neighbouring columns at once where memory lies along the columns, so that
//! what the epilogue reads and writes moves in vectors.

use std::collections::BTreeMap;
use std::fmt::Write;

use ir_core::{Atom, SymExpr};
use kernel_ir::{BufId, Inst, InstKind, LoopBounds, StoreMode};

use crate::GenError;
use crate::body::{BodyWriter, Placed};
use crate::template::EpilogueEffects;
use crate::tile::{Product, count, is_multiple};
use crate::tile_text::Writer;
use crate::types::memory_type;

/// How the points of a tile are taken.
pub(crate) struct Finish {
    /// Columns that a thread takes at once.
    pub(crate) lanes: i64,
    /// Whether neighbouring threads have neighbouring rows (one column each).
    pub(crate) rows_first: bool,
    /// Buffers that are read or written as vectors: the address of the first lane, over the loop variables of
    /// [`Lanes::address`].
    vectors: BTreeMap<BufId, SymExpr>,
}

/// The loop variable of the result that runs over lanes.
struct Lanes<'a> {
    product: &'a Product<'a>,
    /// The dimension of the result along which columns lie.
    var: usize,
    count: i64,
}

impl Lanes<'_> {
    /// The variable that counts groups of lanes; the next one is the lane within.
    fn group(&self) -> u32 {
        self.product.epilogue.ranges.len() as u32
    }

    /// The address of lane 0 of an access whose lanes are neighbours in memory, aligned.
    fn address(&self, buf: BufId, index: &[SymExpr]) -> Option<SymExpr> {
        if index.iter().any(|e| e.any_leaf(|a| matches!(a, Atom::Value(_)))) {
            return None;
        }
        let ranges = &self.product.epilogue.ranges;
        let (group, lane) = (self.group(), self.group() + 1);
        let count = SymExpr::from_i64(self.count);
        let whole = &count * SymExpr::loop_var(group) + SymExpr::loop_var(lane);
        let address = self.product.program.buffers[buf].address(index).subst(&|a| match a {
            Atom::Loop(n) if *n as usize == self.var => Some(whole.clone()),
            // A dimension of one point stands at 0.
            Atom::Loop(n) if ranges.get(*n as usize) == Some(&SymExpr::ONE) => Some(SymExpr::ZERO),
            _ => None,
        });
        let groups = ranges[self.var].floor_div(&count);
        let extents: Vec<SymExpr> = ranges.iter().cloned().chain([groups, count]).collect();
        let symbols = self.product.program.bounds();
        let address = address.simplify(&LoopBounds { extents: &extents, symbols: &symbols });
        let (coef, rest) = address.affine_in(&Atom::Loop(lane))?;
        (coef == SymExpr::ONE && is_multiple(&rest, self.count)).then_some(rest)
    }
}

impl Finish {
    /// The best way for a product's epilogue; tiles are multiples of eight columns.
    pub(crate) fn of(product: &Product<'_>, tile: (i64, i64)) -> Finish {
        let plain = |rows_first| Finish { lanes: 1, rows_first, vectors: BTreeMap::new() };
        let [axis] = &product.cols[..] else { return plain(false) };
        let Some((var, step)) = &axis.result else { return plain(false) };
        let stores: Vec<(BufId, &[SymExpr])> =
            product.epilogue.insts.iter().filter_map(plain_store).collect();
        let Some(&(main, index)) = stores.first() else { return plain(false) };
        let widest = product.program.buffers[main].dtype.size().max(1) as i64;
        for count in [(16 / widest).min(8), 4] {
            let lanes = Lanes { product, var: *var, count };
            let fits = count >= 4
                && *step == SymExpr::ONE
                && is_multiple(&axis.extent, count)
                && tile.1 % count == 0;
            if fits && lanes.address(main, index).is_some() {
                return Finish { lanes: count, rows_first: false, vectors: vectors(&lanes) };
            }
        }
        plain(along_rows(product, main, index))
    }

    /// Statements that run the epilogue for `row`, columns `col…` and the batch's numbers `g0…`, with sums in `sum`.
    pub(crate) fn text(&self, w: &mut Writer<'_>) -> Result<String, GenError> {
        let product = w.product;
        let epilogue = product.epilogue;
        let rank = epilogue.ranges.len();
        let mut out = w.unravel(&product.rows, "m", "row");
        out.push_str(&w.unravel(&product.cols, "n", "col"));
        let moving = product.cols.first().and_then(|a| a.result.as_ref()).map(|r| r.0);
        for v in 0..rank {
            let value = self.variable(w, v);
            // The lanes' variable is counted within the loop over lanes.
            let name = if moving == Some(v) { format!("lane0_{v}") } else { format!("i{v}") };
            let _ = writeln!(out, "const idx {name} = {value};");
        }
        let mut extents: Vec<SymExpr> = epilogue.ranges.to_vec();
        if let Some(v) = moving {
            let _ = writeln!(out, "const idx i{rank} = lane0_{v} / LANES;");
            let lanes = SymExpr::from_i64(self.lanes);
            extents.extend([epilogue.ranges[v].floor_div(&lanes), lanes]);
        }
        let wide = BodyWriter {
            program: product.program,
            extents: &extents,
            prefix: "e",
            guard: None,
            store_guard: None,
        };
        let (mut after, mut placed) = (String::new(), Placed::new());
        for (n, (&buf, address)) in self.vectors.iter().enumerate() {
            let memory = w.uses.memory(product.program.root(buf));
            let ty = memory_type(product.program.buffers[buf].dtype)?;
            let address = wide.expr(address, &mut w.uses);
            let vector = format!("Vec<{ty}, LANES>");
            let has =
                |found: fn(&Inst) -> Option<BufId>| epilogue.insts.iter().any(|i| found(i) == Some(buf));
            let _ = match has(load_of) {
                true => writeln!(out, "{vector} x{n} = *(const {vector} *)({memory} + ({address}));"),
                false => writeln!(out, "{vector} x{n};"),
            };
            if has(store_of) {
                let _ = writeln!(after, "*({vector} *)({memory} + ({address})) = x{n};");
            }
            placed.insert(buf, format!("x{n}.v[u]"));
        }
        let lane = moving.map_or(String::new(), |v| format!("const idx i{v} = lane0_{v} + u;\n"));
        let narrow = BodyWriter { extents: &epilogue.ranges, ..wide };
        let body = narrow.write_placed(
            &epilogue.insts,
            &EpilogueEffects { result: "result" },
            &mut w.uses,
            &placed,
        )?;
        let _ = write!(
            out,
            "#pragma unroll\nfor (int u = 0; u < LANES; ++u) {{\n{lane}const float result = sum[u];\n{body}}}\n{after}"
        );
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

/// The buffers all of whose accesses are the same vector.
fn vectors(lanes: &Lanes<'_>) -> BTreeMap<BufId, SymExpr> {
    let program = lanes.product.program;
    let mut found: BTreeMap<BufId, Option<SymExpr>> = BTreeMap::new();
    for inst in &lanes.product.epilogue.insts {
        let (buf, address) = match &inst.kind {
            InstKind::Load { buf, index, mask: None } => (*buf, lanes.address(*buf, index)),
            InstKind::Store { buf, index, mask: None, mode: StoreMode::Write, .. } => {
                (*buf, lanes.address(*buf, index))
            }
            InstKind::Load { buf, .. } | InstKind::Store { buf, .. } => (*buf, None),
            _ => continue,
        };
        let known = found.entry(buf).or_insert_with(|| address.clone());
        if *known != address {
            *known = None;
        }
    }
    // Two names of the same memory, one of them written, must not be held in registers side by side.
    let roots: Vec<(BufId, bool)> = lanes
        .product
        .epilogue
        .insts
        .iter()
        .filter_map(|i| store_of(i).map(|b| (b, true)).or(load_of(i).map(|b| (b, false))))
        .collect();
    let alone = |buf: BufId| {
        let same = |other: BufId| other != buf && program.root(other) == program.root(buf);
        let written = roots.iter().any(|(b, w)| *w && (*b == buf || same(*b)));
        !(written && roots.iter().any(|(b, _)| same(*b)))
    };
    found.into_iter().filter_map(|(buf, at)| at.filter(|_| alone(buf)).map(|at| (buf, at))).collect()
}

fn plain_store(inst: &Inst) -> Option<(BufId, &[SymExpr])> {
    match &inst.kind {
        InstKind::Store { buf, index, mask: None, mode: StoreMode::Write, .. } => Some((*buf, index)),
        _ => None,
    }
}

fn store_of(inst: &Inst) -> Option<BufId> {
    if let InstKind::Store { buf, .. } = &inst.kind { Some(*buf) } else { None }
}

fn load_of(inst: &Inst) -> Option<BufId> {
    if let InstKind::Load { buf, .. } = &inst.kind { Some(*buf) } else { None }
}

/// Whether neighbouring rows are neighbours in memory and neighbouring columns are not.
fn along_rows(product: &Product<'_>, buf: BufId, index: &[SymExpr]) -> bool {
    let address = product.program.buffers[buf].address(index);
    let unit = |axis: Option<&crate::tile::Axis>| {
        let Some((var, step)) = axis.and_then(|a| a.result.as_ref()) else { return false };
        let coef = address.affine_in(&Atom::Loop(*var as u32)).map(|(coef, _)| coef * step);
        coef == Some(SymExpr::ONE)
    };
    let innermost = product.rows.iter().rev().find(|a| a.extent != SymExpr::ONE);
    unit(innermost) && !unit(product.cols.first()) && count(&product.rows) != SymExpr::ONE
}
