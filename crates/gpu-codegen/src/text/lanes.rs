//! Adjacent elements of a template's result at once: which accesses of its epilogue become vectors, and the epilogue's
//! text over lanes. The template chooses how many lanes a thread takes.

use std::collections::BTreeMap;
use std::fmt::Write;

use ir_core::{Atom, SymExpr};
use kernel_ir::{BufId, Epilogue, Inst, InstKind, LoopBounds, Program, StoreMode};

use crate::GenError;
use crate::product::tile::is_multiple;
use crate::text::body::{BodyWriter, Substitutions, Uses};
use crate::text::checks;
use crate::text::template::EpilogueEffects;
use crate::text::types::memory_type;

/// The loop variable of a result that runs over lanes.
pub(crate) struct Lanes<'a> {
    pub(crate) program: &'a Program,
    pub(crate) epilogue: &'a Epilogue,
    /// The dimension of the result.
    pub(crate) var: usize,
    pub(crate) count: i64,
}

impl Lanes<'_> {
    /// The variable that counts groups of lanes; the next variable is the lane within a group.
    fn group(&self) -> u32 {
        self.epilogue.ranges.len() as u32
    }

    /// The address of lane 0 of an access that is contiguous along the lanes and aligned; none where the last group of lanes is no whole one.
    pub(crate) fn address(&self, buf: BufId, index: &[SymExpr]) -> Option<SymExpr> {
        if checks::from_data(index) || !is_multiple(&self.epilogue.ranges[self.var], self.count) {
            return None;
        }
        let ranges = &self.epilogue.ranges;
        let (group, lane) = (self.group(), self.group() + 1);
        let count = SymExpr::from_i64(self.count);
        let whole = &count * SymExpr::loop_var(group) + SymExpr::loop_var(lane);
        let address = self.program.buffers[buf].address(index).subst(&|a| match a {
            Atom::Loop(n) if *n as usize == self.var => Some(whole.clone()),
            // The index of a dimension of size 1 is 0.
            Atom::Loop(n) if ranges.get(*n as usize) == Some(&SymExpr::ONE) => Some(SymExpr::ZERO),
            _ => None,
        });
        let groups = ranges[self.var].floor_div(&count);
        let extents: Vec<SymExpr> = ranges.iter().cloned().chain([groups, count]).collect();
        let symbols = self.program.bounds();
        let address = address.simplify(&LoopBounds { extents: &extents, symbols: &symbols });
        let (coef, rest) = address.affine_in(&Atom::Loop(lane))?;
        (coef == SymExpr::ONE && is_multiple(&rest, self.count)).then_some(rest)
    }

    /// The buffers whose accesses are all the same vector, with the address of lane 0 over the loop variables of [`text`].
    pub(crate) fn vectors(&self) -> BTreeMap<BufId, SymExpr> {
        let program = self.program;
        let mut found: BTreeMap<BufId, Option<SymExpr>> = BTreeMap::new();
        for inst in &self.epilogue.insts {
            let (buf, address) = match &inst.kind {
                InstKind::Load { buf, index, mask: None } => (*buf, self.address(*buf, index)),
                InstKind::Store { buf, index, mask: None, mode: StoreMode::Write, .. } => {
                    (*buf, self.address(*buf, index))
                }
                InstKind::Load { buf, .. } | InstKind::Store { buf, .. } => (*buf, None),
                _ => continue,
            };
            let known = found.entry(buf).or_insert_with(|| address.clone());
            if *known != address {
                *known = None;
            }
        }
        // Two aliases of the same memory, one of them written, must not both be held in registers.
        let roots: Vec<(BufId, bool)> = self
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
}

/// Returns statements that run an epilogue over the results `sum[LANES]`. The loop variables are in scope; of the one
/// along the lanes only its value at lane 0, `lane0_`. Of the vectors those in `held` are read by a text instead of from memory.
pub(crate) fn text(
    program: &Program,
    epilogue: &Epilogue,
    (moving, lanes): (Option<usize>, i64),
    (vectors, held): (&BTreeMap<BufId, SymExpr>, &BTreeMap<BufId, String>),
    uses: &mut Uses,
) -> Result<String, GenError> {
    let rank = epilogue.ranges.len();
    let mut out = String::new();
    let mut extents: Vec<SymExpr> = epilogue.ranges.to_vec();
    if let Some(v) = moving {
        let _ = writeln!(out, "const idx i{rank} = lane0_{v} / LANES;");
        let lanes = SymExpr::from_i64(lanes);
        extents.extend([epilogue.ranges[v].floor_div(&lanes), lanes]);
    }
    let wide = BodyWriter { program, extents: &extents, prefix: "e", guard: None, store_guard: None };
    let (mut after, mut placed) = (String::new(), Substitutions::new());
    for (n, (&buf, address)) in vectors.iter().enumerate() {
        let ty = memory_type(program.buffers[buf].dtype)?;
        let vector = format!("Vec<{ty}, LANES>");
        placed.insert(buf, format!("x{n}.v[u]"));
        if let Some(text) = held.get(&buf) {
            let _ = writeln!(out, "const {vector} x{n} = {text};");
            continue;
        }
        let (memory, address) = wide.place(program.root(buf), address, uses);
        let has = |found: fn(&Inst) -> Option<BufId>| epilogue.insts.iter().any(|i| found(i) == Some(buf));
        let _ = match has(load_of) {
            true => writeln!(out, "{vector} x{n} = *(const {vector} *)({memory} + ({address}));"),
            false => writeln!(out, "{vector} x{n};"),
        };
        if has(store_of) {
            let _ = writeln!(after, "*({vector} *)({memory} + ({address})) = x{n};");
        }
    }
    let lane = moving.map_or(String::new(), |v| format!("const idx i{v} = lane0_{v} + u;\n"));
    let narrow = BodyWriter { extents: &epilogue.ranges, ..wide };
    let body =
        narrow.write_substituted(&epilogue.insts, &EpilogueEffects { result: "result" }, uses, &placed)?;
    let _ = write!(
        out,
        "#pragma unroll\nfor (int u = 0; u < LANES; ++u) {{\n{lane}const float result = sum[u];\n{body}}}\n{after}"
    );
    Ok(out)
}

fn store_of(inst: &Inst) -> Option<BufId> {
    if let InstKind::Store { buf, .. } = &inst.kind { Some(*buf) } else { None }
}

fn load_of(inst: &Inst) -> Option<BufId> {
    if let InstKind::Load { buf, .. } = &inst.kind { Some(*buf) } else { None }
}
