//! What a list of steps depends on, as far as exchanges care: which steps each must follow, and whose results it needs.
//!
//! Not here: which exchanges become a bucket (`groups`), and the order of steps that follows (`placement`).

use ir_core::EntityId;
use kernel_ir::{ExternCall, ExternOp, Footprint, Program, SELF_GROUP, Step};

use crate::defs::LIKELY;

/// A set of exchanges, by their numbers.
#[derive(Clone, Default)]
pub(super) struct Set(Vec<u64>);

impl Set {
    pub(super) fn insert(&mut self, n: usize) {
        self.0.resize(self.0.len().max(n / 64 + 1), 0);
        self.0[n / 64] |= 1 << (n % 64);
    }
    pub(super) fn extend(&mut self, other: &Set) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
    pub(super) fn contains(&self, n: usize) -> bool {
        self.0.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }
    /// Whether they have one in common.
    pub(super) fn meets(&self, other: &Set) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }
    /// Whether the other has all of it.
    pub(super) fn is_within(&self, other: &Set) -> bool {
        let other = other.0.iter().copied().chain(std::iter::repeat(0));
        self.0.iter().zip(other).all(|(a, b)| a & !b == 0)
    }
    /// Whether it has one from this number on.
    pub(super) fn has_from(&self, first: usize) -> bool {
        (first..self.0.len() * 64).any(|n| self.contains(n))
    }
}

/// What kind of step one is to the order of steps.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Weight {
    /// A loop: cheap beside what waits for it.
    Light,
    /// A product, a routine, an exchange.
    Heavy,
    /// It binds a size, or runs other steps: nothing moves past it.
    Fixed,
}

/// An exchange of the program.
pub(super) struct Exchanged {
    /// The number of its step.
    pub(super) step: usize,
    pub(super) group: String,
    pub(super) bytes: i64,
}

/// The dependencies of a list of steps.
pub(super) struct Flow {
    pub(super) weights: Vec<Weight>,
    /// For each step those before it that it must follow.
    pub(super) before: Vec<Vec<usize>>,
    /// For each step the exchanges whose results it depends on.
    pub(super) needs: Vec<Set>,
    /// For each step how many fixed ones come before.
    pub(super) segments: Vec<usize>,
    pub(super) exchanges: Vec<Exchanged>,
    /// For each step the number of the exchange that it is.
    pub(super) number: Vec<Option<usize>>,
}

impl Flow {
    /// `chained`: every exchange follows the one before it.
    pub(super) fn of(program: &Program, steps: &[Step], chained: bool) -> Flow {
        let mut flow = Flow {
            weights: steps.iter().map(weight).collect(),
            before: Vec::with_capacity(steps.len()),
            needs: Vec::with_capacity(steps.len()),
            segments: Vec::with_capacity(steps.len()),
            exchanges: Vec::new(),
            number: Vec::with_capacity(steps.len()),
        };
        // The last step that writes each buffer, and those that have read it since.
        let mut written: Vec<Option<usize>> = vec![None; program.buffers.len()];
        let mut read: Vec<Vec<usize>> = vec![Vec::new(); program.buffers.len()];
        let mut fixed = 0;
        for (n, step) in steps.iter().enumerate() {
            let used = Footprint::of(program, step);
            let mut before: Vec<usize> = used.reads.iter().filter_map(|b| written[b.index()]).collect();
            for b in &used.writes {
                before.extend(written[b.index()].replace(n));
                before.append(&mut read[b.index()]);
            }
            used.reads.iter().for_each(|b| read[b.index()].push(n));
            before.retain(|b| *b != n);
            before.sort_unstable();
            before.dedup();
            let mut needs = Set::default();
            for b in &before {
                needs.extend(&flow.needs[*b]);
                flow.number[*b].into_iter().for_each(|number| needs.insert(number));
            }
            fixed += usize::from(flow.weights[n] == Weight::Fixed);
            let exchange = exchanged(program, n, step);
            flow.number.push(exchange.is_some().then_some(flow.exchanges.len()));
            if let (Some(_), Some(last), true) = (&exchange, flow.exchanges.last(), chained) {
                before.push(last.step);
            }
            flow.exchanges.extend(exchange);
            flow.before.push(before);
            flow.needs.push(needs);
            flow.segments.push(fixed);
        }
        flow
    }

    /// The last step before an exchange that it depends on through loops alone, and that is no loop itself; none where it depends on
    /// inputs.
    pub(super) fn ready(&self, exchange: usize) -> Option<usize> {
        let fixed = (0..exchange).rev().find(|n| self.weights[*n] == Weight::Fixed);
        let (mut open, mut seen, mut last) = (vec![exchange], vec![false; exchange + 1], None);
        while let Some(step) = open.pop() {
            for &b in &self.before[step] {
                match self.weights[b] {
                    Weight::Light if !std::mem::replace(&mut seen[b], true) => open.push(b),
                    Weight::Light => {}
                    _ => last = last.max(Some(b)),
                }
            }
        }
        last.map(|last| last.max(fixed.unwrap_or(0)))
    }

    /// Whether an exchange may be in the place of an earlier step, with no more than loops moved ahead of it.
    pub(super) fn is_ready(&self, place: usize, exchange: usize) -> bool {
        let at = self.exchanges[exchange].step;
        let (mut open, mut seen) = (vec![at], vec![at]);
        while let Some(step) = open.pop() {
            for &b in self.before[step].iter().filter(|b| **b >= place) {
                match self.number[b] {
                    // Exchanges keep their order in any case; an operand that is one's result is another matter.
                    Some(number) if !self.needs[at].contains(number) => {}
                    None if self.weights[b] == Weight::Light => {
                        if !seen.contains(&b) {
                            seen.push(b);
                            open.push(b);
                        }
                    }
                    _ => return false,
                }
            }
        }
        self.segments[place] == self.segments[at]
    }
}

fn weight(step: &Step) -> Weight {
    match step {
        Step::Loop(_) => Weight::Light,
        Step::Matmul(_) | Step::Conv(_) | Step::Attention(_) | Step::Extern(_) => Weight::Heavy,
        Step::Together(_) | Step::Bind(_) | Step::Assert(_) => Weight::Fixed,
        Step::Cond(_) | Step::For(_) | Step::While(_) => Weight::Fixed,
    }
}

fn exchanged(program: &Program, n: usize, step: &Step) -> Option<Exchanged> {
    let Step::Extern(ExternCall { op: ExternOp::Collective(c), inputs, outputs, .. }) = step else {
        return None;
    };
    if c.group == SELF_GROUP {
        return None;
    }
    let bytes = inputs.iter().chain(outputs).map(|o| {
        let elements = ir_core::numel(&o.sizes).eval(&|a| program.symbols.likely(a, LIKELY));
        elements.unwrap_or(i64::MAX).saturating_mul(program.buffers[o.buf].dtype.size() as i64)
    });
    let bytes = bytes.max().unwrap_or(0);
    Some(Exchanged { step: n, group: c.group.clone(), bytes })
}
