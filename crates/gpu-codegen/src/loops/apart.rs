//! Stages of a loop kernel that do not need its few outer points: a kernel that scans sixteen rows and then looks at every
//! element of something that the sums select keeps sixteen blocks busy, where the second part alone fills the device. So does one
//! that draws a number for each of sixteen images and then multiplies every pixel by its image's. One that makes a factor for each
//! image and channel and multiplies every token by it would read tokens across memory, and none of them side by side.
//!
//! Not here: reductions whose outer points are few, which blocks share (`reduce`), and scans (`scan`).

use ir_core::SymExpr;
use kernel_ir::{InstKind, LoopKernel, Program, Stage};

use crate::loops::{SHORT, along_outer, hint};
use crate::text::template::volume;
use crate::{GenError, Target, Variant};

/// Points of a stage from which a launch of its own is worth it.
const ENOUGH: i64 = 64 * 1024;

/// Two kernels, where a kernel has few outer points or those alone are contiguous, scans these or has little to do for each, and its
/// last stage has no reduction and many points: all before it, and the points of that stage as a kernel without a loop.
pub(crate) fn apart(program: &Program, k: &LoopKernel, target: &Target) -> Option<[LoopKernel; 2]> {
    let (last, before) = k.stages.split_last()?;
    let outer = hint(program, &volume(&k.outer));
    let points = outer.saturating_mul(hint(program, &volume(&last.inner)));
    let few = outer < i64::from(target.multiprocessors);
    let scans = super::has_scans(before);
    let little = !before.is_empty() && before.iter().all(|s| hint(program, &volume(&s.inner)) <= SHORT);
    let across = little && along_outer(program, k);
    let suits = across || (few && (scans || little));
    if !suits || last.inner.is_empty() || points < ENOUGH || !reads_memory_alone(last) {
        return None;
    }
    let mut first = k.clone();
    first.stages.truncate(before.len());
    let mut second = k.clone();
    second.outer.extend(last.inner.iter().cloned());
    second.accs.clear();
    second.stages = vec![Stage { inner: Default::default(), insts: last.insts.clone() }];
    if across {
        second = second.reordered(&contiguous_last(k, second.outer.len()));
    }
    Some([first, second])
}

/// The loops of a kernel's points and of its last stage with the innermost loop over points behind the stage's.
fn contiguous_last(k: &LoopKernel, loops: usize) -> Vec<usize> {
    let last = k.outer.iter().rposition(|e| *e != SymExpr::ONE).unwrap_or(0);
    (0..loops).filter(|d| *d != last).chain([last]).collect()
}

/// Whether a stage uses nothing of the stages before it but what they stored.
fn reads_memory_alone(stage: &Stage) -> bool {
    stage
        .insts
        .iter()
        .all(|inst| !matches!(inst.kind, InstKind::Acc(_) | InstKind::Reduce { .. } | InstKind::Scan { .. }))
}

/// The kernels of both parts, one after the other.
pub(crate) fn both(
    program: &Program,
    name: &str,
    parts: &[LoopKernel; 2],
    target: &Target,
) -> Result<Option<Variant>, GenError> {
    let mut name = name.to_owned();
    let mut kernels = Vec::new();
    for part in parts {
        let all = super::variants(program, part, target)?;
        // Scratch memory is numbered by candidate.
        let Some(best) = all.into_iter().find(|v| v.scratch.is_empty()) else { return Ok(None) };
        name = format!("{name}_{}", best.name);
        kernels.extend(best.kernels);
    }
    Ok(Some(Variant { name, kernels, scratch: Vec::new() }))
}
