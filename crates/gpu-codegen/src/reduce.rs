//! Reductions whose results alone do not fill the device, or lie side by side where their operands do not.
//!
//! - *rows*: a block takes a part of the inner points of one outer point.
//! - *columns*: a block takes 32 neighbouring outer points, one a lane, and its warps share the inner points; so memory
//!   that runs along the outer points is read 32 elements at once.
//!
//! Where there are parts, each looped stage is a kernel of its own that leaves its accumulators, one a part, in scratch
//! memory; whoever needs them combines the parts in their order. So results do not depend on which block ends first.

use std::fmt::Write;
use std::ops::Range;

use ir_core::SymExpr;
use kernel_ir::{AccId, InstKind, LoopKernel, Program, Stage};

use crate::body::{BodyWriter, Uses, accumulator};
use crate::looped::{LoopEffects, accumulator_type, along_outer, declare, divides, hint};
use crate::template::{assemble, unravel, volume};
use crate::{ENTRY, GenError, Kernel, Launch, MOST_BLOCKS, Target, Variant};

/// Inner points of a part at least.
const LEAST_WORK: i64 = 4096;
/// Inner points of a thread of a column at least.
const LEAST_COLUMN: i64 = 8;
/// Lanes of a warp: outer points of a block of columns.
const LANES: i64 = 32;
/// Threads of a block.
const THREADS: u32 = 512;
/// Blocks that a multiprocessor has at once, for the number of parts.
const BLOCKS_EACH: i64 = 4;

/// How a reduction is spread over blocks.
pub(crate) struct Split {
    columns: bool,
    parts: i64,
}

impl Split {
    /// Whether the kernel is one for this.
    pub(crate) fn of(program: &Program, k: &LoopKernel, target: &Target) -> Option<Split> {
        let longest = k.stages.iter().map(|s| hint(program, &volume(&s.inner))).max()?;
        let outer = hint(program, &volume(&k.outer)).max(1);
        let plain = |s: &Stage| {
            let scan = s.insts.iter().any(|i| matches!(i.kind, InstKind::Scan { .. }));
            // What a stage without a loop reduces is never combined.
            let alone =
                s.inner.is_empty() && s.insts.iter().any(|i| matches!(i.kind, InstKind::Reduce { .. }));
            !scan && !alone
        };
        if k.accs.is_empty() || !k.stages.iter().all(plain) || makers(k).is_none() {
            return None;
        }
        let wanted = BLOCKS_EACH * i64::from(target.multiprocessors);
        let columns = along_outer(program, k) && longest > LEAST_COLUMN;
        let (blocks, least) = match columns {
            true => ((outer + LANES - 1) / LANES, LEAST_COLUMN * i64::from(THREADS) / LANES),
            false => (outer, LEAST_WORK),
        };
        let parts = (wanted / blocks).min(longest / least).max(1);
        (columns || parts > 1).then_some(Split { columns, parts })
    }

    /// The kernels.
    pub(crate) fn generate(&self, program: &Program, k: &LoopKernel) -> Result<Variant, GenError> {
        let name = format!("{}_{}", if self.columns { "columns" } else { "rows" }, self.parts);
        if self.parts == 1 {
            return Ok(Variant::single(name, self.kernel(program, k, 0..k.stages.len())?));
        }
        let mut scratch = Vec::new();
        for acc in &k.accs {
            // Values with positions are two words of 8 bytes, as `At` lays them out.
            let bytes = if crate::looped::keeps_position(acc.op) { 16 } else { acc.dtype.size() as i64 };
            scratch.push(volume(&k.outer) * SymExpr::from_i64(self.parts * bytes));
        }
        let kernels = groups(k).into_iter().map(|group| self.kernel(program, k, group));
        Ok(Variant { name, kernels: kernels.collect::<Result<_, _>>()?, scratch })
    }

    /// Some stages as one kernel.
    fn kernel(&self, program: &Program, k: &LoopKernel, stages: Range<usize>) -> Result<Kernel, GenError> {
        let looped = k.stages[stages.clone()].iter().any(|s| !s.inner.is_empty());
        // A group without a loop has nothing to split.
        let parts = if looped { self.parts } else { 1 };
        let mut uses = Uses::default();
        if self.parts > 1 {
            uses.scratch = vec!["u8"; k.accs.len()];
        }
        let guard = self.columns.then_some("here");
        let head = BodyWriter { program, extents: &k.outer, prefix: "", guard, store_guard: None };
        let points = volume(&k.outer);
        let count = head.expr(&points, &mut uses);
        let mut body = self.opening(&count, parts);
        body.push_str(&unravel(&head, &k.outer, 0, "point", &mut uses));
        body.push_str(&declare(&k.accs)?);
        if self.parts > 1 {
            body.push_str(&self.recall(k, stages.start, &count)?);
        }
        for n in stages.clone() {
            body.push_str(&self.stage(&head, k, n, parts, &mut uses)?);
        }
        if parts > 1 {
            for acc in made(&k.stages[stages.start]) {
                let ty = accumulator_type(&k.accs[acc])?;
                let whom = if self.columns { "rank == 0 && here" } else { "rank == 0" };
                let _ =
                    writeln!(body, "if ({whom}) (({ty} *)scratch{acc})[part * (idx){count} + p] = acc{acc};");
            }
        }
        body.push_str("}\n");
        let each = if self.columns { points.ceil_div(&SymExpr::from_i64(LANES)) } else { points };
        let blocks = (each * SymExpr::from_i64(parts)).sym_min(&SymExpr::from_i64(MOST_BLOCKS));
        assemble(program, ENTRY, &uses, Launch::flat(blocks, THREADS), &body)
    }

    /// Which outer point and which part a thread is of.
    fn opening(&self, count: &str, parts: i64) -> String {
        // The largest accumulator is a value with its position.
        let room = if self.columns { THREADS } else { THREADS / 32 };
        let memory =
            format!("__shared__ double scratch_memory[{}];\nvoid *scratch = scratch_memory;\n", 2 * room);
        if self.columns {
            format!(
                "{memory}const int lane = threadIdx.x % {LANES}, rank = threadIdx.x / {LANES};
for (idx block = blockIdx.x; block < ({count} + {LANES} - 1) / {LANES} * {parts}; block += gridDim.x) {{
const idx part = block % {parts}, p = block / {parts} * {LANES} + lane;
const bool here = p < {count};
const idx point = here ? p : 0;
"
            )
        } else {
            format!(
                "{memory}const int rank = threadIdx.x;
for (idx block = blockIdx.x; block < {count} * {parts}; block += gridDim.x) {{
const idx part = block % {parts}, p = block / {parts};
const idx point = p;
"
            )
        }
    }

    fn team(&self) -> u32 {
        if self.columns { THREADS / LANES as u32 } else { THREADS }
    }

    /// What the kernels of earlier stages left, combined in the order of the parts.
    fn recall(&self, k: &LoopKernel, first: usize, count: &str) -> Result<String, GenError> {
        let mut out = String::new();
        for acc in k.stages[..first].iter().flat_map(made) {
            let (ty, op) = (accumulator_type(&k.accs[acc])?, accumulator(&k.accs[acc]));
            let from = format!("((const {ty} *)scratch{acc})[s * (idx){count} + point]");
            let (parts, team) = (self.parts, self.team());
            let _ = if self.columns {
                writeln!(out, "for (int s = 0; s < {parts}; ++s) acc{acc} = combine<{op}>(acc{acc}, {from});")
            } else {
                writeln!(
                    out,
                    "for (int s = rank; s < {parts}; s += {team}) acc{acc} = combine<{op}>(acc{acc}, {from});\n\
                     acc{acc} = team_combine<{op}, {team}>(acc{acc}, scratch);"
                )
            };
        }
        Ok(out)
    }

    fn stage(
        &self,
        head: &BodyWriter<'_>,
        k: &LoopKernel,
        n: usize,
        parts: i64,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let stage = &k.stages[n];
        let prefix = format!("v{n}_");
        let extents: Vec<SymExpr> = k.outer.iter().chain(&stage.inner).cloned().collect();
        let effects = LoopEffects { accs: &k.accs, team: Some(self.team()) };
        let mut out = String::from("{\n");
        if stage.inner.is_empty() {
            // Every thread knows the values; one of them stores.
            let once =
                BodyWriter { extents: &extents, prefix: &prefix, store_guard: Some("rank == 0"), ..*head };
            out.push_str(&once.write(&stage.insts, &effects, uses)?);
        } else {
            let writer = BodyWriter { extents: &extents, prefix: &prefix, ..*head };
            let (count, team) = (writer.expr(&volume(&stage.inner), uses), self.team());
            let _ = match parts {
                1 => writeln!(out, "const idx begin = 0, end = {count};"),
                _ => writeln!(
                    out,
                    "const idx chunk = ({count} + {parts} - 1) / {parts}, begin = part * chunk, \
                     end = imin<idx>({count}, begin + chunk);"
                ),
            };
            // NVRTC 13.0 crashes where it unrolls some loops that divide their counter.
            out.push_str(if divides(stage) { "#pragma unroll 1\n" } else { "#pragma unroll 4\n" });
            let _ = writeln!(out, "for (idx q = begin + rank; q < end; q += {team}) {{");
            out.push_str(&unravel(&writer, &stage.inner, k.outer.len(), "q", uses));
            out.push_str(&writer.write(&stage.insts, &effects, uses)?);
            out.push_str("}\n");
            for acc in made(stage) {
                let op = accumulator(&k.accs[acc]);
                let combined = match self.columns {
                    true => format!("column_combine<{op}, {team}>"),
                    false => format!("team_combine<{op}, {team}>"),
                };
                let _ = writeln!(out, "acc{acc} = {combined}(acc{acc}, scratch);");
            }
        }
        // What a stage stored is read by other threads of the block in the next one.
        out.push_str("__syncthreads();\n}\n");
        Ok(out)
    }
}

/// The accumulators that a stage makes.
fn made(stage: &Stage) -> Vec<usize> {
    let of = |i: &kernel_ir::Inst| match i.kind {
        InstKind::Reduce { acc: AccId(n), .. } => Some(n as usize),
        _ => None,
    };
    let mut list: Vec<usize> = stage.insts.iter().filter_map(of).collect();
    list.sort_unstable();
    list.dedup();
    list
}

/// The stage that makes each accumulator; `None` where two do.
fn makers(k: &LoopKernel) -> Option<()> {
    let all: Vec<usize> = k.stages.iter().flat_map(made).collect();
    let mut once = all.clone();
    once.sort_unstable();
    once.dedup();
    (once.len() == all.len()).then_some(())
}

/// Stages that are one kernel where there are parts: each looped one alone, those without loops together.
fn groups(k: &LoopKernel) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::new();
    for (n, stage) in k.stages.iter().enumerate() {
        match out.last_mut() {
            Some(last) if stage.inner.is_empty() && k.stages[last.start].inner.is_empty() => last.end = n + 1,
            _ => out.push(n..n + 1),
        }
    }
    out
}
