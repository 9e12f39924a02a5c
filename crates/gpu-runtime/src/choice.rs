//! The choice of a candidate without a search, by the cost model of the device's architecture: which candidate is first,
//! whether a library is worth asking, and which candidates are so close that they are timed.
//!
//! Architectures without a model keep the rules of `plan` and `gpu-codegen`. Not here: the model
//! ([`gpu_codegen::Model`]), and the search (`autotune`).

use gpu_codegen::{Model, StepWork, Target};
use kernel_ir::{Program, Step};

use crate::{Candidate, Mode};

/// What a library must be predicted to save before mode `default` asks it, as a share of the time: its first answer takes
/// a tenth of a second.
const WORTH_ASKING: f64 = 0.1;
/// Candidates that are timed in `reduce-overhead`: those that are predicted to take this much more than the first, since the
/// model is off by as much.
const CLOSE: f64 = 0.08;
/// How many of them, the first included, and in programs of how many products and convolutions: each takes a kernel to
/// compile and a few milliseconds.
const MOST_TIMED: usize = 2;
const FEW_STEPS: usize = 8;

/// The predicted times of a step's candidates.
pub(crate) struct Predicted<'a> {
    work: StepWork,
    model: &'a Model,
}

impl<'a> Predicted<'a> {
    /// Those of a step; `None` where the device has no model, or it does not know all kinds of the step's candidates.
    pub(crate) fn of(program: &Program, step: &Step, target: &'a Target) -> Option<Predicted<'a>> {
        let model = &*target.costs.as_ref()?.0;
        let work = StepWork::of(program, step, target)?;
        let kinds = work.generated().iter().map(|(_, w)| w.kind).chain([work.library(1).kind]);
        let known = !work.generated().is_empty() && kinds.into_iter().all(|kind| model.knows(kind));
        known.then_some(Predicted { work, model })
    }

    /// Seconds of a generated candidate.
    fn generated(&self, name: &str) -> Option<f64> {
        let (_, work) = self.work.generated().iter().find(|(known, _)| known == name)?;
        self.model.predict(work)
    }

    /// Seconds of the quickest one.
    fn quickest_generated(&self) -> f64 {
        let times = self.work.generated().iter().filter_map(|(_, work)| self.model.predict(work));
        times.fold(f64::INFINITY, f64::min)
    }

    /// Seconds of a library's candidate of so many kernels.
    fn library(&self, kernels: usize) -> f64 {
        self.model.predict(self.work.library(kernels)).unwrap_or(f64::INFINITY)
    }

    /// Whether a library may have the quickest candidate: one that needs no other kernel.
    pub(crate) fn asks_library(&self, mode: Mode) -> bool {
        let worth = if mode == Mode::Default { 1.0 - WORTH_ASKING } else { 1.0 };
        self.library(1) < worth * self.quickest_generated()
    }

    /// Whether a library has offered a candidate that no generated one comes close to, so that no text need be generated.
    pub(crate) fn is_settled(&self, offered: &[Candidate]) -> bool {
        let times = offered.iter().map(|c| self.library(c.parts.len()));
        times.fold(f64::INFINITY, f64::min) * (1.0 + CLOSE) < self.quickest_generated()
    }

    /// Puts a library's candidates and generated ones in the order of their predicted times. The search's names tell which
    /// are generated; those of no predicted time are last.
    pub(crate) fn order(&self, candidates: Vec<(Candidate, bool)>) -> Vec<(f64, Candidate)> {
        let time = |c: &Candidate, is_library: bool| match is_library {
            true => self.library(c.parts.len()),
            false => self.generated(&c.name).unwrap_or(f64::INFINITY),
        };
        let mut timed: Vec<(f64, Candidate)> =
            candidates.into_iter().map(|(c, is_library)| (time(&c, is_library), c)).collect();
        // Equal times keep their order, so that a library's first algorithm stays first.
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        timed
    }
}

/// How many of the candidates, which are in order, a mode keeps: those that it times.
pub(crate) fn kept(ordered: &[(f64, Candidate)], program: &Program, mode: Mode) -> usize {
    let Some((least, _)) = ordered.first() else { return 0 };
    if mode != Mode::ReduceOverhead || !is_small(program) {
        return 1;
    }
    // Algorithms of a library have one predicted time; the library's own order is better than that.
    let close = |(time, _): &&(f64, Candidate)| *time > *least && *time <= (1.0 + CLOSE) * least;
    let others = ordered.iter().skip(1).take_while(|c| close(c)).count();
    (1 + others).min(MOST_TIMED)
}

/// Whether a program has few steps that have several candidates.
fn is_small(program: &Program) -> bool {
    let mut pending = vec![&program.steps[..]];
    let mut count = 0;
    while let Some(steps) = pending.pop() {
        for step in steps {
            count += usize::from(matches!(step, Step::Matmul(_) | Step::Conv(_)));
            pending.extend(step.nested());
        }
    }
    count <= FEW_STEPS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(times: &[f64]) -> Vec<(f64, Candidate)> {
        let named =
            |n| Candidate { name: format!("{n}"), parts: Vec::new(), scratch: Vec::new(), in_place: None };
        times.iter().enumerate().map(|(n, t)| (*t, named(n))).collect()
    }

    #[test]
    fn those_close_to_the_first_are_timed_where_calls_are_recorded() {
        let program = Program::default();
        let kept = |times: &[f64], mode| kept(&candidates(times), &program, mode);
        assert_eq!(kept(&[], Mode::ReduceOverhead), 0);
        assert_eq!(kept(&[1.0], Mode::ReduceOverhead), 1);
        assert_eq!(kept(&[1.0, 1.05, 1.06], Mode::ReduceOverhead), MOST_TIMED);
        assert_eq!(kept(&[1.0, 1.2, 1.3], Mode::ReduceOverhead), 1);
        // Algorithms of one library, which the model cannot tell apart.
        assert_eq!(kept(&[1.0, 1.0, 1.0], Mode::ReduceOverhead), 1);
        assert_eq!(kept(&[1.0, 1.05], Mode::Default), 1);
        assert_eq!(kept(&[f64::INFINITY, f64::INFINITY], Mode::ReduceOverhead), 1);
    }
}
