//! A new order of steps, in progress: every step behind all that it must follow, and loops that read what was exchanged as late
//! as the next bucket.
//!
//! Not here: which exchanges are a bucket (`groups`).

use super::flow::{Flow, Weight};

/// The new order.
pub(super) struct Placement<'a> {
    flow: &'a Flow,
    /// For each bucket the number behind its last exchange.
    ends: &'a [usize],
    placed: Vec<bool>,
    order: Vec<usize>,
    /// Loops that read results, in their order.
    held: Vec<usize>,
    /// The exchanges from this one on have not had the work of a bucket for themselves.
    fresh: usize,
}

impl<'a> Placement<'a> {
    pub(super) fn new(flow: &'a Flow, ends: &'a [usize]) -> Placement<'a> {
        let placed = vec![false; flow.weights.len()];
        Placement { flow, ends, placed, order: Vec::new(), held: Vec::new(), fresh: 0 }
    }

    /// The order of a program whose buckets have their places: loops that read results of a bucket stand behind the next one.
    pub(super) fn order(mut self) -> Vec<usize> {
        for n in 0..self.placed.len() {
            match (self.flow.number[n], self.flow.weights[n]) {
                (Some(_), _) if self.placed[n] => {}
                (Some(number), _) => self.start(number),
                (None, Weight::Fixed) => (0..=n).for_each(|b| self.place(b)),
                (None, Weight::Light) if self.reads_fresh(n) => self.held.push(n),
                (None, _) => self.place(n),
            }
        }
        self.finished()
    }

    /// The order, with what has no place yet at its end.
    pub(super) fn finished(mut self) -> Vec<usize> {
        (0..self.placed.len()).for_each(|n| self.place(n));
        self.order
    }

    /// Puts the exchanges of the bucket that this one begins in their place, and behind them the loops that read results of earlier
    /// ones.
    fn start(&mut self, first: usize) {
        let end = self.ends[self.ends.partition_point(|end| *end <= first)];
        self.fresh = first;
        self.side_by_side((first..end).map(|number| self.flow.exchanges[number].step));
        let (held, due): (Vec<usize>, Vec<usize>) = std::mem::take(&mut self.held)
            .into_iter()
            .filter(|n| !self.placed[*n])
            .partition(|n| self.flow.needs[*n].has_from(first));
        self.held = held;
        due.into_iter().for_each(|n| self.place(n));
    }

    /// Puts exchanges one behind the other. All operands stand before the first of them, so that nothing is between.
    pub(super) fn side_by_side(&mut self, steps: impl Iterator<Item = usize>) {
        let steps: Vec<usize> = steps.collect();
        let operands = steps.iter().flat_map(|n| self.flow.before[*n].iter().copied());
        let operands: Vec<usize> = operands.filter(|b| self.flow.number[*b].is_none()).collect();
        operands.into_iter().chain(steps).for_each(|n| self.place(n));
    }

    /// Whether a step needs what is not placed yet, or what was exchanged only now.
    fn reads_fresh(&self, n: usize) -> bool {
        let fresh = |b: &usize| !self.placed[*b] || self.flow.number[*b].is_some_and(|e| e >= self.fresh);
        !self.placed[n] && self.flow.before[n].iter().any(fresh)
    }

    /// Puts a step behind all that it must follow.
    pub(super) fn place(&mut self, n: usize) {
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
