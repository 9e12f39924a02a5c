//! Reductions with too few results to fill the device, or whose results are contiguous where their operands are not.
//!
//! - *rows*: a block takes a part of the inner points of one outer point.
//! - *columns* (`columns`): a block takes adjacent outer points, which are contiguous in memory.
//!
//! Which stages share a kernel, and how the last block of a point finishes it, is described in `accumulate`.

use std::fmt::Write;

use ir_core::SymExpr;
use kernel_ir::collapse::collapsed;
use kernel_ir::{LoopKernel, Program};

use crate::loops::accumulate::{Group, Reduction, groups, kept, made, read_back, reduced_once, scratch};
use crate::loops::columns::Columns;
use crate::loops::moments::{Pair, fuse_moments};
use crate::loops::peaks::fuse_peaks;
use crate::loops::scan::{Carry, with_totals};
use crate::loops::shared::{self, Range, range_of_part};
use crate::loops::{LoopEffects, SHORT, along_outer, declare, hint};
use crate::text::body::{BodyWriter, Uses};
use crate::text::template::{assemble, unravel, volume};
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS, TICKETS, Target, Variant};

/// Minimum number of inner points per part.
const MIN_WORK: i64 = 4096;
/// Threads per block.
const THREADS: u32 = 512;
/// Blocks per multiprocessor, from which the number of parts follows.
const BLOCKS_EACH: i64 = 2;
/// Outer points per multiprocessor that fill it with one thread each, where they are contiguous.
const ENOUGH_POINTS: i64 = 1024;

/// Returns the kernel split over blocks, where it suits that.
pub(crate) fn split(program: &Program, k: &LoopKernel, target: &Target) -> Result<Option<Variant>, GenError> {
    let longest = k.stages.iter().map(|s| hint(program, &volume(&s.inner))).max().unwrap_or(1);
    let outer = hint(program, &volume(&k.outer)).max(1);
    let scans = super::has_scans(&k.stages);
    // Short loops, such as windows, are left to one thread.
    if k.accs.is_empty() || longest <= SHORT || !reduced_once(k) {
        return Ok(None);
    }
    let multiprocessors = i64::from(target.multiprocessors);
    if along_outer(program, k) {
        if scans || outer >= ENOUGH_POINTS * multiprocessors {
            return Ok(None);
        }
        let (k, pairs) = fuse_moments(program, &collapsed(program, k));
        return Columns::new(program, &k, &pairs, target).map(|c| c.generate()).transpose();
    }
    let parts = (BLOCKS_EACH * multiprocessors / outer).min(longest / MIN_WORK).max(1);
    if parts == 1 {
        return Ok(None);
    }
    let (k, pairs) = fuse_moments(program, &collapsed(program, k));
    let (k, pairs) = fuse_peaks(program, &k, pairs);
    let Some((k, carries)) = with_totals(&k) else { return Ok(None) };
    let paired = |c: &Carry| made(&k.stages[c.stage], &pairs).iter().any(|m| !matches!(m, Reduction::One(_)));
    if carries.iter().any(paired) {
        return Ok(None);
    }
    Rows { program, k: &k, pairs: &pairs, carries: &carries, parts, wave: target.wave }.generate().map(Some)
}

/// One or several blocks per outer point.
struct Rows<'a> {
    program: &'a Program,
    k: &'a LoopKernel,
    pairs: &'a [Pair],
    /// The scans, each with the reduction of its parts.
    carries: &'a [Carry],
    /// Number of blocks that share an outer point.
    parts: i64,
    wave: u32,
}

impl Rows<'_> {
    fn generate(&self) -> Result<Variant, GenError> {
        let list = groups(self.program, self.k, &|_| self.parts);
        let kernels = list.iter().map(|g| self.kernel(g)).collect::<Result<_, _>>()?;
        let scratch = scratch(self.k, &list, self.pairs)?;
        Ok(Variant { name: format!("rows_{}", self.parts), kernels, scratch })
    }

    /// Generates a group of stages as one kernel.
    fn kernel(&self, group: &Group) -> Result<Kernel, GenError> {
        let k = self.k;
        let mut uses = Uses { scratch: vec!["u8"; k.accs.len()], ..Uses::default() };
        let head = BodyWriter {
            program: self.program,
            extents: &k.outer,
            prefix: "",
            guard: None,
            store_guard: None,
        };
        let points = volume(&k.outer);
        let count = head.expr(&points, &mut uses);
        // The largest accumulator is four words of 8 bytes.
        let mut body = format!(
            "__shared__ double scratch_memory[{}];\n__shared__ u32 seen;\nvoid *scratch = scratch_memory;
const int rank = threadIdx.x;
const idx points = {count}, parts = points > {TICKETS} ? 1 : {};
for (idx block = blockIdx.x; block < points * parts; block += gridDim.x) {{
const idx part = block / points, point = block % points;
",
            4 * THREADS / self.wave,
            group.parts
        );
        body.push_str(&unravel(&head, &k.outer, 0, "point", &mut uses));
        body.push_str(&declare(&k.accs)?);
        let own = k.stages[group.stages.clone()].iter().flat_map(|s| made(s, self.pairs));
        for m in own.chain(read_back(k, group, self.pairs)).filter(|m| !matches!(m, Reduction::One(_))) {
            let w = m.written(&k.accs)?;
            let _ = writeln!(body, "{} {} = {};", w.ty, w.name, w.start);
        }
        for m in read_back(k, group, self.pairs) {
            let w = m.written(&k.accs)?;
            let _ = writeln!(
                body,
                "{} = ((const {} *)scratch{})[point];\n{}",
                w.name,
                w.ty,
                w.place,
                m.finalize("")
            );
        }
        let kept = kept(k, group, self.pairs);
        for n in group.stages.clone() {
            body.push_str(&self.stage(&head, n, group, &kept, &mut uses)?);
        }
        body.push_str("}\n");
        let blocks = (points * SymExpr::from_i64(group.parts)).sym_min(&SymExpr::from_i64(MAX_BLOCKS));
        assemble(self.program, ENTRY, &uses, Launch::flat(blocks, THREADS), &body)
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
        let effects = LoopEffects { accs: &self.k.accs, team: Some(THREADS), lane: "", pairs: self.pairs };
        let mut out = String::from("{\n");
        if stage.inner.is_empty() {
            // Every thread has the values; one thread stores them.
            let once =
                BodyWriter { extents: &extents, prefix: &prefix, store_guard: Some("rank == 0"), ..*head };
            out.push_str(&once.write(&stage.insts, &effects, uses)?);
            out.push_str("block_sync();\n}\n");
            return Ok(out);
        }
        let writer = BodyWriter { extents: &extents, prefix: &prefix, ..*head };
        let count = writer.expr(&volume(&stage.inner), uses);
        let (mut counted, mut each, mut known) = (String::new(), String::new(), String::new());
        let made = made(stage, self.pairs);
        for m in &made {
            let [begins, adds, ends] = m.counted(&self.k.accs, "")?;
            let shifted = m.shifted(&writer, self.k, stage, "", uses)?;
            if !shifted.is_empty() {
                let _ = writeln!(counted, "{};\n{{\n{shifted}}}", m.shift(&self.k.accs)?);
            }
            counted.push_str(&begins);
            each.push_str(&adds);
            known.push_str(&ends);
        }
        out.push_str(&range_of_part(&count));
        out.push_str(&counted);
        if self.carries.iter().any(|c| c.stage == n) {
            out.push_str(&self.scanned(&writer, n, &effects, uses)?);
            out.push_str(&self.combined(&made, group.parts > 1 && !made.is_empty(), kept, uses)?);
            out.push_str("block_sync();\n}\n");
            return Ok(out);
        }
        let range = Range { begin: "begin", end: "end", parts: group.parts };
        out.push_str(&shared::points(head, (self.k, n), THREADS, Some(&range), (&effects, &each), uses)?);
        out.push_str(&known);
        let ends = group.parts > 1 && (!made.is_empty() || group.stages.len() > 1);
        out.push_str(&self.combined(&made, ends, kept, uses)?);
        // The next stage reads what other threads of the block stored in this one.
        out.push_str("block_sync();\n}\n");
        Ok(out)
    }

    /// The loop over a part's points of a stage of scans, which go on from what the parts before it add up to.
    fn scanned(
        &self,
        writer: &BodyWriter<'_>,
        n: usize,
        effects: &LoopEffects<'_>,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let mut out = String::new();
        for carry in self.carries.iter().filter(|c| c.stage == n) {
            let w = Reduction::One(carry.acc).written(&self.k.accs)?;
            let (ty, op, place, name) = (&w.ty, w.op, w.place, writer.name(carry.scan));
            let _ = writeln!(
                out,
                "{ty} carry_{name} = {};
for (idx s = rank; s < part; s += {THREADS}) carry_{name} = combine<{op}>(carry_{name}, ((const {ty} *)scratch{place})[(1 + s) * points + point]);
carry_{name} = team_combine<{op}, {THREADS}>(carry_{name}, scratch);",
                w.start
            );
        }
        let active = BodyWriter { guard: Some("active"), ..*writer };
        let (i, text) = (self.k.outer.len(), active.write(&self.k.stages[n].insts, effects, uses)?);
        let _ = write!(
            out,
            "for (idx base = begin; base < end; base += {THREADS}) {{
const bool active = base + rank < end;
const idx i{i} = active ? base + rank : 0;
{text}}}
"
        );
        Ok(out)
    }

    /// Combines the accumulators of a block's threads. Where blocks share a point, only the last block continues, with the
    /// total.
    fn combined(
        &self,
        made: &[Reduction],
        ends: bool,
        kept: &[Reduction],
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let (mut blocks, mut left, mut parts, mut back) =
            (String::new(), String::new(), String::new(), String::new());
        for m in made {
            let w = m.written(&self.k.accs)?;
            let (name, ty, op, place, start, suffix) = (&w.name, &w.ty, w.op, w.place, &w.start, w.suffix);
            let together = format!("{name} = team_combine{suffix}<{op}, {THREADS}>({name}, scratch);\n");
            blocks.push_str(&together);
            let _ = writeln!(
                left,
                "if (rank == 0) (({ty} *)scratch{place})[(1 + part) * points + point] = {name};"
            );
            let from = format!("fresh((const {ty} *)scratch{place} + (1 + s) * points + point)");
            let _ = writeln!(
                parts,
                "{name} = {start};\nfor (idx s = rank; s < parts; s += {THREADS}) {name} = combine{suffix}<{op}>({name}, {from});\n{together}"
            );
            if kept.contains(m) {
                let _ = writeln!(back, "if (rank == 0) (({ty} *)scratch{place})[point] = {name};");
            }
            back.push_str(&m.finalize(""));
        }
        if !ends {
            return Ok(blocks + &back);
        }
        uses.tickets = true;
        Ok(format!(
            "{blocks}if (parts > 1) {{\n{left}if (!comes_last(tickets + point, (int)parts, &seen)) continue;\n{parts}}}\n{back}"
        ))
    }
}
