//! Reductions in the stages of a loop kernel: how several blocks share a reduction, and how blocks find out which of them
//! is the last.
//!
//! In a stage that several blocks share, each block stores its partial result in scratch memory. The last block,
//! determined by a ticket counter, combines the partial results in the order of the blocks, so the result does not depend
//! on which block is last. It then runs the stages without a loop that follow. Later kernels read the results from scratch
//! memory.

use ir_core::SymExpr;
use kernel_ir::{AccDecl, AccId, BufId, InstKind, LoopKernel, Program, Stage};

use crate::GenError;
use crate::loops::moments::{Pair, PairKind, computing};
use crate::loops::{LoopEffects, accumulator_type, keeps_position};
use crate::text::body::{BodyWriter, Uses, accumulator};
use crate::text::template::volume;
use crate::text::types::{number, value_type};

/// A reduction of a stage over its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// A single accumulator.
    One(usize),
    /// A sum and the sum of squared differences from the mean, in one pass.
    Moments(Pair),
    /// The largest number and the sum of exponentials less it, in one pass.
    Peak(Pair),
}

/// The text of a [`Reduction`].
pub(crate) struct ReductionText {
    /// The variable: `acc0`, `mom0`.
    pub(crate) name: String,
    /// Its C++ type.
    pub(crate) ty: String,
    /// The operator of `combine`.
    pub(crate) op: &'static str,
    /// What the names of `combine` and `team_combine` end with.
    pub(crate) suffix: &'static str,
    /// The identity of the operator.
    pub(crate) start: String,
    /// The number of its scratch buffer.
    pub(crate) place: usize,
    /// Bytes of one value.
    pub(crate) bytes: i64,
}

impl Reduction {
    pub(crate) fn written(self, accs: &[AccDecl]) -> Result<ReductionText, GenError> {
        match self {
            Reduction::One(n) => {
                let acc = &accs[n];
                let start = number(acc.op.identity(acc.dtype), acc.dtype)?;
                let (start, bytes) = match keeps_position(acc.op) {
                    // A value with its position takes at most two words of 8 bytes.
                    true => (format!("{{{start}, 0x7fffffffffffffffLL}}"), 16),
                    false => (start, acc.dtype.size() as i64),
                };
                let (ty, op) = (accumulator_type(acc)?, accumulator(acc));
                Ok(ReductionText { name: format!("acc{n}"), ty, op, suffix: "", start, place: n, bytes })
            }
            Reduction::Peak(Pair { first, .. }) => {
                let acc = &accs[first];
                let least = number(acc.op.identity(acc.dtype), acc.dtype)?;
                Ok(ReductionText {
                    name: format!("peak{first}"),
                    ty: format!("Peak<{}>", value_type(acc.dtype)?),
                    op: "SUM",
                    suffix: "_peaks",
                    start: format!("{{{least}, 0}}"),
                    place: first,
                    bytes: 2 * acc.dtype.size() as i64,
                })
            }
            Reduction::Moments(Pair { first: sum, .. }) => Ok(ReductionText {
                name: format!("mom{sum}"),
                ty: format!("Moments<{}>", value_type(accs[sum].dtype)?),
                op: "SUM",
                suffix: "",
                start: "{0, 0, 0, 0}".into(),
                place: sum,
                bytes: 4 * accs[sum].dtype.size() as i64,
            }),
        }
    }

    /// Returns statements that assign the accumulators of a point their final values.
    pub(crate) fn finalize(self, lane: &str) -> String {
        match self {
            Reduction::One(_) => String::new(),
            Reduction::Peak(Pair { first, second, kind }) => {
                let sum = if kind == (PairKind::Peak { finite: true }) { "sum" } else { "defined_sum()" };
                format!(
                    "acc{first}{lane} = peak{first}{lane}.largest(); acc{second}{lane} = peak{first}{lane}.{sum};\n"
                )
            }
            Reduction::Moments(Pair { first: sum, second: square, .. }) => {
                format!(
                    "acc{sum}{lane} = mom{sum}{lane}.n * (mom{sum}{lane}.shift + mom{sum}{lane}.mean); acc{square}{lane} = mom{sum}{lane}.m2;\n"
                )
            }
        }
    }

    /// For moments: statements that start a thread's count, increment it, and finish it.
    pub(crate) fn counted(self, accs: &[AccDecl], lane: &str) -> Result<[String; 3], GenError> {
        let Reduction::Moments(Pair { first: n, .. }) = self else { return Ok(Default::default()) };
        let ty = value_type(accs[n].dtype)?;
        Ok([
            format!("{ty} count{n} = 0;\n"),
            format!("count{n} += 1;\nconst {ty} each{n} = inverse(count{n});\n"),
            format!("mom{n}{lane}.n = count{n}; mom{n}{lane}.shift = shift{n}{lane};\n"),
        ])
    }

    /// For moments: the declaration of their `shift`.
    pub(crate) fn shift(self, accs: &[AccDecl]) -> Result<String, GenError> {
        let Reduction::Moments(Pair { first: n, .. }) = self else { return Ok(String::new()) };
        Ok(format!("{} shift{n}", value_type(accs[n].dtype)?))
    }

    /// For moments: statements that assign `shift` the number at the first inner point of the stage.
    pub(crate) fn shifted(
        self,
        writer: &BodyWriter<'_>,
        k: &LoopKernel,
        stage: &Stage,
        lane: &str,
        uses: &mut Uses,
    ) -> Result<String, GenError> {
        let Reduction::Moments(Pair { first: n, .. }) = self else { return Ok(String::new()) };
        let summed = stage.insts.iter().find_map(|i| match i.kind {
            InstKind::Reduce { acc: AccId(a), value, .. } if a as usize == n => Some(value),
            _ => None,
        });
        let summed = summed.ok_or_else(|| GenError::Malformed(format!("nothing is summed in acc{n}")))?;
        let insts = computing(&stage.insts, summed);
        let prefix = format!("k{n}_");
        let effects = LoopEffects { accs: &k.accs, team: None, lane: "", pairs: &[] };
        let text = BodyWriter { prefix: &prefix, ..*writer }.write(&insts, &effects, uses)?;
        let inner = k.outer.len()..k.outer.len() + stage.inner.len();
        let index: String = inner.map(|d| format!("const idx i{d} = 0;\n")).collect();
        Ok(format!("{index}{text}shift{n}{lane} = {prefix}{};\n", insts.len() - 1))
    }

    /// Registers that it takes while numbers are added.
    pub(crate) fn registers(self, accs: &[AccDecl]) -> i64 {
        let of = |n: usize| accs.get(n).map_or(1, |a| (a.dtype.size() as i64 + 3) / 4);
        match self {
            Reduction::One(n) => of(n),
            // The mean, the squared differences and what is subtracted from every number.
            Reduction::Moments(pair) => 3 * of(pair.first),
            Reduction::Peak(pair) => 2 * of(pair.first),
        }
    }

    /// Whether this reduction determines an accumulator.
    fn gives(self, acc: usize) -> bool {
        match self {
            Reduction::One(n) => n == acc,
            Reduction::Moments(pair) | Reduction::Peak(pair) => acc == pair.first || acc == pair.second,
        }
    }
}

/// The reductions of a stage.
pub(crate) fn made(stage: &Stage, pairs: &[Pair]) -> Vec<Reduction> {
    let of = |i: &kernel_ir::Inst| match i.kind {
        InstKind::Reduce { acc: AccId(n), .. } => Some(n as usize),
        _ => None,
    };
    let mut list: Vec<usize> = stage.insts.iter().filter_map(of).collect();
    list.sort_unstable();
    list.dedup();
    let with = |n: usize| match pairs.iter().find(|p| p.first == n) {
        None => Reduction::One(n),
        Some(pair) if pair.kind == PairKind::Moments => Reduction::Moments(*pair),
        Some(pair) => Reduction::Peak(*pair),
    };
    list.into_iter().map(with).collect()
}

/// Whether each accumulator is reduced by exactly one stage, in a loop.
pub(crate) fn reduced_once(k: &LoopKernel) -> bool {
    let all: Vec<Reduction> = k.stages.iter().flat_map(|s| made(s, &[])).collect();
    let alone = |s: &Stage| s.inner.is_empty() && !made(s, &[]).is_empty();
    all.iter().enumerate().all(|(n, m)| !all[..n].contains(m)) && !k.stages.iter().any(alone)
}

/// Stages that share a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) stages: std::ops::Range<usize>,
    /// Blocks that share a point of the outer domain.
    pub(crate) parts: i64,
}

/// Groups the stages of a loop kernel into kernels. `parts` gives the number of blocks that share a looped stage. Where no
/// stage is shared there is one kernel.
pub(crate) fn groups(program: &Program, k: &LoopKernel, parts: &dyn Fn(usize) -> i64) -> Vec<Group> {
    let looped = |n: usize| !k.stages[n].inner.is_empty();
    if (0..k.stages.len()).all(|n| !looped(n) || parts(n) == 1) {
        return vec![Group { stages: 0..k.stages.len(), parts: 1 }];
    }
    let mut out: Vec<Group> = Vec::new();
    for n in 0..k.stages.len() {
        match out.last_mut() {
            Some(last) if !looped(n) && follows(program, k, last.stages.start, n) => last.stages.end = n + 1,
            _ => out.push(Group { stages: n..n + 1, parts: if looped(n) { parts(n) } else { 1 } }),
        }
    }
    out
}

/// Whether stage `n`, which has no loop, may be run by the last block of stage `first`: it reads nothing that other blocks
/// stored there.
fn follows(program: &Program, k: &LoopKernel, first: usize, n: usize) -> bool {
    let written = roots(program, &k.stages[first], true);
    k.stages[first].inner.is_empty()
        || !roots(program, &k.stages[n], false).iter().any(|r| written.contains(r))
}

/// The memory that a stage stores to or, where `stored` is false, loads from.
pub(crate) fn roots(program: &Program, stage: &Stage, stored: bool) -> Vec<BufId> {
    let of = |i: &kernel_ir::Inst| match &i.kind {
        InstKind::Store { buf, .. } if stored => Some(program.root(*buf)),
        InstKind::Load { buf, .. } if !stored => Some(program.root(*buf)),
        _ => None,
    };
    stage.insts.iter().filter_map(of).collect()
}

/// The reductions of earlier kernels that a group reads from scratch memory.
pub(crate) fn read_back(k: &LoopKernel, group: &Group, pairs: &[Pair]) -> Vec<Reduction> {
    let asked = |acc: usize| {
        let is = |i: &kernel_ir::Inst| matches!(i.kind, InstKind::Acc(AccId(a)) if a as usize == acc);
        k.stages[group.stages.clone()].iter().any(|s| s.insts.iter().any(is))
    };
    let earlier = k.stages[..group.stages.start].iter().flat_map(|s| made(s, pairs));
    earlier.filter(|m| (0..k.accs.len()).any(|a| m.gives(a) && asked(a))).collect()
}

/// The reductions of a group that later kernels read.
pub(crate) fn kept(k: &LoopKernel, group: &Group, pairs: &[Pair]) -> Vec<Reduction> {
    let rest = Group { stages: group.stages.end..k.stages.len(), parts: 1 };
    let own: Vec<Reduction> = k.stages[group.stages.clone()].iter().flat_map(|s| made(s, pairs)).collect();
    read_back(k, &rest, pairs).into_iter().filter(|m| own.contains(m)).collect()
}

/// Bytes of the scratch buffers, one per accumulator: the result of each outer point, then the partial results.
pub(crate) fn scratch(k: &LoopKernel, groups: &[Group], pairs: &[Pair]) -> Result<Vec<SymExpr>, GenError> {
    let mut out = vec![SymExpr::ZERO; k.accs.len()];
    for group in groups {
        for m in k.stages[group.stages.clone()].iter().flat_map(|s| made(s, pairs)) {
            let w = m.written(&k.accs)?;
            out[w.place] = volume(&k.outer) * SymExpr::from_i64((1 + group.parts) * w.bytes);
        }
    }
    Ok(out)
}
