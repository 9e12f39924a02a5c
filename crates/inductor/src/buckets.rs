//! Exchanges side by side: neighbours of one group that do not need one another become a bucket, which an engine runs as one. Each first moves behind the last costly step that it depends on; their order is then that of these steps. What is
//! decided here follows from the program's dependencies and the bytes of exchanges, so that ranks with equal programs decide
//! alike; those with different ones find that out when they compare their exchanges, and compile with none brought together.
//!
//! A bucket is *late*, in the place of its last exchange, where nothing costly could use a result before: gradients, which
//! updates read. It is *early*, in the place of its first one, where operands are there by then: weights that are gathered,
//! one bucket ahead of those who read them. Loops that read a result stand behind the next bucket, or where they are needed, so
//! that an exchange has the work of one bucket for itself.
//!
//! Not here: where an exchange is waited for (`exchanges`), and who runs a bucket as one (backends).

use ir_core::EntityId;
use kernel_ir::{ExternCall, ExternOp, Footprint, Program, SELF_GROUP, Step};

use crate::defs::LIKELY;

/// Bytes of a bucket: enough that a link is busy, little enough that the first exchanges begin early.
const MAX_BYTES: i64 = 25 << 20;
/// The same for the first one of a group: what follows it begins the sooner.
const FIRST_BYTES: i64 = 1 << 20;

/// The same steps in an order in which buckets stand side by side, each with the number of its bucket.
pub(crate) fn run(program: &Program, steps: Vec<Step>) -> Vec<(Step, Option<usize>)> {
    let steps = advanced(program, steps);
    let flow = Flow::of(program, &steps, true);
    let buckets = flow.buckets();
    let order = Placement::new(&flow, &buckets).order();
    debug_assert_eq!(order.len(), steps.len(), "every step has one place");
    let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    let bucket = |n: usize| Some(buckets.partition_point(|b| Some(b.end) <= flow.number[n]));
    let bucket = |n: usize| flow.number[n].and_then(|_| bucket(n));
    order.into_iter().filter_map(|n| Some((steps[n].take()?, bucket(n)))).collect()
}

/// The same steps with every exchange behind the last costly step that it depends on: the graph has that of a gradient where its
/// update is. Exchanges of inputs stay where they are needed; small ones join those before, so that they do not stand between
/// others.
fn advanced(program: &Program, steps: Vec<Step>) -> Vec<Step> {
    let flow = Flow::of(program, &steps, false);
    let mut ready: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    // The exchanges of inputs so far; those of few bytes are made with the ones before.
    let mut inputs: Vec<&Exchanged> = Vec::new();
    for exchange in &flow.exchanges {
        match flow.ready(exchange.step) {
            Some(n) => ready[n].push(exchange.step),
            None => {
                let alike = |e: &&&Exchanged| {
                    e.group == exchange.group && flow.segments[e.step] == flow.segments[exchange.step]
                };
                let before = inputs.iter().rev().find(alike).filter(|_| exchange.bytes <= FIRST_BYTES);
                before.into_iter().for_each(|e| ready[e.step].push(exchange.step));
                // Those that were moved are no places for others.
                if before.is_none() {
                    inputs.push(exchange);
                }
            }
        }
    }
    let moved: Vec<usize> = ready.iter().flatten().copied().collect();
    let mut placement = Placement::new(&flow, &[]);
    for (n, behind) in ready.iter().enumerate() {
        if !moved.contains(&n) {
            placement.place(n);
        }
        behind.iter().for_each(|exchange| placement.place(*exchange));
    }
    let mut steps: Vec<Option<Step>> = steps.into_iter().map(Some).collect();
    placement.order.into_iter().filter_map(|n| steps[n].take()).collect()
}

/// A set of exchanges, by their numbers.
#[derive(Clone, Default)]
struct Set(Vec<u64>);

impl Set {
    fn insert(&mut self, n: usize) {
        self.0.resize(self.0.len().max(n / 64 + 1), 0);
        self.0[n / 64] |= 1 << (n % 64);
    }
    fn extend(&mut self, other: &Set) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a |= b);
    }
    fn contains(&self, n: usize) -> bool {
        self.0.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }
    /// Whether it has one of `from..to`.
    fn meets(&self, from: usize, to: usize) -> bool {
        (from..to).any(|n| self.contains(n))
    }
}

/// What kind of step one is to the order of steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// A loop: cheap beside what waits for it.
    Light,
    /// A product, a routine, an exchange.
    Heavy,
    /// It binds a size, or runs other steps: nothing moves past it.
    Fixed,
}

/// An exchange of the program.
struct Exchanged {
    /// The number of its step.
    step: usize,
    group: String,
    bytes: i64,
}

/// Consecutive exchanges, by their numbers.
struct Bucket {
    first: usize,
    /// Behind the last one.
    end: usize,
    /// Whether it stands in the place of its first exchange.
    early: bool,
}

/// The dependencies of a list of steps.
struct Flow {
    weights: Vec<Weight>,
    /// For each step those before it that it must follow.
    before: Vec<Vec<usize>>,
    /// For each step the exchanges whose results it depends on.
    needs: Vec<Set>,
    /// For each step how many fixed ones come before.
    segments: Vec<usize>,
    exchanges: Vec<Exchanged>,
    /// For each step the number of the exchange that it is.
    number: Vec<Option<usize>>,
}

impl Flow {
    /// `chained`: every exchange follows the one before it.
    fn of(program: &Program, steps: &[Step], chained: bool) -> Flow {
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
    fn ready(&self, exchange: usize) -> Option<usize> {
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

    /// Divides the exchanges into buckets.
    fn buckets(&self) -> Vec<Bucket> {
        let heavy: Vec<usize> =
            (0..self.weights.len()).filter(|n| self.weights[*n] != Weight::Light).collect();
        let mut all: Vec<Bucket> = Vec::new();
        let mut first = 0;
        while first < self.exchanges.len() {
            let own = &self.exchanges[first];
            let alike = |e: &Exchanged| e.group == own.group;
            let begun = all.iter().any(|b| alike(&self.exchanges[b.first]));
            let most = if begun { MAX_BYTES } else { FIRST_BYTES };
            let (mut end, mut bytes, mut late, mut early) = (first + 1, own.bytes, true, true);
            while let Some(next) = self.exchanges.get(end) {
                bytes = bytes.saturating_add(next.bytes);
                if !alike(next) || bytes > most || !self.independent(first, end) {
                    break;
                }
                let still =
                    (late && self.may_wait(&heavy, first, end), early && self.is_ready(own.step, end));
                if still == (false, false) {
                    break;
                }
                (late, early) = still;
                end += 1;
            }
            all.push(Bucket { first, end, early });
            first = end;
        }
        all
    }

    /// Whether exchange `next` needs none of those from `first` on, and nothing fixed is between.
    fn independent(&self, first: usize, next: usize) -> bool {
        let [from, to] = [first, next].map(|n| self.exchanges[n].step);
        self.segments[from] == self.segments[to] && !self.needs[to].meets(first, next)
    }

    /// Whether all that is costly and depends on the exchanges from `first` on depends on `next` too.
    fn may_wait(&self, heavy: &[usize], first: usize, next: usize) -> bool {
        heavy.iter().all(|n| {
            let needs = &self.needs[*n];
            needs.contains(next) || !needs.meets(first, next)
        })
    }

    /// Whether an exchange may be in the place of an earlier step, with no more than loops moved ahead of it.
    fn is_ready(&self, place: usize, exchange: usize) -> bool {
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

/// The new order, in progress.
struct Placement<'a> {
    flow: &'a Flow,
    buckets: &'a [Bucket],
    /// The number of the bucket that is started next.
    next: usize,
    placed: Vec<bool>,
    order: Vec<usize>,
    /// Loops that read results, in their order.
    held: Vec<usize>,
    /// The exchanges from this one on have not had the work of a bucket for themselves.
    fresh: usize,
}

impl<'a> Placement<'a> {
    fn new(flow: &'a Flow, buckets: &'a [Bucket]) -> Placement<'a> {
        let placed = vec![false; flow.weights.len()];
        Placement { flow, buckets, next: 0, placed, order: Vec::new(), held: Vec::new(), fresh: 0 }
    }

    fn order(mut self) -> Vec<usize> {
        let count = self.placed.len();
        for n in 0..count {
            match (self.flow.number[n], self.flow.weights[n]) {
                (Some(number), _) => self.exchange(n, number),
                (None, Weight::Fixed) => (0..=n).for_each(|b| self.place(b)),
                (None, Weight::Light) if self.reads_fresh(n) => self.held.push(n),
                (None, _) => self.place(n),
            }
        }
        (0..count).for_each(|n| self.place(n));
        self.order
    }

    /// At the step of an exchange: starts its bucket where that belongs here, and the one behind it where that may be ahead.
    fn exchange(&mut self, n: usize, number: usize) {
        let own = self.buckets.partition_point(|b| b.end <= number);
        let Bucket { end, early, .. } = self.buckets[own];
        if own == self.next && (early || number + 1 == end) {
            self.start(own);
        }
        if let Some(ahead) = self.buckets.get(own + 1).filter(|b| b.early && self.next == own + 1)
            && (ahead.first..ahead.end).all(|e| self.flow.is_ready(n, e))
        {
            self.start(own + 1);
        }
    }

    /// Puts the exchanges of a bucket in their place, and behind them the loops that read results of earlier ones.
    fn start(&mut self, bucket: usize) {
        let Bucket { first, end, .. } = self.buckets[bucket];
        self.next = bucket + 1;
        self.fresh = first;
        let operands = |number: usize| self.flow.before[self.flow.exchanges[number].step].iter().copied();
        // All operands stand before the first of them, so that nothing is between the exchanges.
        let operands: Vec<usize> =
            (first..end).flat_map(operands).filter(|b| self.flow.number[*b].is_none()).collect();
        operands.into_iter().for_each(|b| self.place(b));
        (first..end).for_each(|number| self.place(self.flow.exchanges[number].step));
        let all = self.flow.exchanges.len();
        let (held, due): (Vec<usize>, Vec<usize>) = std::mem::take(&mut self.held)
            .into_iter()
            .filter(|n| !self.placed[*n])
            .partition(|n| self.flow.needs[*n].meets(first, all));
        self.held = held;
        due.into_iter().for_each(|n| self.place(n));
    }

    /// Whether a step needs what is not placed yet, or what was exchanged only now.
    fn reads_fresh(&self, n: usize) -> bool {
        let fresh = |b: &usize| !self.placed[*b] || self.flow.number[*b].is_some_and(|e| e >= self.fresh);
        !self.placed[n] && self.flow.before[n].iter().any(fresh)
    }

    /// Puts a step behind all that it must follow.
    fn place(&mut self, n: usize) {
        let (mut open, mut all) = (vec![n], Vec::new());
        while let Some(step) = open.pop() {
            if !std::mem::replace(&mut self.placed[step], true) {
                all.push(step);
                open.extend(&self.flow.before[step]);
            }
        }
        // The order of the program is one in which all steps follow what they need.
        all.sort_unstable();
        self.order.extend(all);
    }
}
