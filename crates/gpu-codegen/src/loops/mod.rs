//! Loop kernels, in three mappings chosen by the domain:
//!
//! - *points*: no stage has a loop; a thread computes a point.
//! - *threads*: short or strided inner loops; a thread computes an outer point with serial loops (`wide`: several
//!   contiguous ones).
//! - *teams*: a wave, a part of one or a block computes an outer point and its threads share the inner loops (`shared`); reductions and scans
//!   combine over the team in a fixed order, so that results do not change from run to run. Rows of points without reductions
//!   are shared so too, where their vectors begin at different places in each row.

pub(crate) mod accumulate;
pub(crate) mod apart;
pub(crate) mod columns;
pub(crate) mod flat;
pub(crate) mod known;
pub(crate) mod linear;
pub(crate) mod moments;
pub(crate) mod peaks;
pub(crate) mod recompute;
pub(crate) mod reduce;
pub(crate) mod scan;
pub(crate) mod shared;
pub(crate) mod tables;
pub(crate) mod transpose;
pub(crate) mod uneven;
pub(crate) mod wide;

use std::fmt::Write;

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::collapse::collapsed;
use kernel_ir::part::parted;
use kernel_ir::{AccDecl, AccId, InstKind, LoopKernel, Program, ReduceOp, Stage};

use crate::address::address;
use crate::loops::accumulate::{Reduction, made};
use crate::loops::flat::Flat;
use crate::loops::known::with_known_values;
use crate::loops::moments::{Pair, PairKind};
use crate::loops::peaks::fuse_peaks;
use crate::loops::scan::Parts;
use crate::loops::shared::{Range, RowPoints, range_of_part};
use crate::loops::transpose::Transpose;
use crate::loops::wide::Wide;
use crate::sort::ordered;
use crate::text::body::{BodyWriter, Effects, Uses, accumulator};
use crate::text::index::divisible;
use crate::text::template::{assemble, blocks_of, unravel, volume};
use crate::text::types::{number, value_type};
use crate::{ENTRY, GenError, Kernel, Launch, THREADS, Target, Variant};

/// Inner loops up to this long are run by one thread.
pub(crate) const SHORT: i64 = 16;
/// Inner loops up to this long are run by a wave.
const WARP_WORK: i64 = 1024;
/// Parts of a wave that may be teams, the smallest first.
const PARTS_OF_WAVE: [u32; 3] = [4, 8, 16];
/// The least share of the turns of a part of a wave in which a thread has a vector: alone, the lanes of a wave would have single
/// numbers, or none.
const BUSY: f64 = 0.6;
/// With this many outer points one thread each fills the device, where the outer points are contiguous.
const MANY: i64 = 16 * 1024;
/// Points of a row that a thread of a block takes where there are rows enough: two vectors of most dtypes, and blocks so small that
/// many of them share a multiprocessor, where one loads while others combine their results.
const EACH: i64 = 16;
/// The same where there are few rows, or a scan's turns each wait for all threads.
const EACH_OF_FEW: i64 = 4;
/// Threads that fill a multiprocessor.
const FULL: i64 = 2048;

/// Returns the candidate implementations, best first by rule.
pub(crate) fn variants(program: &Program, k: &LoopKernel, target: &Target) -> Result<Vec<Variant>, GenError> {
    // Reductions over a single element are bodies with accumulators and no loop; `flat` does not take them.
    if let Some(flat) = Flat::of(program, k).filter(|_| k.accs.is_empty()) {
        return Ok(vec![Variant::single("flat", flat.generate(program, k, target)?)]);
    }
    if target.deterministic && ordered::unordered(k) {
        let in_order = || Ok(Variant::single("in_order", threads(program, k, ENTRY, true)?));
        return Ok(vec![ordered::sorted(program, k)?.map_or_else(in_order, Ok)?]);
    }
    let parts = parted(program, k);
    let k = parts.as_ref().unwrap_or(k);
    let mut candidates = Vec::new();
    let scans = has_scans(&k.stages);
    let mut shared = reduce::split(program, k, target)?;
    if scans {
        candidates.extend(shared.take());
    }
    if let Some(parts) = apart::apart(program, k, target) {
        candidates.extend(apart::both(program, "apart", &parts, target)?);
    }
    if let Some(tables) = tables::Tables::of(program, k, target) {
        candidates.push(tables.generate()?);
    }
    candidates.extend(shared);
    if let Some(parts) = Parts::of(program, k, target) {
        candidates.push(parts.generate(program, k)?);
    }
    if let Some(transpose) = Transpose::of(program, k) {
        candidates.push(Variant::single("transpose", transpose.generate(program)?));
    }
    let short = collapsed(program, k);
    if let Some(parts) = uneven::parts(program, &short) {
        candidates.extend(apart::both(program, "rows", &parts, target)?);
    }
    if let Some(wide) = Wide::of(program, &short) {
        candidates.push(Variant::single(wide.name(), wide.generate()?));
    }
    if let Some(rows) = RowPoints::of(program, &short, target.wave) {
        let kernel = teams(program, &rows.kernel, (rows.team, rows.parts), target.wave)?;
        candidates.push(Variant::single("rows", kernel));
    }
    candidates.push(Variant::single("loop", generate(program, &short, target)?));
    Ok(candidates)
}

/// The fallback kernel, which takes every dtype and stride.
fn generate(program: &Program, k: &LoopKernel, target: &Target) -> Result<Kernel, GenError> {
    match team(program, k, target) {
        None => threads(program, k, ENTRY, false),
        Some(team) => teams(program, k, (team, 1), target.wave),
    }
}

/// The value of a size; where it is symbolic, its value at capture.
pub(crate) fn hint(program: &Program, e: &SymExpr) -> i64 {
    let value = |a: &Atom| match a {
        Atom::Sym(id) => Some(program.symbols[*id].hint.unwrap_or(64)),
        _ => None,
    };
    e.eval(&value).unwrap_or(64)
}

/// Number of threads that share an outer point; `None` for one.
fn team(program: &Program, k: &LoopKernel, target: &Target) -> Option<u32> {
    let longest = k.stages.iter().map(|s| hint(program, &volume(&s.inner))).max().unwrap_or(1);
    let outer = hint(program, &volume(&k.outer));
    if longest <= SHORT || (outer >= MANY && along_outer(program, k)) {
        return None;
    }
    // A team's scan runs along one dimension.
    if longest <= WARP_WORK && outer >= 64 {
        return Some(part_of_wave(program, k, target.wave).unwrap_or(target.wave));
    }
    // Rows that are read more than once should stay in the caches meanwhile, so few are read at once. In a single pass blocks
    // that end at different times keep the memory busy.
    let passes = k.stages.iter().filter(|s| !s.inner.is_empty()).count();
    let most = if passes > 1 { 1024 } else { 512 };
    let scans = has_scans(&k.stages);
    let filling = if scans { most } else { FULL * i64::from(target.multiprocessors) / outer.max(1) };
    let wanted = filling.min(longest / EACH_OF_FEW).max(longest / EACH).clamp(64, most) as u32;
    Some(wanted.next_power_of_two().min(1024))
}

/// Threads that share an outer point where its loops have fewer vectors than a wave has lanes, such as the heads of attention that are
/// normalised: as many as divide the vectors, of the widest kind, or nearly so ([`BUSY`]). `None` where some access is no vector, or where
/// waves would not be full of whole teams.
fn part_of_wave(program: &Program, k: &LoopKernel, wave: u32) -> Option<u32> {
    let scans = has_scans(&k.stages);
    let points = volume(&k.outer);
    if scans || hint(program, &points) < MANY {
        return None;
    }
    let fits = |team: u32, busy: f64| {
        let loops = (0..k.stages.len()).filter(|n| !k.stages[*n].inner.is_empty());
        divisible(&points, i64::from(wave / team))
            && loops.into_iter().all(|n| {
                let lanes = |team| Wide::of_team(program, k, n, team, 1).map(|w| w.lanes());
                let each = volume(&k.stages[n].inner).as_const();
                let Some((lanes, each)) =
                    lanes(team).filter(|l| lanes(PARTS_OF_WAVE[0]) == Some(*l)).zip(each)
                else {
                    return false;
                };
                let (vectors, team) = (each / lanes, i64::from(team));
                let turns = (vectors + team - 1) / team * team;
                // Of single numbers a wave's lanes are as busy.
                vectors < i64::from(wave)
                    && each % lanes == 0
                    && (vectors == turns || lanes > 1 && vectors as f64 >= busy * turns as f64)
            })
    };
    let teams = || PARTS_OF_WAVE.into_iter().rev().filter(|team| *team < wave);
    teams().find(|team| fits(*team, 1.0)).or_else(|| teams().find(|team| fits(*team, BUSY)))
}

/// Whether adjacent outer points are contiguous in memory and inner ones are not, in most of what is read.
pub(crate) fn along_outer(program: &Program, k: &LoopKernel) -> bool {
    let Some(last) = k.outer.iter().rposition(|e| *e != SymExpr::ONE) else { return false };
    let (mut along, mut across) = (0i64, 0i64);
    for stage in k.stages.iter().filter(|s| !s.inner.is_empty()) {
        let inner = (k.outer.len() + stage.inner.len() - 1) as u32;
        let extents: Vec<SymExpr> = k.outer.iter().chain(&stage.inner).cloned().collect();
        for inst in &stage.insts {
            let InstKind::Load { buf, index, .. } = &inst.kind else { continue };
            let address = address(program, *buf, index, &extents);
            let unit =
                |v: u32| address.affine_in(&Atom::Loop(v)).is_some_and(|(coef, _)| coef == SymExpr::ONE);
            // A number that every point of a row shares is read often, but from few places.
            let elements = hint(program, &program.buffers[*buf].span());
            along = along.saturating_add(elements * i64::from(unit(last as u32)));
            across = across.saturating_add(elements * i64::from(unit(inner)));
        }
    }
    along > across
}

/// Declares the accumulators, each with its identity.
pub(crate) fn declare(accs: &[AccDecl]) -> Result<String, GenError> {
    let mut out = String::new();
    for (n, acc) in accs.iter().enumerate() {
        let ty = value_type(acc.dtype)?;
        let start = number(acc.op.identity(acc.dtype), acc.dtype)?;
        let _ = match keeps_position(acc.op) {
            true => writeln!(out, "At<{ty}> acc{n} = {{{start}, 0x7fffffffffffffffLL}};"),
            false => writeln!(out, "{ty} acc{n} = {start};"),
        };
    }
    Ok(out)
}

/// The C++ type of an accumulator.
pub(crate) fn accumulator_type(acc: &AccDecl) -> Result<String, GenError> {
    let ty = value_type(acc.dtype)?;
    Ok(if keeps_position(acc.op) { format!("At<{ty}>") } else { ty.to_owned() })
}

/// Whether the loop variables of a stage are computed from one counter by divisions.
pub(crate) fn divides(stage: &Stage) -> bool {
    stage.inner.iter().filter(|e| **e != SymExpr::ONE).count() > 1
}

pub(crate) fn keeps_position(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin)
}

/// How a single thread or a team writes reductions and scans.
pub(crate) struct LoopEffects<'a> {
    pub(crate) accs: &'a [AccDecl],
    /// The team's scans call `team_scan` over `TEAM` threads; `None` runs them serially in `carry<name>`.
    pub(crate) team: Option<u32>,
    /// The suffix of an accumulator's name where a thread has several of each: `[u]`.
    pub(crate) lane: &'static str,
    /// Accumulators that are reduced as pairs.
    pub(crate) pairs: &'a [Pair],
}

impl Effects for LoopEffects<'_> {
    fn reduce(&self, acc: AccId, value: &str, position: Option<&str>) -> Result<String, GenError> {
        let decl = self.decl(acc)?;
        let (n, op, lane) = (acc.0, accumulator(decl), self.lane);
        match self.pairs.iter().find(|p| p.first == n as usize).map(|p| p.kind) {
            Some(PairKind::Moments) => {
                return Ok(format!("mom{n}{lane}.add({value} - shift{n}{lane}, each{n});"));
            }
            Some(PairKind::Peak { .. }) => return Ok(format!("peak{n}{lane}.add({value});")),
            None => {}
        }
        let ty = value_type(decl.dtype)?;
        Ok(match position {
            Some(p) => format!("acc{n}{lane} = combine<{op}>(acc{n}{lane}, At<{ty}>{{{value}, {p}}});"),
            None => format!("acc{n}{lane} = combine<{op}>(acc{n}{lane}, {value});"),
        })
    }
    fn acc(&self, acc: AccId) -> String {
        let position = self.accs.get(acc.0 as usize).is_some_and(|a| keeps_position(a.op));
        match position {
            true => format!("(acc{0}{1}.p == 0x7fffffffffffffffLL ? 0 : acc{0}{1}.p)", acc.0, self.lane),
            false => format!("acc{}{}", acc.0, self.lane),
        }
    }
    fn scan(&self, name: &str, dtype: DType, op: ReduceOp, value: &str) -> Result<String, GenError> {
        let ty = value_type(dtype)?;
        let combination = accumulator(&AccDecl { op, dtype });
        let identity = number(op.identity(dtype), dtype)?;
        Ok(match self.team {
            None => format!(
                "carry_{name} = combine<{combination}>(carry_{name}, {value});\n{ty} {name} = carry_{name};\n"
            ),
            // Idle threads contribute the identity.
            Some(team) => format!(
                "{ty} total_{name};\n\
                 {ty} {name} = team_scan<{combination}, {team}>(active ? {value} : {identity}, total_{name}, scratch);\n\
                 {name} = combine<{combination}>(carry_{name}, {name});\n\
                 carry_{name} = combine<{combination}>(carry_{name}, total_{name});\n"
            ),
        })
    }
    fn template(&self) -> Result<String, GenError> {
        Err(GenError::Malformed("`template` outside of an epilogue".into()))
    }
}

impl LoopEffects<'_> {
    fn decl(&self, acc: AccId) -> Result<&AccDecl, GenError> {
        self.accs.get(acc.0 as usize).ok_or_else(|| GenError::Malformed(format!("no accumulator {}", acc.0)))
    }
}

/// Whether some of these stages scan.
pub(crate) fn has_scans(stages: &[Stage]) -> bool {
    stages.iter().flat_map(|s| &s.insts).any(|i| matches!(i.kind, InstKind::Scan { .. }))
}

/// The scans of a stage: variable, dtype, operator.
pub(crate) fn scans<'s>(
    stage: &'s Stage,
    prefix: &'s str,
) -> impl Iterator<Item = (String, DType, ReduceOp)> + use<'s> {
    stage.insts.iter().enumerate().filter_map(move |(n, inst)| match inst.kind {
        InstKind::Scan { op, .. } => Some((format!("{prefix}{n}"), inst.dtype, op)),
        _ => None,
    })
}

/// Declares running values, which begin at their identity.
fn carries(stage: &Stage, prefix: &str) -> Result<String, GenError> {
    let mut out = String::new();
    for (name, dtype, op) in scans(stage, prefix) {
        let start = number(op.identity(dtype), dtype)?;
        let _ = writeln!(out, "{} carry_{name} = {start};", value_type(dtype)?);
    }
    Ok(out)
}

/// A thread's scan of at most so many instructions an element is unrolled.
const UNROLLED_INSTS: usize = 32;

/// One thread per outer point with serial inner loops; or, with `alone`, a single thread that takes all points in order.
fn threads(program: &Program, k: &LoopKernel, entry: &str, alone: bool) -> Result<Kernel, GenError> {
    let mut uses = Uses::default();
    let points = volume(&k.outer);
    let head = BodyWriter { program, extents: &k.outer, prefix: "", guard: None, store_guard: None };
    let count = head.expr(&points, &mut uses);
    let mut body = format!(
        "for (idx p = blockIdx.x * (idx)blockDim.x + threadIdx.x; p < {count}; p += (idx)gridDim.x * blockDim.x) {{\n"
    );
    body.push_str(&unravel(&head, &k.outer, 0, "p", &mut uses));
    body.push_str(&declare(&k.accs)?);
    let effects = LoopEffects { accs: &k.accs, team: None, lane: "", pairs: &[] };
    for (n, stage) in k.stages.iter().enumerate() {
        let prefix = format!("v{n}_");
        let extents: Vec<SymExpr> = k.outer.iter().chain(&stage.inner).cloned().collect();
        let writer = BodyWriter { extents: &extents, prefix: &prefix, ..head };
        let text = writer.write(&stage.insts, &effects, &mut uses)?;
        body.push_str("{\n");
        let innermost = stage.inner.len().wrapping_sub(1);
        if stage.inner.is_empty() {
            body.push_str(&carries(stage, &prefix)?);
        }
        for (d, extent) in stage.inner.iter().enumerate() {
            if d == innermost {
                body.push_str(&carries(stage, &prefix)?);
                // One element of a scan waits for the one before, but its loads do not.
                if scans(stage, &prefix).next().is_some() && stage.insts.len() <= UNROLLED_INSTS {
                    body.push_str("#pragma unroll 8\n");
                }
            }
            let (i, extent) = (k.outer.len() + d, writer.expr(extent, &mut uses));
            let _ = writeln!(body, "for (idx i{i} = 0; i{i} < {extent}; ++i{i}) {{");
        }
        body.push_str(&text);
        body.push_str(&"}\n".repeat(stage.inner.len() + 1));
    }
    body.push_str("}\n");
    let launch = match alone {
        true => Launch::flat(SymExpr::ONE, 1),
        false => Launch::flat(blocks_of(&points, i64::from(THREADS)), THREADS),
    };
    assemble(program, entry, &uses, launch, &body)
}

/// Teams of threads, `parts` of them per outer point: each is a part of a wave, a wave or a block. Stages that reduce have one part.
fn teams(
    program: &Program,
    k: &LoopKernel,
    (team, parts): (u32, i64),
    wave: u32,
) -> Result<Kernel, GenError> {
    let (k, pairs) = fuse_peaks(program, k, Vec::new());
    let k = with_known_values(program, &k);
    let mut uses = Uses { shared: 64 * 8, ..Uses::default() };
    let points = volume(&k.outer);
    let head = BodyWriter { program, extents: &k.outer, prefix: "", guard: None, store_guard: None };
    let count = head.expr(&points, &mut uses);
    let threads = if team <= wave { 128 } else { team };
    let per_block = i64::from(threads / team);
    let mut body = format!(
        "__shared__ double scratch_memory[64];\nvoid *scratch = scratch_memory;\n\
         const int rank = threadIdx.x % {team};\n"
    );
    let of_team = format!("blockIdx.x * (idx){per_block} + threadIdx.x / {team}");
    let _ = match parts {
        1 => writeln!(body, "for (idx p = {of_team}; p < {count}; p += (idx)gridDim.x * {per_block}) {{"),
        _ => writeln!(
            body,
            "const idx parts = {parts};\n\
             for (idx t = {of_team}; t < {count} * parts; t += (idx)gridDim.x * {per_block}) {{\n\
             const idx p = t / parts, part = t % parts;"
        ),
    };
    body.push_str(&unravel(&head, &k.outer, 0, "p", &mut uses));
    body.push_str(&declare(&k.accs)?);
    for m in k.stages.iter().flat_map(|s| made(s, &pairs)).filter(|m| matches!(m, Reduction::Peak(_))) {
        let w = m.written(&k.accs)?;
        let _ = writeln!(body, "{} {} = {};", w.ty, w.name, w.start);
    }
    let acts =
        |s: &Stage| s.insts.iter().any(|i| i.kind.has_effect() || matches!(i.kind, InstKind::Check { .. }));
    for (n, stage) in k.stages.iter().enumerate().filter(|(_, s)| acts(s)) {
        body.push_str(&team_stage(&head, (&k, &pairs), (n, stage), (team, parts), &mut uses)?);
    }
    body.push_str("}\n");
    let launch = Launch::flat(blocks_of(&(points * SymExpr::from_i64(parts)), per_block), threads);
    assemble(program, ENTRY, &uses, launch, &body)
}

/// One stage run by a team: its threads take every `team`-th point; then accumulators are reduced over the team.
fn team_stage(
    head: &BodyWriter<'_>,
    (k, pairs): (&LoopKernel, &[Pair]),
    (n, stage): (usize, &Stage),
    (team, parts): (u32, i64),
    uses: &mut Uses,
) -> Result<String, GenError> {
    let prefix = format!("v{n}_");
    let extents: Vec<SymExpr> = k.outer.iter().chain(&stage.inner).cloned().collect();
    let effects = LoopEffects { accs: &k.accs, team: Some(team), lane: "", pairs };
    let first = k.outer.len();
    let mut out = String::from("{\n");
    if stage.inner.is_empty() {
        // Every thread has the values; one thread stores them.
        let once = BodyWriter { extents: &extents, prefix: &prefix, store_guard: Some("rank == 0"), ..*head };
        out.push_str(&once.write(&stage.insts, &effects, uses)?);
    } else if scans(stage, &prefix).next().is_some() {
        let writer = BodyWriter { extents: &extents, prefix: &prefix, guard: Some("active"), ..*head };
        let last = stage.inner.len() - 1;
        for (d, extent) in stage.inner[..last].iter().enumerate() {
            let (i, extent) = (first + d, writer.expr(extent, uses));
            let _ = writeln!(out, "for (idx i{i} = 0; i{i} < {extent}; ++i{i}) {{");
        }
        out.push_str(&carries(stage, &prefix)?);
        let (i, extent) = (first + last, writer.expr(&stage.inner[last], uses));
        let _ = writeln!(
            out,
            "for (idx base = 0; base < {extent}; base += {team}) {{\nconst bool active = base + rank < {extent};\n\
             const idx i{i} = active ? base + rank : 0;"
        );
        out.push_str(&writer.write(&stage.insts, &effects, uses)?);
        out.push_str(&"}\n".repeat(stage.inner.len()));
    } else {
        if parts > 1 {
            let count = BodyWriter { extents: &extents, ..*head }.expr(&volume(&stage.inner), uses);
            out.push_str(&range_of_part(&count));
        }
        let range = (parts > 1).then_some(Range { begin: "begin", end: "end", parts });
        out.push_str(&shared::points(head, (k, n), team, range.as_ref(), (&effects, ""), uses)?);
    }
    if !stage.inner.is_empty() {
        for m in made(stage, pairs) {
            let w = m.written(&k.accs)?;
            let _ = writeln!(
                out,
                "{0} = team_combine{1}<{2}, {team}>({0}, scratch);\n{3}",
                w.name,
                w.suffix,
                w.op,
                m.finalize("")
            );
        }
    }
    // The next stage reads what other threads of the team stored in this one.
    let _ = writeln!(out, "team_sync<{team}>();\n}}");
    Ok(out)
}
