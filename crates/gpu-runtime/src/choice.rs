//! The choice of candidates by the cost model of the device's architecture: which is first, whether a library is worth asking,
//! which are so close that they are timed, and which cannot win and need not be.
//!
//! Architectures without a model keep the rules of `plan` and `gpu-codegen`. Not here: the model
//! ([`gpu_codegen::Model`]), what was found before (`found`), and the search (`autotune`).

use gpu_codegen::{Model, Prediction, StepWork, Target, may_win};
use kernel_ir::{Program, Step};
use rustc_hash::FxHashMap;

use crate::{Candidate, Mode};

/// Of candidates that are predicted to take this much more than the first, as a share of the time, one is timed in
/// `reduce-overhead`: the model is off by as much where it compares candidates of one step.
const CLOSE: f64 = 0.15;
/// The same between a library's candidate and generated ones: a library's algorithms depend on its version. Compiling takes most of a
/// second, so that behind a library's candidate generated ones are timed only where the model is not [`SURE`] of the library.
const LIBRARY_CLOSE: f64 = 0.5;
/// The most that the model's predictions of a library's kind may be off (the logarithm of the factor, 19 times of 20).
const SURE: f64 = 0.3;
/// How many candidates of a step are timed at most, the first included.
const MOST_TIMED: usize = 3;
/// How many calls of libraries, which are not compiled, are timed for a program at most.
const MOST_CALLS: usize = 24;
/// The least share of a program's predicted time for which candidates of a class are timed.
const WORTH: f64 = 0.01;

/// The candidates of a step.
#[derive(Default)]
pub(crate) struct Choices {
    /// Best first, as far as that is known; those behind the first are timed.
    pub(crate) candidates: Vec<Candidate>,
    /// The predicted time of the first; 0 where it is not known.
    pub(crate) seconds: f64,
    /// The class of the step; empty where there is no prediction.
    pub(crate) class: String,
    /// How many candidates a search does not time because they cannot win.
    pub(crate) left_out: usize,
}

impl Choices {
    /// How many candidates behind the first are a library's, or not.
    fn others(&self, is_library: bool) -> usize {
        self.candidates.iter().skip(1).filter(|c| c.is_library() == is_library).count()
    }

    /// Leaves out those candidates behind the first.
    fn only_first_of(&mut self, is_library: bool) {
        let mut place = 0;
        self.candidates.retain(|c| {
            place += 1;
            place == 1 || c.is_library() != is_library
        });
    }
}

impl From<Vec<Candidate>> for Choices {
    fn from(candidates: Vec<Candidate>) -> Choices {
        Choices { candidates, ..Choices::default() }
    }
}

/// Leaves candidates to be timed to those classes of steps of which the most time depends, and only as many that all steps
/// have `most` generated ones, which are kernels to compile, and [`MOST_CALLS`] of libraries.
pub(crate) fn within_budget<'a>(steps: impl Iterator<Item = &'a mut Choices>, most: usize) {
    let mut classes: FxHashMap<String, (f64, Vec<&'a mut Choices>)> = FxHashMap::default();
    let mut all = 0.0;
    for step in steps {
        all += step.seconds;
        if step.candidates.len() < 2 {
            continue;
        }
        let (seconds, of_class) = classes.entry(step.class.clone()).or_default();
        *seconds += step.seconds;
        of_class.push(step);
    }
    let mut ordered: Vec<_> = classes.into_iter().collect();
    // Of equal times the order must not depend on how the table hashes.
    ordered.sort_by(|(a, (x, _)), (b, (y, _))| y.total_cmp(x).then_with(|| a.cmp(b)));
    let mut left = [most, MOST_CALLS];
    for (_, (seconds, mut steps)) in ordered {
        for (is_library, left) in [false, true].into_iter().zip(&mut left) {
            let others = steps.iter().map(|step| step.others(is_library)).max().unwrap_or(0);
            match left.checked_sub(others).filter(|_| seconds >= WORTH * all) {
                Some(rest) => *left = rest,
                None => steps.iter_mut().for_each(|step| step.only_first_of(is_library)),
            }
        }
    }
}

/// Says in the log how many candidates of a program's steps a search does not time.
pub(crate) fn log_left_out<'a>(program: &str, steps: impl Iterator<Item = &'a Choices>) {
    let (mut left_out, mut timed, mut of_steps) = (0, 0, 0);
    for step in steps.filter(|step| step.left_out > 0) {
        left_out += step.left_out;
        timed += step.candidates.len();
        of_steps += 1;
    }
    if left_out > 0 {
        tracing::info!(
            target: "autotune",
            "{program}: {left_out} of {} candidates of {of_steps} steps are left out, because the cost model excludes that they are the quickest",
            left_out + timed
        );
    }
}

/// The predicted times of a step's candidates.
pub(crate) struct Predicted<'a> {
    work: StepWork,
    model: &'a Model,
}

impl<'a> Predicted<'a> {
    /// Those of a step; `None` where the device has no model, or it does not know all kinds of the step's generated
    /// candidates.
    pub(crate) fn of(program: &Program, step: &Step, target: &'a Target) -> Option<Predicted<'a>> {
        let model = &*target.costs.as_ref()?.0;
        let work = StepWork::of(program, step, target)?;
        let known = work.generated().iter().all(|(_, w)| model.knows(w.kind));
        (known && !work.generated().is_empty()).then_some(Predicted { work, model })
    }

    /// Whether the times of libraries are known too, so that the first candidate is known.
    pub(crate) fn is_complete(&self) -> bool {
        self.library(1).is_some()
    }

    /// The class of the step, under which a choice is kept.
    pub(crate) fn class(&self) -> &str {
        self.work.class()
    }

    /// The time of a generated candidate.
    fn generated(&self, name: &str) -> Option<Prediction> {
        let (_, work) = self.work.generated().iter().find(|(known, _)| known == name)?;
        self.model.predict(work)
    }

    /// The time of a library's candidate of so many kernels.
    fn library(&self, kernels: usize) -> Option<Prediction> {
        self.model.predict(self.work.library(kernels)?)
    }

    /// The time of a candidate.
    fn of_candidate(&self, candidate: &Candidate) -> Option<Prediction> {
        match candidate.is_library() {
            true => self.library(candidate.parts.len()),
            false => self.generated(&candidate.name),
        }
    }

    /// Seconds of the quickest generated candidate.
    fn quickest_generated(&self) -> f64 {
        let times = self.work.generated().iter().filter_map(|(_, work)| self.model.predict(work));
        times.map(|p| p.seconds).fold(f64::INFINITY, f64::min)
    }

    /// Whether a library may have the quickest candidate: one that needs no other kernel.
    pub(crate) fn asks_library(&self, mode: Mode) -> bool {
        let Some(library) = self.library(1) else { return true };
        let share = match mode {
            Mode::Default => 1.0,
            Mode::ReduceOverhead => 1.0 + LIBRARY_CLOSE,
            Mode::MaxAutotune | Mode::MaxAutotuneNoCudagraphs => return true,
        };
        library.seconds < share * self.quickest_generated()
    }

    /// Whether the model knows well how long a library takes.
    pub(crate) fn is_sure(&self) -> bool {
        self.library(1).is_some_and(|p| p.error <= SURE)
    }

    /// Whether a library has offered a candidate beside which a mode times no generated one, so that no text need be generated.
    pub(crate) fn is_settled(&self, offered: &[Candidate], mode: Mode) -> bool {
        let times = offered.iter().filter_map(|c| self.of_candidate(c)).map(|p| p.seconds);
        let alone = mode != Mode::ReduceOverhead || self.is_sure();
        alone && times.fold(f64::INFINITY, f64::min) <= self.quickest_generated()
    }

    /// Puts candidates in the order of their predicted times; those of no predicted time are last. Of a library's algorithms, which have one
    /// predicted time, the library's own order stays.
    pub(crate) fn order(&self, candidates: Vec<Candidate>) -> Vec<(f64, Candidate)> {
        let time = |c: &Candidate| self.of_candidate(c).map_or(f64::INFINITY, |p| p.seconds);
        let mut timed: Vec<(f64, Candidate)> = candidates.into_iter().map(|c| (time(&c), c)).collect();
        timed.sort_by(|a, b| a.0.total_cmp(&b.0));
        timed
    }

    /// Those to be timed of a convolution in groups, of whose times by a library nothing is known, in the order of a rule: the first, the
    /// quickest generated one by prediction, and the library's algorithms, whose own order is of little worth there: of a convolution in eight
    /// groups the first of cuDNN's took eight times as long as the fifth (H200). Timing gradients in the same way gained 2% of a training step
    /// at most, and took up to 0.8 s of the first call.
    pub(crate) fn on_trial(&self, candidates: Vec<Candidate>) -> Choices {
        let library_first = candidates.first().is_some_and(Candidate::is_library);
        let (mut calls, generated): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(Candidate::is_library);
        let quickest = self.order(generated).into_iter().next().map(|(_, c)| c);
        let place = if library_first { calls.len() } else { 0 };
        calls.splice(place..place, quickest);
        let candidates = calls;
        let (class, seconds) = (self.class().to_owned(), self.quickest_generated());
        Choices { candidates, seconds: if seconds.is_finite() { seconds } else { 0.0 }, class, left_out: 0 }
    }

    /// Those of a search's candidates that may be the quickest, in their order: generated ones that the model excludes are left
    /// out. Libraries neither are nor exclude any, since the model has seen one version of them, and of each the first algorithms.
    pub(crate) fn possible(&self, mut candidates: Vec<Candidate>) -> Choices {
        let generated = |c: &Candidate| if c.is_library() { None } else { self.generated(&c.name) };
        let times: Vec<Option<Prediction>> = candidates.iter().map(generated).collect();
        let (all, mut possible) = (candidates.len(), may_win(&times).into_iter());
        candidates.retain(|_| possible.next() == Some(true));
        Choices { left_out: all - candidates.len(), candidates, ..Choices::default() }
    }
}

/// Of the candidates, which are in order, those that a mode times, or the first. `sure` is [`Predicted::is_sure`].
pub(crate) fn kept(ordered: Vec<(f64, Candidate)>, sure: bool, mode: Mode) -> Vec<Candidate> {
    let Some((least, first)) = ordered.first() else { return Vec::new() };
    let (least, of_library) = (*least, first.is_library());
    if mode != Mode::ReduceOverhead || of_library && sure {
        return ordered.into_iter().take(1).map(|(_, first)| first).collect();
    }
    let (calls, generated): (Vec<_>, Vec<_>) = ordered.into_iter().partition(|(_, c)| c.is_library());
    // Behind a library's that is not known well the first generated one is timed however slow it is said to be.
    let far = |time: f64| !of_library && time > (1.0 + LIBRARY_CLOSE) * least;
    let near =
        |(n, (time, _)): &(usize, (f64, Candidate))| of_library && *n == 0 || time.is_finite() && !far(*time);
    let calls: Vec<_> = calls.into_iter().enumerate().filter(near).map(|(_, call)| call).collect();
    // Of a library that is known well its own first algorithm is the best.
    let most_calls = if sure { 1 } else { calls.len() };
    let most_generated = if of_library { 1 } else { MOST_TIMED - usize::from(!calls.is_empty()) };
    let close =
        |(time, _): &(f64, Candidate)| of_library && time.is_finite() || *time <= (1.0 + CLOSE) * least;
    let mut calls: Vec<_> = calls.into_iter().take(most_calls).map(|(_, c)| c).collect();
    let mut generated: Vec<_> =
        generated.into_iter().take_while(close).take(most_generated).map(|(_, c)| c).collect();
    match of_library {
        true => calls.append(&mut generated),
        false => calls.splice(0..0, generated).for_each(drop),
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuError, LibraryCall, Part, Work};

    /// A library's call that is never made.
    struct NoCall;

    impl LibraryCall for NoCall {
        unsafe fn run(&self, _: &Work<'_>) -> Result<(), GpuError> {
            Ok(())
        }
    }

    fn candidates(times: &[f64]) -> Vec<(f64, Candidate)> {
        let named =
            |n| Candidate { name: format!("{n}"), parts: Vec::new(), scratch: Vec::new(), in_place: None };
        times.iter().enumerate().map(|(n, t)| (*t, named(n))).collect()
    }

    #[test]
    fn those_close_to_the_first_are_timed_where_calls_are_recorded() {
        let kept = |times: &[f64], mode| kept(candidates(times), true, mode).len();
        assert_eq!(kept(&[], Mode::ReduceOverhead), 0);
        assert_eq!(kept(&[1.0], Mode::ReduceOverhead), 1);
        assert_eq!(kept(&[1.0, 1.05, 1.06, 1.07, 1.08], Mode::ReduceOverhead), MOST_TIMED);
        assert_eq!(kept(&[1.0, 1.3, 1.4], Mode::ReduceOverhead), 1);
        assert_eq!(kept(&[1.0, 1.05], Mode::Default), 1);
        assert_eq!(kept(&[1.0, f64::INFINITY], Mode::ReduceOverhead), 1);
    }

    #[test]
    fn a_library_is_timed_beside_generated_candidates_from_further_off() {
        let names = |library: usize, sure, mode| -> Vec<String> {
            let mut ordered = candidates(&[1.0, 1.1, 1.3, 1.4, 1.6]);
            ordered[library].1.parts.push(Part::Library(Box::new(NoCall)));
            kept(ordered, sure, mode).into_iter().map(|c| c.name).collect()
        };
        assert_eq!(names(3, true, Mode::ReduceOverhead), ["0", "1", "3"]);
        assert_eq!(names(4, true, Mode::ReduceOverhead), ["0", "1"]);
        assert_eq!(names(3, true, Mode::Default), ["0"]);
        // Behind a library's the first of the others is compiled only where the library's time is not known well.
        assert_eq!(names(0, true, Mode::ReduceOverhead), ["0"]);
        assert_eq!(names(0, false, Mode::ReduceOverhead), ["0", "1"]);
        assert_eq!(names(0, false, Mode::Default), ["0"]);
        let mut ordered = candidates(&[1.0, 3.0, 3.1]);
        ordered[0].1.parts.push(Part::Library(Box::new(NoCall)));
        assert_eq!(kept(ordered, false, Mode::ReduceOverhead).len(), 2);
    }

    #[test]
    fn a_library_is_timed_also_where_many_generated_candidates_are_close() {
        let mut ordered = candidates(&[1.0, 1.01, 1.02, 1.03, 1.3]);
        ordered[4].1.parts.push(Part::Library(Box::new(NoCall)));
        let kept = kept(ordered, true, Mode::ReduceOverhead);
        assert_eq!(kept.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["0", "1", "4"]);
    }

    #[test]
    fn all_algorithms_of_a_library_that_is_not_known_well_are_timed() {
        let kept = |sure| -> Vec<String> {
            let mut ordered = candidates(&[1.0, 1.2, 1.2, 1.2, 3.0]);
            for (_, candidate) in &mut ordered[1..4] {
                candidate.parts.push(Part::Library(Box::new(NoCall)));
            }
            kept(ordered, sure, Mode::ReduceOverhead).into_iter().map(|c| c.name).collect()
        };
        assert_eq!(kept(false), ["0", "1", "2", "3"]);
        assert_eq!(kept(true), ["0", "1"]);
        // The first stays, whatever is known of it.
        let mut unknown = candidates(&[f64::INFINITY]);
        unknown[0].1.parts.push(Part::Library(Box::new(NoCall)));
        assert_eq!(super::kept(unknown, false, Mode::ReduceOverhead).len(), 1);
    }

    #[test]
    fn calls_and_kernels_have_budgets_of_their_own() {
        let step = |class: &str, seconds: f64, generated: usize, calls: usize| {
            let mut candidates = candidates(&vec![1.0; 1 + generated + calls]);
            for (_, candidate) in candidates.iter_mut().skip(1 + generated) {
                candidate.parts.push(Part::Library(Box::new(NoCall)));
            }
            let candidates = candidates.into_iter().map(|(_, c)| c).collect();
            Choices { candidates, seconds, class: class.into(), left_out: 0 }
        };
        let counts = |steps: &[Choices]| -> Vec<[usize; 2]> {
            steps.iter().map(|s| [s.others(false), s.others(true)]).collect()
        };
        let mut steps = [step("a", 3.0, 2, MOST_CALLS - 1), step("b", 2.0, 2, 1), step("c", 1.0, 1, 1)];
        within_budget(steps.iter_mut(), 3);
        assert_eq!(counts(&steps), [[2, MOST_CALLS - 1], [0, 1], [1, 0]]);
        // What takes a small part of the time is not worth it.
        let mut steps = [step("a", 1.0, 1, 1), step("b", 0.9 * WORTH, 1, 1)];
        within_budget(steps.iter_mut(), 3);
        assert_eq!(counts(&steps), [[1, 1], [0, 0]]);
    }

    #[test]
    fn the_steps_that_take_longest_are_timed() {
        let step = |class: &str, seconds: f64, count| {
            let candidates = candidates(&vec![1.0; count]).into_iter().map(|(_, c)| c).collect();
            Choices { candidates, seconds, class: class.into(), left_out: 0 }
        };
        // Two steps of a class have the same kernels.
        let mut steps =
            [step("a", 2.0, 3), step("b", 3.0, 2), step("a", 2.0, 3), step("c", 1.0, 3), step("", 0.0, 1)];
        within_budget(steps.iter_mut(), 4);
        assert_eq!(steps.each_ref().map(|s| s.candidates.len()), [3, 2, 3, 1, 1]);
        within_budget(steps.iter_mut(), 0);
        assert_eq!(steps.each_ref().map(|s| s.candidates.len()), [1; 5]);
    }
}
