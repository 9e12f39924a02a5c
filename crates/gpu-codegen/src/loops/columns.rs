//! Reductions whose outer points are contiguous in memory: channels-last statistics, sums over rows.
//!
//! A block takes up to 64 adjacent outer points (its columns) and a part of the inner points (its rows). A thread takes as
//! many columns as fit in 16 bytes and issues loads of several rows before it uses the first, which keeps the memory busy.
//! How blocks share a column and how the last one finishes it is described in `accumulate`.

use std::collections::BTreeMap;
use std::fmt::Write;

use ir_core::{Atom, SymExpr};
use kernel_ir::{BufId, InstKind, LoopKernel, Program, Stage, StoreMode};

use crate::address::address;
use crate::loops::accumulate::{Group, Reduction, groups, kept, made, read_back, scratch};
use crate::loops::moments::Pair;
use crate::loops::{LoopEffects, declare, divides, hint};
use crate::text::body::{BodyWriter, Substitutions, Uses};
use crate::text::index::{Numbers, divisible};
use crate::text::template::{assemble, unravel, volume};
use crate::text::types::memory_type;
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS, TICKETS, Target, Variant};

/// Threads per block.
const THREADS: i64 = 512;
/// Bytes of one vector access.
const WIDTH: i64 = 16;
/// Minimum bytes that adjacent threads access of a row, where there are enough columns.
const MIN_BYTES: i64 = 128;
/// Columns per block where a thread has one column.
const LANES: i64 = 32;
/// Blocks per multiprocessor where they reduce: the last block has to read a partial result of each.
const BLOCKS_EACH: i64 = 2;
/// The same where they only store.
const STORING_EACH: i64 = 16;
/// Minimum number of rows of a thread that reduces: combining threads takes longer than adding a few rows.
const MIN_ROWS: i64 = 4;
/// Minimum number of rows whose loads are in flight, where a narrower vector achieves that.
const IN_FLIGHT: i64 = 2;
/// Registers of a thread for its accumulators, what is the same in every row, and rows whose loads are in flight. Two blocks
/// on a multiprocessor leave 64 to a thread.
const MAX_REGISTERS: i64 = 38;
/// Maximum instructions of a body, times the columns and rows that one thread computes at once.
const MAX_TEXT: i64 = 1024;

/// A kernel that is computed by columns.
pub(crate) struct Columns<'a> {
    program: &'a Program,
    k: &'a LoopKernel,
    pairs: &'a [Pair],
    /// The outer dimension that is contiguous in memory.
    last: usize,
    /// Columns per thread.
    lanes: i64,
    /// Adjacent threads along the columns.
    across: i64,
    /// Number of blocks that share a column, for each stage.
    parts: Vec<i64>,
    /// Lanes of a wave.
    wave: i64,
}

/// Memory that a stage accesses contiguously along the columns: a thread accesses its part of a row as a vector.
struct VectorAccess {
    root: BufId,
    /// The buffers over it that the stage uses.
    buffers: Vec<BufId>,
    address: SymExpr,
    loaded: bool,
    stored: bool,
    /// Whether it is the same in every row; it is then loaded once.
    fixed: bool,
}

impl<'a> Columns<'a> {
    /// Returns `None` unless the longest stage is worth it. `k` has its dimensions collapsed.
    pub(crate) fn new(
        program: &'a Program,
        k: &'a LoopKernel,
        pairs: &'a [Pair],
        target: &Target,
    ) -> Option<Columns<'a>> {
        let last = k.outer.iter().rposition(|e| *e != SymExpr::ONE)?;
        let wave = target.lanes();
        let mut columns =
            Columns { program, k, pairs, last, lanes: 1, across: LANES, parts: Vec::new(), wave };
        columns.lanes = columns.widest();
        columns.across = (LANES / columns.lanes).max(MIN_BYTES / columns.bytes()).min(LANES);
        let points = hint(program, &volume(&k.outer)).max(1);
        while columns.across > 1 && columns.across / 2 * columns.lanes >= points {
            columns.across /= 2;
        }
        columns.parts = k.stages.iter().map(|s| columns.parts_of(s, points, target)).collect();
        Some(columns)
    }

    /// The widest choice of columns per thread: as many as 16 bytes hold of the widest dtype, if rows are aligned to that.
    fn widest(&self) -> i64 {
        let looped = || self.k.stages.iter().filter(|s| !s.inner.is_empty());
        let extent = self.k.outer[self.last].as_const();
        let fits = |lanes: &i64| {
            let rows = extent.is_some_and(|n| n % lanes == 0);
            let small = |w: &VectorAccess| self.program.buffers[w.root].dtype.size() as i64 * lanes <= WIDTH;
            let moves = |s| self.walked(s, *lanes).into_iter().filter(|w| !w.fixed);
            let mut walked = looped().flat_map(moves).peekable();
            let held = |s: &Stage| self.registers(s, *lanes, IN_FLIGHT) <= MAX_REGISTERS;
            rows && walked.peek().is_some() && walked.all(|w| small(&w)) && looped().all(held)
        };
        [16, 8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Bytes that a thread accesses of a row, of the narrowest dtype.
    fn bytes(&self) -> i64 {
        let looped = self.k.stages.iter().filter(|s| !s.inner.is_empty());
        let moved = looped.flat_map(|s| self.walked(s, self.lanes)).filter(|w| !w.fixed);
        let sizes = moved.map(|w| self.program.buffers[w.root].dtype.size() as i64);
        sizes.min().unwrap_or(4).max(1) * self.lanes
    }

    /// The memory of a stage that can be accessed as vectors of `lanes` columns.
    fn walked(&self, stage: &Stage, lanes: i64) -> Vec<VectorAccess> {
        let mut out: BTreeMap<BufId, Option<VectorAccess>> = BTreeMap::new();
        let extents: Vec<SymExpr> = self.k.outer.iter().chain(&stage.inner).cloned().collect();
        for inst in &stage.insts {
            let (buf, index, stores, plain) = match &inst.kind {
                InstKind::Load { buf, index, mask } => (*buf, index, false, mask.is_none()),
                InstKind::Store { buf, index, mask, mode, .. } => {
                    (*buf, index, true, mask.is_none() && *mode == StoreMode::Write)
                }
                _ => continue,
            };
            let root = self.program.root(buf);
            let address = address(self.program, buf, index, &extents);
            let same_type = self.program.buffers[buf].dtype == self.program.buffers[root].dtype;
            if !plain || !same_type || !self.is_contiguous(&address, lanes) {
                out.insert(root, None);
                continue;
            }
            match out.get_mut(&root) {
                None => {
                    let (loaded, stored) = (!stores, stores);
                    let inner = |l: &Atom| matches!(l, Atom::Loop(n) if *n as usize >= self.k.outer.len());
                    let fixed = !address.any_leaf(inner);
                    out.insert(
                        root,
                        Some(VectorAccess { root, buffers: vec![buf], address, loaded, stored, fixed }),
                    );
                }
                // What was stored is not read back from memory.
                Some(Some(w)) if w.address == address && (stores || !w.stored) => {
                    w.buffers.push(buf);
                    (w.loaded, w.stored) = (w.loaded || !stores, w.stored || stores);
                }
                Some(other) => *other = None,
            }
        }
        // What is stored and the same in every row is left to the body.
        out.into_values().flatten().filter(|w| !(w.fixed && w.stored)).collect()
    }

    /// Whether the address is contiguous along the columns and aligned to `lanes` for a thread's first column.
    fn is_contiguous(&self, address: &SymExpr, lanes: i64) -> bool {
        let Some((step, rest)) = address.affine_in(&Atom::Loop(self.last as u32)) else { return false };
        step == SymExpr::ONE && !rest.any_leaf(|l| matches!(l, Atom::Value(_))) && divisible(&rest, lanes)
    }

    /// The head of the loop over a thread's columns.
    fn each(&self) -> String {
        format!("#pragma unroll\nfor (int u = 0; u < {}; ++u) {{\n", self.lanes)
    }

    /// Number of a block's threads that take different rows.
    fn down(&self) -> i64 {
        THREADS / self.across
    }

    /// Columns per block.
    fn width(&self) -> i64 {
        self.across * self.lanes
    }

    /// Registers that hold values of a thread while it loads this many rows of this many columns at once.
    fn registers(&self, stage: &Stage, lanes: i64, rows: i64) -> i64 {
        let sums = made(stage, self.pairs).iter().map(|m| m.registers(&self.k.accs)).sum::<i64>() * lanes;
        let moves = self.walked(stage, lanes).into_iter().filter(|w| w.loaded).map(|w| {
            let bytes = self.program.buffers[w.root].dtype.size() as i64 * lanes;
            (bytes + 3) / 4 * if w.fixed { 1 } else { rows }
        });
        sums + moves.sum::<i64>()
    }

    /// Rows that a thread loads at once.
    fn rows(&self, stage: &Stage) -> i64 {
        if divides(stage) {
            // NVRTC 13.0 crashes where it unrolls some loops that divide their counter.
            return 1;
        }
        let text = stage.insts.len() as i64 * self.lanes;
        let fits =
            |rows: &i64| self.registers(stage, self.lanes, *rows) <= MAX_REGISTERS && rows * text <= MAX_TEXT;
        [8, 4, 2].into_iter().find(fits).unwrap_or(1)
    }

    /// Number of blocks that share a column in a stage.
    fn parts_of(&self, stage: &Stage, points: i64, target: &Target) -> i64 {
        if stage.inner.is_empty() {
            return 1;
        }
        let rows = hint(self.program, &volume(&stage.inner));
        let groups = (points + self.width() - 1) / self.width();
        let reduces = !made(stage, self.pairs).is_empty();
        let (each, least) = match reduces {
            true => (BLOCKS_EACH, MIN_ROWS),
            false => (STORING_EACH, self.rows(stage)),
        };
        let wanted = each * i64::from(target.multiprocessors) / groups;
        wanted.min(rows / (least * self.down())).max(1)
    }

    /// The maximum of `parts` over the stages.
    fn most_parts(&self) -> i64 {
        self.parts.iter().copied().max().unwrap_or(1)
    }

    /// Generates the kernels.
    pub(crate) fn generate(&self) -> Result<Variant, GenError> {
        let list = groups(self.program, self.k, &|n| self.parts[n]);
        let kernels = list.iter().map(|g| self.kernel(g, list.len() > 1)).collect::<Result<_, _>>()?;
        let scratch = if list.len() > 1 || self.most_parts() > 1 {
            scratch(self.k, &list, self.pairs)?
        } else {
            Vec::new()
        };
        Ok(Variant { name: format!("columns_{}", self.most_parts()), kernels, scratch })
    }

    /// Generates a group of stages as one kernel; `several` says that there are others.
    fn kernel(&self, group: &Group, several: bool) -> Result<Kernel, GenError> {
        let k = self.k;
        // A network has many of these that differ in their sizes alone.
        let mut numbers = Numbers::default();
        let parts = if group.parts > 1 { numbers.own(group.parts) } else { "1".into() };
        let mut uses = Uses { numbers: Some(numbers), ..Uses::default() };
        if several || group.parts > 1 {
            uses.scratch = vec!["u8"; k.accs.len()];
        }
        let head = BodyWriter {
            program: self.program,
            extents: &k.outer,
            prefix: "",
            guard: None,
            store_guard: None,
        };
        let points = volume(&k.outer);
        let count = head.expr(&points, &mut uses);
        let mut body = self.opening(group, &count, &parts)?;
        body.push_str(&unravel(&head, &k.outer, 0, "point", &mut uses));
        let _ = writeln!(body, "const idx first = i{};", self.last);
        body.push_str(&self.declared(group)?);
        for m in read_back(k, group, self.pairs) {
            let w = m.written(&k.accs)?;
            let from = format!("((const {} *)scratch{})[point + u]", w.ty, w.place);
            let (name, finalize) = (w.name, m.finalize("[u]"));
            let _ = writeln!(body, "{}{name}[u] = {from};\n{finalize}}}", self.each());
        }
        let kept = kept(k, group, self.pairs);
        for n in group.stages.clone() {
            body.push_str(&self.stage(&head, n, group, &kept, &mut uses)?);
        }
        body.push_str("}\n");
        let each = points.ceil_div(&SymExpr::from_i64(self.width()));
        let blocks = each.sym_min(&SymExpr::from_i64(MAX_BLOCKS));
        let blocks = [blocks, SymExpr::from_i64(group.parts), SymExpr::ONE];
        let launch = Launch { blocks, threads: THREADS as u32, shared: 0 };
        let mut kernel = assemble(self.program, ENTRY, &uses, launch, &body)?;
        // Registers for two blocks per multiprocessor: while one waits for memory, the other computes.
        let bounds = |more: &str| format!("__launch_bounds__({THREADS}{more})");
        kernel.source = kernel.source.replacen(&bounds(""), &bounds(", 2"), 1);
        Ok(kernel)
    }

    /// Returns statements that determine the columns and the part of a thread.
    fn opening(&self, group: &Group, count: &str, parts: &str) -> Result<String, GenError> {
        let (width, across, lanes) = (self.width(), self.across, self.lanes);
        let all = self.k.stages[group.stages.clone()].iter().flat_map(|s| made(s, self.pairs));
        let sizes =
            all.map(|m| Ok(m.written(&self.k.accs)?.bytes)).collect::<Result<Vec<i64>, GenError>>()?;
        let room = sizes.into_iter().max().unwrap_or(0) * THREADS.max(THREADS / self.wave * width);
        let memory = match room {
            0 => String::new(),
            _ => format!("__shared__ double shared_memory[{}];\n__shared__ u32 seen;\n", (room + 7) / 8),
        };
        let seen = if room == 0 { "__shared__ u32 seen;\n" } else { "" };
        Ok(format!(
            "{memory}{seen}const int lane = threadIdx.x % {across}, rank = threadIdx.x / {across};
const idx points = {count}, groups = (points + {width} - 1) / {width}, parts = groups > {TICKETS} ? 1 : {parts};
const idx part = blockIdx.y;
for (idx block = blockIdx.x; part < parts && block < groups; block += gridDim.x) {{
const idx column = block * {width}, p = column + lane * {lanes};
const int width = (int)imin<idx>({width}, points - column);
const bool here = p < points;
const idx point = here ? p : 0;
"
        ))
    }

    /// Declares the accumulators of a thread.
    fn declared(&self, group: &Group) -> Result<String, GenError> {
        let mut out = String::new();
        // One declaration per column, from the text of a single one.
        for line in declare(&self.k.accs)?.lines() {
            let Some((left, start)) = line.split_once(" = ") else { continue };
            let Some((ty, name)) = left.rsplit_once(' ') else { continue };
            let _ = writeln!(out, "{ty} {name}[{}];\n{}{name}[u] = {start}\n}}", self.lanes, self.each());
        }
        let looped = self.k.stages[group.stages.clone()].iter().flat_map(|s| made(s, self.pairs));
        for m in
            looped.chain(read_back(self.k, group, self.pairs)).filter(|m| matches!(m, Reduction::Moments(_)))
        {
            let w = m.written(&self.k.accs)?;
            let (ty, name, start) = (w.ty, w.name, w.start);
            let _ = writeln!(out, "{ty} {name}[{}];\n{}{name}[u] = {start};\n}}", self.lanes, self.each());
        }
        Ok(out)
    }

    fn stage(
        &self,
        head: &BodyWriter<'_>,
        n: usize,
        group: &Group,
        kept: &[Reduction],
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let stage = &self.k.stages[n];
        let prefix = format!("v{n}_");
        let extents: Vec<SymExpr> = self.k.outer.iter().chain(&stage.inner).cloned().collect();
        let writer = BodyWriter { extents: &extents, prefix: &prefix, ..*head };
        let effects = LoopEffects { accs: &self.k.accs, team: None, lane: "[u]", pairs: self.pairs };
        let lanes = format!("{}const idx i{} = first + u;\n", self.each(), self.last);
        if stage.inner.is_empty() {
            let text = writer.write(&stage.insts, &effects, uses)?;
            // The next stage reads what other threads of the block stored in this one.
            return Ok(format!("if (here && rank == 0) {{\n{lanes}{text}}}\n}}\nblock_sync();\n"));
        }
        let mut out = String::from("{\n");
        out.push_str(&self.looped(&writer, stage, &effects, (&lanes, group.parts), uses)?);
        let made = made(stage, self.pairs);
        let ends = group.parts > 1 && (!made.is_empty() || group.stages.len() > 1);
        if !made.is_empty() || ends {
            out.push_str(&self.combined(&made, ends.then_some(group.parts), kept, uses)?);
        }
        out.push_str("block_sync();\n}\n");
        Ok(out)
    }

    /// Returns the loop over the rows of a stage, which `parts` blocks share.
    fn looped(
        &self,
        writer: &BodyWriter<'_>,
        stage: &Stage,
        effects: &LoopEffects<'_>,
        (lanes, parts): (&str, i64),
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let (rows, down, outer) = (self.rows(stage), self.down(), self.k.outer.len());
        let count = writer.expr(&volume(&stage.inner), uses);
        let chunk = match (volume(&stage.inner).as_const(), volume(&self.k.outer).as_const()) {
            // The blocks need not divide.
            (Some(all), Some(points)) if parts == 1 || points <= self.width() * i64::from(TICKETS) => {
                uses.numbers.get_or_insert_default().own((all + parts - 1) / parts)
            }
            _ => format!("({count} + parts - 1) / parts"),
        };
        let index = unravel(writer, &stage.inner, outer, "q", uses);
        let mut placed = Substitutions::new();
        let (mut vectors, mut before, mut after) = (String::new(), String::new(), String::new());
        let (mut counted, mut each, mut known) = (String::new(), String::new(), String::new());
        for w in self.walked(stage, self.lanes) {
            let memory = uses.memory(w.root);
            let name = memory.replace('b', "x");
            let ty = format!("Vec<{}, {}>", memory_type(self.program.buffers[w.root].dtype)?, self.lanes);
            let address = writer.expr(&w.address, uses);
            if w.fixed {
                let _ = writeln!(counted, "const {ty} {name} = *(const {ty} *)({memory} + {address});");
                placed.extend(w.buffers.iter().map(|b| (*b, format!("{name}.v[u]"))));
                continue;
            }
            let _ = writeln!(vectors, "{ty} {name}[{rows}];");
            if w.loaded {
                let _ = writeln!(before, "{name}[w] = *(const {ty} *)({memory} + {address});");
            }
            if w.stored {
                let _ = writeln!(after, "*({ty} *)({memory} + {address}) = {name}[w];");
            }
            placed.extend(w.buffers.iter().map(|b| (*b, format!("{name}[w].v[u]"))));
        }
        let body = writer.write_substituted(&stage.insts, effects, uses, &placed)?;
        for m in made(stage, self.pairs) {
            let [begins, adds, ends] = m.counted(&self.k.accs, "[u]")?;
            let shifted = m.shifted(writer, self.k, stage, "[u]", uses)?;
            if !shifted.is_empty() {
                let _ = writeln!(counted, "{}[{}];\n{lanes}{shifted}}}", m.shift(&self.k.accs)?, self.lanes);
            }
            counted.push_str(&begins);
            each.push_str(&adds);
            if !ends.is_empty() {
                let _ = writeln!(known, "{}{ends}}}", self.each());
            }
        }
        let row = format!(
            "for (int w = 0; w < {rows}; ++w) {{\nconst idx q = q0 + w * {down};\nif (q < end) {{\n{index}"
        );
        let ahead = match before.is_empty() {
            true => String::new(),
            false => format!("#pragma unroll\n{row}{before}}}\n}}\n"),
        };
        let single = if rows == 1 { "#pragma unroll 1\n" } else { "" };
        Ok(format!(
            "const idx chunk = {chunk}, begin = part * chunk;
const idx end = here ? imin<idx>({count}, begin + chunk) : begin;
{counted}{single}for (idx q0 = begin + rank; q0 < end; q0 += {down} * {rows}) {{
{vectors}{ahead}#pragma unroll
{row}{each}{lanes}{body}}}
{after}}}
}}
}}
{known}"
        ))
    }

    /// Combines the accumulators of a block's threads. Where blocks share a column, only the last block continues, with
    /// the total; `most` is then their number.
    fn combined(
        &self,
        made: &[Reduction],
        most: Option<i64>,
        kept: &[Reduction],
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let (across, lanes, width) = (self.across, self.lanes, self.width());
        // Partial results that a thread loads before it combines the first. Few of these numbers are different.
        let turns = most.unwrap_or(1).max(1).unsigned_abs().div_ceil((THREADS / width).unsigned_abs());
        let at_once = if turns > 2 { 8 } else { 2 };
        let (mut blocks, mut left, mut parts, mut back) =
            (String::new(), String::new(), String::new(), String::new());
        for m in made {
            let w = m.written(&self.k.accs)?;
            let (name, ty, op, place, start) = (&w.name, &w.ty, w.op, w.place, &w.start);
            let _ = writeln!(
                blocks,
                "{ty} all_{name} = column_total<{op}, {across}, {lanes}, {}>({name}, ({ty} *)shared_memory);",
                THREADS / self.wave
            );
            let _ = writeln!(
                left,
                "if (threadIdx.x < width) (({ty} *)scratch{place})[(1 + part) * points + column + threadIdx.x] = all_{name};"
            );
            let _ = writeln!(
                parts,
                "all_{name} = parts_total<{op}, {width}, {THREADS}, {at_once}>((const {ty} *)scratch{place} + points + column, points, \
                 (int)parts, width, {ty}{{{}}}, ({ty} *)shared_memory);",
                start.trim_start_matches('{').trim_end_matches('}')
            );
            if kept.contains(m) {
                let _ = writeln!(
                    back,
                    "if (threadIdx.x < width) (({ty} *)scratch{place})[column + threadIdx.x] = all_{name};"
                );
            }
            let finalize = m.finalize("[u]");
            let _ = writeln!(
                back,
                "block_sync();\nif (threadIdx.x < {width}) (({ty} *)shared_memory)[threadIdx.x] = all_{name};\nblock_sync();
{}{name}[u] = (({ty} *)shared_memory)[lane * {lanes} + u];\n{finalize}}}",
                self.each()
            );
        }
        if most.is_none() {
            return Ok(format!("{blocks}{back}"));
        }
        uses.tickets = true;
        Ok(format!(
            "{blocks}if (parts > 1) {{
{left}if (!comes_last(tickets + column / {width}, (int)parts, &seen)) continue;
{parts}}}
{back}"
        ))
    }
}
