//! Scans over few long rows: each row is split into parts. A first kernel reduces every part; a second one scans it,
//! starting from the combination of the parts before it in their order, so that results are the same from run to run. Kernels with
//! other stages get a stage before each of their scans that reduces its parts ([`with_totals`]), and are split like reductions
//! (`reduce`).

use std::fmt::Write;

use ir_core::{DType, SymExpr};
use kernel_ir::{AccDecl, AccId, Inst, InstKind, LoopKernel, Program, ReduceOp, Stage, Val};

use crate::loops::{LoopEffects, hint, scans};
use crate::text::body::{BodyWriter, Effects, Uses, accumulator};
use crate::text::template::{assemble, unravel, volume};
use crate::text::types::{number, value_type};
use crate::{ENTRY, GenError, Kernel, Launch, MAX_BLOCKS, Target, Variant};

/// Minimum number of elements per part.
const MIN_WORK: i64 = 4096;
/// Threads per block.
const THREADS: u32 = 512;
/// Blocks per multiprocessor, from which the number of parts follows.
const BLOCKS_EACH: i64 = 2;
/// The prefix of the names of values.
const PREFIX: &str = "v0_";

/// A scan in this many parts.
pub(crate) struct Parts(i64);

impl Parts {
    /// Returns `None` unless the kernel suits this: a single loop whose scans are independent, few long rows.
    pub(crate) fn of(program: &Program, k: &LoopKernel, target: &Target) -> Option<Parts> {
        let [stage] = &k.stages[..] else { return None };
        let [length] = &stage.inner[..] else { return None };
        if !k.accs.is_empty() || scans(stage, PREFIX).next().is_none() || !independent(stage) {
            return None;
        }
        let (outer, length) = (hint(program, &volume(&k.outer)).max(1), hint(program, length));
        let parts = (BLOCKS_EACH * i64::from(target.multiprocessors) / outer).min(length / MIN_WORK);
        (parts > 1).then_some(Parts(parts))
    }

    /// Generates the two kernels.
    pub(crate) fn generate(&self, program: &Program, k: &LoopKernel) -> Result<Variant, GenError> {
        let stage = &k.stages[0];
        let size = |dtype: DType| SymExpr::from_i64(self.0 * dtype.size() as i64) * volume(&k.outer);
        let scratch = scans(stage, PREFIX).map(|(_, dtype, _)| size(dtype)).collect();
        let kernels = vec![self.totals(program, k)?, self.run(program, k)?];
        Ok(Variant { name: format!("parts_{}", self.0), kernels, scratch })
    }

    /// The kernel that reduces every part, to scratch memory.
    fn totals(&self, program: &Program, k: &LoopKernel) -> Result<Kernel, GenError> {
        let stage = needed(&k.stages[0]);
        let (mut uses, mut last) = (self.uses(&stage), String::new());
        let extents: Vec<SymExpr> = k.outer.iter().chain(&stage.inner).cloned().collect();
        let writer =
            BodyWriter { program, extents: &extents, prefix: PREFIX, guard: None, store_guard: None };
        let mut body = self.opening(&writer, k, &mut uses);
        for (n, (name, dtype, op)) in scans(&stage, PREFIX).enumerate() {
            let (ty, start) = (value_type(dtype)?, number(op.identity(dtype), dtype)?);
            let op = accumulator(&AccDecl { op, dtype });
            let _ = writeln!(body, "{ty} total_{name} = {start};");
            let _ = writeln!(
                last,
                "total_{name} = team_combine<{op}, {THREADS}>(total_{name}, scratch);\n\
                 if (rank == 0) (({ty} *)scratch{n})[part * points + p] = total_{name};"
            );
        }
        let i = k.outer.len();
        let text = writer.write(&stage.insts, &Totals, &mut uses)?;
        let _ = write!(
            body,
            "for (idx i{i} = begin + rank; i{i} < end; i{i} += {THREADS}) {{\n{text}}}\n{last}}}\n"
        );
        self.finished(program, k, &uses, &body)
    }

    /// The kernel that scans.
    fn run(&self, program: &Program, k: &LoopKernel) -> Result<Kernel, GenError> {
        let stage = &k.stages[0];
        let mut uses = self.uses(stage);
        let extents: Vec<SymExpr> = k.outer.iter().chain(&stage.inner).cloned().collect();
        let writer = BodyWriter {
            program,
            extents: &extents,
            prefix: PREFIX,
            guard: Some("active"),
            store_guard: None,
        };
        let mut body = self.opening(&writer, k, &mut uses);
        for (n, (name, dtype, op)) in scans(stage, PREFIX).enumerate() {
            let (ty, start) = (value_type(dtype)?, number(op.identity(dtype), dtype)?);
            let op = accumulator(&AccDecl { op, dtype });
            let _ = writeln!(
                body,
                "{ty} carry_{name} = {start};\n\
                 for (idx s = rank; s < part; s += {THREADS}) carry_{name} = combine<{op}>(carry_{name}, ((const {ty} *)scratch{n})[s * points + p]);\n\
                 carry_{name} = team_combine<{op}, {THREADS}>(carry_{name}, scratch);"
            );
        }
        let i = k.outer.len();
        let effects = LoopEffects { accs: &k.accs, team: Some(THREADS), lane: "", pairs: &[] };
        let text = writer.write(&stage.insts, &effects, &mut uses)?;
        let _ = write!(
            body,
            "for (idx base = begin; base < end; base += {THREADS}) {{\nconst bool active = base + rank < end;\n\
             const idx i{i} = active ? base + rank : 0;\n{text}}}\nblock_sync();\n}}\n"
        );
        self.finished(program, k, &uses, &body)
    }

    fn uses(&self, stage: &Stage) -> Uses {
        Uses { scratch: vec!["u8"; scans(stage, PREFIX).count()], ..Uses::default() }
    }

    /// Returns the loop over rows and parts, and the position of a thread.
    fn opening(&self, writer: &BodyWriter<'_>, k: &LoopKernel, uses: &mut Uses) -> String {
        let (points, length) =
            (writer.expr(&volume(&k.outer), uses), writer.expr(&k.stages[0].inner[0], uses));
        let parts = self.0;
        let outer = unravel(writer, &k.outer, 0, "p", uses);
        format!(
            "__shared__ double scratch_memory[{THREADS}];\nvoid *scratch = scratch_memory;
const int rank = threadIdx.x;
const idx points = {points}, chunk = ({length} + {parts} - 1) / {parts};
for (idx block = blockIdx.x; block < points * {parts}; block += gridDim.x) {{
const idx part = block % {parts}, p = block / {parts};
const idx begin = part * chunk, end = imin<idx>({length}, begin + chunk);
{outer}"
        )
    }

    fn finished(
        &self,
        program: &Program,
        k: &LoopKernel,
        uses: &Uses,
        body: &str,
    ) -> Result<Kernel, GenError> {
        let blocks = (volume(&k.outer) * SymExpr::from_i64(self.0)).sym_min(&SymExpr::from_i64(MAX_BLOCKS));
        assemble(program, ENTRY, uses, Launch::flat(blocks, THREADS), body)
    }
}

/// A scan whose parts are reduced by a stage before it.
pub(crate) struct Carry {
    /// Its stage and its place there.
    pub(crate) stage: usize,
    pub(crate) scan: Val,
    /// The accumulator of the reduction.
    pub(crate) acc: usize,
}

/// The kernel with a stage before each stage of scans that reduces what these combine; `None` where a scan runs along several loops or
/// depends on another.
pub(crate) fn with_totals(k: &LoopKernel) -> Option<(LoopKernel, Vec<Carry>)> {
    let mut all = LoopKernel { stages: Vec::with_capacity(k.stages.len()), ..k.clone() };
    let mut carries = Vec::new();
    for stage in &k.stages {
        if scans(stage, PREFIX).next().is_some() {
            if stage.inner.len() != 1 || !independent(stage) {
                return None;
            }
            let mut totals = needed(stage);
            let place = all.stages.len() + 1;
            for (n, inst) in totals.insts.iter_mut().enumerate() {
                let InstKind::Scan { op, value } = inst.kind else { continue };
                let acc = all.accs.len();
                all.accs.push(AccDecl { op, dtype: inst.dtype });
                inst.kind = InstKind::Reduce { acc: AccId(acc as u32), value, position: None };
                carries.push(Carry { stage: place, scan: Val(n as u32), acc });
            }
            all.stages.push(totals);
        }
        all.stages.push(stage.clone());
    }
    Some((all, carries))
}

/// Marks the values that `of` depends on, including itself.
fn behind(insts: &[Inst], of: Val, into: &mut [bool]) {
    let n = of.0 as usize;
    if into.get(n) == Some(&false) {
        into[n] = true;
        insts[n].kind.for_each_val(&mut |v| behind(insts, v, into));
    }
}

/// Whether no scan depends on the result of another.
fn independent(stage: &Stage) -> bool {
    stage.insts.iter().all(|inst| match inst.kind {
        InstKind::Scan { value, .. } => {
            let mut needs = vec![false; stage.insts.len()];
            behind(&stage.insts, value, &mut needs);
            !stage.insts.iter().zip(needs).any(|(i, n)| n && matches!(i.kind, InstKind::Scan { .. }))
        }
        _ => true,
    })
}

/// The stage with only its scans and what they need; values keep their numbers.
fn needed(stage: &Stage) -> Stage {
    let mut needs = vec![false; stage.insts.len()];
    for (n, inst) in stage.insts.iter().enumerate() {
        if matches!(inst.kind, InstKind::Scan { .. }) {
            behind(&stage.insts, Val(n as u32), &mut needs);
        }
    }
    let mut stage = stage.clone();
    for (inst, needed) in stage.insts.iter_mut().zip(needs) {
        if !needed {
            inst.kind = InstKind::Const(ir_core::Scalar::Int(0).to_class_of(inst.dtype));
        }
    }
    stage
}

/// The effects of the first kernel, which needs only the last value of each scan.
struct Totals;

impl Effects for Totals {
    fn reduce(&self, _: AccId, _: &str, _: Option<&str>) -> Result<String, GenError> {
        Err(GenError::Malformed("a reduction in a kernel with a scan in parts".into()))
    }
    fn acc(&self, _: AccId) -> String {
        "0".into()
    }
    fn scan(&self, name: &str, dtype: DType, op: ReduceOp, value: &str) -> Result<String, GenError> {
        let op = accumulator(&AccDecl { op, dtype });
        Ok(format!("total_{name} = combine<{op}>(total_{name}, {value});\n"))
    }
    fn template(&self) -> Result<String, GenError> {
        Err(GenError::Malformed("`template` outside of an epilogue".into()))
    }
}
