//! The static memory plan: which arena buffers may share memory. It is a function of the program and, where sizes are
//! symbolic, of their values; backends call it and do not make plans of their own.

use ir_core::{Arena, Atom, EntityId, SymId};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{BufId, Program, Step, Storage, written};

/// Alignment of every arena buffer in bytes: one cache line, one 512-bit vector.
pub const ALIGN: u64 = 64;

/// The live range of each arena buffer, and its offset if the sizes are known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaPlan {
    /// For every buffer of storage `Arena` whose size is known before the call: first step that writes it, last step
    /// that uses it. Nested steps count as the step of the program that they are in.
    pub lives: Vec<LiveRange>,
    /// Offset in bytes of each entry of `lives`, where every size is a number. No two buffers share memory while both live;
    /// [`place`](ArenaPlan::place) needs less.
    pub offsets: Option<Vec<u64>>,
    /// Bytes of the arena, where every size is a number.
    pub bytes: Option<u64>,
    /// The same for the buffers of storage `Arena` whose size a step computes: they have memory of their own, which may be
    /// freed after the last use.
    #[serde(default)]
    pub dynamic: Vec<LiveRange>,
}

/// The live range of one arena buffer, in step numbers, both inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRange {
    /// The buffer.
    pub buf: BufId,
    /// Step that first writes it.
    pub first: u32,
    /// Step that last reads or writes it.
    pub last: u32,
}

/// Errors of planning.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanError {
    /// A size has no value.
    #[error("the size of buffer `{0}` is not known: a size symbol is unbound")]
    Unbound(String),
    /// Sizes are too large.
    #[error("buffer `{0}` needs more memory than can be addressed")]
    TooLarge(String),
    /// A size is negative: the inputs are smaller than the program requires.
    #[error("dimension {dim} of `{buffer}`, `{expr}`, is {size}: the inputs are too small for it")]
    Negative {
        /// Name of the buffer, which is that of its value.
        buffer: String,
        /// Which dimension.
        dim: usize,
        /// The size as the program writes it.
        expr: String,
        /// Its value.
        size: i64,
    },
}

impl ArenaPlan {
    /// The live ranges of all arena buffers of `program`, and offsets where its sizes are numbers.
    pub fn of(program: &Program) -> ArenaPlan {
        let mut lives: Arena<BufId, Option<LiveRange>> = program.buffers.ids().map(|_| None).collect();
        for (n, step) in program.steps.iter().enumerate() {
            let (reads, writes) = step.accesses();
            for buf in reads.into_iter().chain(writes) {
                let root = program.root(buf);
                if program.buffers[root].storage == Storage::Arena {
                    let n = n as u32;
                    lives[root].get_or_insert(LiveRange { buf: root, first: n, last: n }).last = n;
                }
            }
        }
        let (dynamic, lives) = lives.values().flatten().partition(|l: &&LiveRange| program.is_dynamic(l.buf));
        let mut plan = ArenaPlan { lives, offsets: None, bytes: None, dynamic };
        if let Ok((offsets, bytes)) = plan.place_apart(program) {
            plan.offsets = Some(offsets);
            plan.bytes = Some(bytes);
        }
        plan
    }

    /// Offsets (in the order of `lives`) and total bytes for the given symbol values. A loop may write a buffer over one that it
    /// reads for the last time, where every point reads the one at the place where it writes the other: both then share
    /// an offset in the step where their lives meet.
    ///
    /// # Errors
    /// A size is unbound, negative or too large.
    pub fn place(
        &self,
        program: &Program,
        symbols: &dyn Fn(SymId) -> Option<i64>,
    ) -> Result<(Vec<u64>, u64), PlanError> {
        self.place_over(program, symbols, &|step| matches!(step, Step::Loop(_)))
    }

    /// As [`place`](Self::place), where the epilogues of products and convolutions may write over what they read in the same way:
    /// for executors that store nothing in the memory of a result before its epilogue has read there.
    ///
    /// # Errors
    /// As `place`.
    pub fn place_over_operands(
        &self,
        program: &Program,
        symbols: &dyn Fn(SymId) -> Option<i64>,
    ) -> Result<(Vec<u64>, u64), PlanError> {
        self.place_over(program, symbols, &|_| true)
    }

    fn place_over(
        &self,
        program: &Program,
        symbols: &dyn Fn(SymId) -> Option<i64>,
        may: &dyn Fn(&Step) -> bool,
    ) -> Result<(Vec<u64>, u64), PlanError> {
        let sizes = self.sizes(program, symbols)?;
        let apart = self.greedy(program, &sizes, &(0..sizes.len()).collect::<Vec<_>>())?;
        let heads = self.take_overs(program, may);
        if heads.iter().enumerate().all(|(i, head)| i == *head) {
            return Ok(apart);
        }
        // The greedy order is a heuristic: longer lives of one memory may, rarely, pack worse.
        let shared = self.greedy(program, &sizes, &heads)?;
        Ok(if shared.1 <= apart.1 { shared } else { apart })
    }

    /// Whether [`place_over_operands`](Self::place_over_operands) may give one memory to both buffers, or to what they are views
    /// of, although one step uses both: it writes the one over the other. Code of a step that reads the one and writes the other
    /// must not take what it reads for constant, nor their memory for different. `true` may be said of more than are placed so.
    pub fn may_share(&self, program: &Program, a: BufId, b: BufId) -> bool {
        let (a, b) = (program.root(a), program.root(b));
        let life = |buf: BufId| self.lives.iter().find(|l| l.buf == buf);
        let (Some(first), Some(second)) = (life(a), life(b)) else { return false };
        let (one, other) = (&program.buffers[a], &program.buffers[b]);
        a != b
            && (first.last == second.first || second.last == first.first)
            && one.dtype.size() == other.dtype.size()
            && one.span() == other.span()
    }

    /// As [`place`](Self::place), with buffers that share no memory in any step: the plan of the program's own bytes, which
    /// readers may check without looking into its steps.
    fn place_apart(&self, program: &Program) -> Result<(Vec<u64>, u64), PlanError> {
        let sizes = self.sizes(program, &|_| None)?;
        self.greedy(program, &sizes, &(0..sizes.len()).collect::<Vec<_>>())
    }

    /// Bytes of each entry of `lives`.
    fn sizes(
        &self,
        program: &Program,
        symbols: &dyn Fn(SymId) -> Option<i64>,
    ) -> Result<Vec<u64>, PlanError> {
        check_sizes(program, symbols)?;
        self.lives.iter().map(|l| bytes_of(program, l.buf, symbols)).collect()
    }

    /// For each entry of `lives` the first of the chain of buffers that are written over one another, itself where it is in none.
    fn take_overs(&self, program: &Program, may: &dyn Fn(&Step) -> bool) -> Vec<usize> {
        let mut heads: Vec<usize> = (0..self.lives.len()).collect();
        let mut ending: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
        for (i, live) in self.lives.iter().enumerate() {
            ending.entry(live.last).or_default().push(i);
        }
        let mut beginning: Vec<usize> = (0..self.lives.len()).collect();
        beginning.sort_by_key(|&i| self.lives[i].first);
        for to in beginning {
            let LiveRange { buf, first, .. } = self.lives[to];
            let Some(step) = program.steps.get(first as usize).filter(|step| may(step)) else { continue };
            let Some(open) = ending.get_mut(&first) else { continue };
            let takes = |&from: &usize| {
                from != to
                    && self.lives[from].first < first
                    && written::may_take_over(program, step, self.lives[from].buf, buf)
            };
            if let Some(at) = open.iter().position(takes) {
                heads[to] = heads[open.swap_remove(at)];
            }
        }
        heads
    }

    /// Greedy by size: the largest memory first, each at the lowest offset that is free while any of its buffers lives. Buffers
    /// with one head are one memory.
    fn greedy(
        &self,
        program: &Program,
        sizes: &[u64],
        heads: &[usize],
    ) -> Result<(Vec<u64>, u64), PlanError> {
        let mut lives = self.lives.clone();
        for (i, &head) in heads.iter().enumerate() {
            lives[head].last = lives[head].last.max(self.lives[i].last);
        }
        let mut order: Vec<usize> = (0..sizes.len()).filter(|&i| heads[i] == i).collect();
        order.sort_by_key(|&i| (std::cmp::Reverse(sizes[i]), lives[i].first, lives[i].buf.index()));
        let mut offsets = vec![0u64; sizes.len()];
        let mut placed: Vec<usize> = Vec::new();
        let mut total = 0u64;
        for &i in &order {
            let live = lives[i];
            let overlaps = |j: &&usize| lives[**j].first <= live.last && live.first <= lives[**j].last;
            let mut taken: Vec<(u64, u64)> =
                placed.iter().filter(overlaps).map(|&j| (offsets[j], offsets[j] + sizes[j])).collect();
            taken.sort_unstable();
            let mut at = 0u64;
            for (start, end) in taken {
                if at + sizes[i] <= start {
                    break;
                }
                at = at.max(end);
            }
            offsets[i] = at;
            let end = at.checked_add(sizes[i]).filter(|&e| e <= isize::MAX as u64);
            total =
                total.max(end.ok_or_else(|| PlanError::TooLarge(program.buffers[live.buf].name.clone()))?);
            placed.push(i);
        }
        for (i, &head) in heads.iter().enumerate() {
            offsets[i] = offsets[head];
        }
        Ok((offsets, total))
    }
}

/// An error where a buffer's size is negative. Sizes that a step determines are checked when it does.
fn check_sizes(program: &Program, symbols: &dyn Fn(SymId) -> Option<i64>) -> Result<(), PlanError> {
    let leaf = |a: &Atom| match a {
        Atom::Sym(id) => symbols(*id),
        _ => None,
    };
    for (id, buffer) in program.buffers.iter().filter(|(_, b)| !matches!(b.storage, Storage::View(_))) {
        for (dim, e) in buffer.sizes.iter().enumerate() {
            let Some(size) = e.eval(&leaf).filter(|size| *size < 0) else { continue };
            if !program.is_dynamic(id) {
                let (buffer, expr) = (buffer.name.clone(), e.to_string());
                return Err(PlanError::Negative { buffer, dim, expr, size });
            }
        }
    }
    Ok(())
}

fn bytes_of(program: &Program, buf: BufId, symbols: &dyn Fn(SymId) -> Option<i64>) -> Result<u64, PlanError> {
    let buffer = &program.buffers[buf];
    let leaf = |a: &Atom| match a {
        Atom::Sym(id) => symbols(*id),
        _ => None,
    };
    let elements = buffer.span().eval(&leaf).ok_or_else(|| PlanError::Unbound(buffer.name.clone()))?;
    let elements = u64::try_from(elements.max(0)).unwrap_or(0);
    let bytes =
        elements.checked_mul(buffer.dtype.size() as u64).and_then(|b| b.checked_next_multiple_of(ALIGN));
    bytes.ok_or_else(|| PlanError::TooLarge(buffer.name.clone()))
}
