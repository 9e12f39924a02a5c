//! Plans a program: turns steps into operations, and determines the kernels, their launches and the control flow around
//! them.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;

use gpu_codegen::{
    ENTRY, Kernel, Launch, LaunchGroup, Param, Prelude, Target, TensorMap, chain, fuse_launches,
    outruns_library, prefers_generated, variants,
};
use ir_core::{EntityId, SymExpr};
use kernel_ir::runtime::{Node, Plan, control};
use kernel_ir::{ArenaPlan, BufId, ExternCall, ExternOp, Footprint, LiveRange, Program, Step, side_by_side};
use linalg::host::MatrixRoutine;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::choice::{Choices, Predicted, kept, log_left_out, within_budget};
use crate::exchange::is_exchange;
use crate::found::Found;
use crate::profile::{Traffic, traffic};
use crate::{Candidate, Driver, GpuError, LibraryCall, Mode, Module, Part};

/// Kernels per module where there are many: enough that the prelude is not most of the text.
pub(crate) const MAX_PER_MODULE: usize = 8;
/// Characters of helpers that take as long to compile as one of a kernel, of which more are used. Measured with NVRTC 13.0 on the 362
/// kernels of a training step of EfficientNet-B0, which this and a constant explain to two thirds.
const HELPERS: usize = 3;

/// A step as this executor runs it.
pub(crate) type PlannedStep = kernel_ir::runtime::PlannedStep<Op>;

/// An operation that is not control flow.
pub(crate) enum Op {
    /// A step that the device computes: an index into [`Kernels::steps`].
    Device(usize),
    /// A routine that the host runs on copies.
    Host(MatrixRoutine),
}

/// The kernels of a program, without duplicates.
#[derive(Default)]
pub(crate) struct Kernels {
    /// The steps that the device computes.
    pub(crate) steps: Vec<DeviceStep>,
    /// The entry and the text of each function.
    pub(crate) texts: Vec<(String, String)>,
    known: FxHashMap<String, usize>,
    /// The site of each index check, by its number in the fault record.
    pub(crate) checks: Vec<u32>,
}

/// A step that the device computes, with its candidates: best first by rule, never empty.
pub(crate) struct DeviceStep {
    pub(crate) name: String,
    pub(crate) candidates: Vec<PlannedCandidate>,
    /// The index of the chosen candidate.
    pub(crate) chosen: usize,
    /// The root buffers that it uses.
    pub(crate) roots: Vec<usize>,
    /// The memory that it reads and writes.
    pub(crate) traffic: Vec<Traffic>,
    /// The class under which a choice of its candidates is kept.
    pub(crate) class: Option<String>,
}

impl DeviceStep {
    /// The chosen candidate.
    pub(crate) fn candidate(&self) -> Option<&PlannedCandidate> {
        self.candidates.get(self.chosen)
    }
}

/// A candidate whose kernels are numbered.
pub(crate) struct PlannedCandidate {
    /// The name for tables and logs.
    pub(crate) name: String,
    /// As [`Candidate::is_library`].
    pub(crate) is_library: bool,
    pub(crate) parts: Vec<Runnable>,
    pub(crate) scratch: Vec<SymExpr>,
    /// As that of [`Candidate`].
    pub(crate) in_place: Option<BufId>,
}

/// A part of a candidate.
pub(crate) enum Runnable {
    Kernel(Launchable),
    Library(Box<dyn LibraryCall>),
}

/// A kernel with its launch; `function` is the number of its text.
pub(crate) struct Launchable {
    pub(crate) function: usize,
    pub(crate) params: Vec<Param>,
    pub(crate) maps: Vec<TensorMap>,
    pub(crate) launch: Launch,
    /// The number of its first index check among those of the program.
    pub(crate) first_check: u32,
    /// Whether it gains from an early launch.
    pub(crate) early: bool,
}

/// Turns steps into operations.
pub(crate) struct Planner<'a> {
    program: &'a Program,
    target: &'a Target,
    library: Library<'a>,
    found: Lookup<'a>,
    /// The mode. Where it searches, all candidates of a step are kept that may win; otherwise the first, and those that
    /// are too close to it to tell.
    mode: Mode,
    /// The candidates of steps that are not planned yet, in order.
    candidates: VecDeque<Result<Choices, GpuError>>,
    pub(crate) kernels: Kernels,
    /// Ranges of steps that became one launch or one exchange: the memory plan treats each as one step.
    pub(crate) chains: Vec<Range<usize>>,
}

/// Returns the candidates of a step that the driver's libraries offer.
pub(crate) type Library<'a> = &'a (dyn Fn(&Step) -> Vec<Candidate> + Sync);

/// Returns the choice that was found before for a class of steps.
pub(crate) type Lookup<'a> = &'a (dyn Fn(&str) -> Option<Found> + Sync);

impl<'a> Planner<'a> {
    pub(crate) fn new(
        program: &'a Program,
        target: &'a Target,
        library: Library<'a>,
        found: Lookup<'a>,
        mode: Mode,
    ) -> Planner<'a> {
        Planner {
            program,
            target,
            library,
            found,
            mode,
            candidates: VecDeque::new(),
            kernels: Kernels::default(),
            chains: Vec::new(),
        }
    }

    /// Plans a list of steps. The candidates of all of them are determined concurrently: asking libraries and generating
    /// text use all cores.
    pub(crate) fn plan(&mut self, steps: &[Step]) -> Result<Vec<PlannedStep>, GpuError> {
        self.look(steps);
        self.list(steps)
    }

    fn look(&mut self, steps: &[Step]) {
        let mut list = Vec::new();
        of_device(steps, &mut list);
        let mut candidates: Vec<_> = list.into_par_iter().map(|step| self.candidates(step)).collect();
        match self.mode.searches() {
            true => log_left_out(&self.program.name, candidates.iter().flatten()),
            // Half as many as are compiled at once: the first call should not wait long for what may not be needed.
            false => within_budget(candidates.iter_mut().flatten(), rayon::current_num_threads() / 2),
        }
        self.candidates = candidates.into();
    }

    /// Plans the steps of a call like [`Planner::plan`], and fuses launches of consecutive steps where possible.
    pub(crate) fn plan_call(&mut self, steps: &[Step]) -> Result<Vec<PlannedStep>, GpuError> {
        self.look(steps);
        let mut planned = Vec::with_capacity(steps.len());
        while let Some(step) = steps.get(planned.len()) {
            let at = planned.len();
            let found = match self.exchanged(&steps[at..])? {
                None => self.chained(&steps[at..])?,
                found => found,
            };
            match found {
                Some((op, count)) => {
                    planned.push(op);
                    // Operations have the numbers of their steps, so the other steps of the chain become empty ones.
                    let none = || PlannedStep::of_all(self.program, "", &[], Node::Several(Vec::new()));
                    planned.extend(std::iter::repeat_with(none).take(count - 1));
                    self.chains.push(at..at + count);
                }
                None => planned.push(self.planned(step)?),
            }
        }
        Ok(planned)
    }

    /// Plans exchanges that stand side by side at the beginning as one, and returns their number.
    fn exchanged(&mut self, steps: &[Step]) -> Result<Option<(PlannedStep, usize)>, GpuError> {
        let count = side_by_side(steps);
        if count < 2 {
            return Ok(None);
        }
        let candidates = self.next(&steps[0])?;
        // Those of the others have nothing to do.
        steps[1..count].iter().try_for_each(|step| self.next(step).map(drop))?;
        let name = format!("{}_and_{}_more", steps[0].name(), count - 1);
        let all: Vec<&Step> = steps[..count].iter().collect();
        Ok(Some((self.device(&name, &all, candidates), count)))
    }

    /// Plans the first steps as one launch, and returns their number.
    fn chained(&mut self, steps: &[Step]) -> Result<Option<(PlannedStep, usize)>, GpuError> {
        let found = chain(self.program, steps, self.target).map_err(|e| refused(&steps[0], &e))?;
        let Some(found) = found else { return Ok(None) };
        let mut members = Vec::new();
        of_device(&steps[..found.steps], &mut members);
        // Steps that a library computes cannot be fused.
        let generated =
            |c: &Result<Choices, GpuError>| c.as_ref().is_ok_and(|c| single(&c.candidates).is_some());
        if !self.candidates.iter().take(members.len()).all(generated) {
            return Ok(None);
        }
        let members =
            members.into_iter().map(|s| Ok((s, self.next(s)?))).collect::<Result<Vec<_>, GpuError>>()?;
        let candidates = found.candidates.into_iter().map(Candidate::from).collect();
        Ok(Some((self.shared(members, candidates), found.steps)))
    }

    fn planned(&mut self, step: &Step) -> Result<PlannedStep, GpuError> {
        let node = match (control(self, step)?, step) {
            (Some(node), _) => node,
            (None, Step::Together(t)) => Node::Several(self.fuse_launches(&t.steps)?),
            (None, Step::Extern(call @ ExternCall { op: ExternOp::Linalg { op, complex }, .. })) => {
                let routine = MatrixRoutine::new(self.program, call, *op, *complex);
                Node::Op(Op::Host(routine.map_err(|e| GpuError::Malformed(e.to_string()))?))
            }
            _ => Node::Op(Op::Device(self.device_step(step)?)),
        };
        Ok(PlannedStep::new(self.program, step, node))
    }

    /// Plans independent steps: those whose kernels have the same block size share launches, the others have their own.
    fn fuse_launches(&mut self, steps: &[Step]) -> Result<Vec<PlannedStep>, GpuError> {
        let (program, target) = (self.program, self.target);
        let mut open: Vec<(&Step, Vec<Candidate>)> =
            steps.iter().map(|s| Ok((s, self.next(s)?))).collect::<Result<_, GpuError>>()?;
        let mut planned = Vec::new();
        while !open.is_empty() {
            let mut group = LaunchGroup::default();
            let taken: Vec<bool> =
                open.iter().map(|(_, c)| single(c).is_some_and(|k| group.add(program, k, target))).collect();
            let shared = fuse_launches(program, &group).map_err(|e| refused(open[0].0, &e))?;
            let Some(shared) = shared else {
                // The first of them has nothing to share a launch with.
                let n = taken.iter().position(|t| *t).unwrap_or(0);
                let (step, candidates) = open.remove(n);
                planned.push(self.device(step.name(), &[step], candidates));
                continue;
            };
            let mut taken = taken.into_iter();
            let (members, others) = open.into_iter().partition(|_| taken.next() == Some(true));
            open = others;
            let candidate = Candidate {
                name: "fused".into(),
                parts: vec![Part::Kernel(shared)],
                scratch: Vec::new(),
                in_place: None,
            };
            planned.push(self.shared(members, vec![candidate]));
        }
        Ok(planned)
    }

    /// Plans steps that share a launch. Where all candidates are kept, separate launches are one of them.
    fn shared(
        &mut self,
        members: Vec<(&Step, Vec<Candidate>)>,
        mut candidates: Vec<Candidate>,
    ) -> PlannedStep {
        let steps: Vec<&Step> = members.iter().map(|(step, _)| *step).collect();
        let name = format!("{}_and_{}_more", steps[0].name(), steps.len() - 1);
        if self.mode.searches() {
            let firsts = members.into_iter().filter_map(|(_, candidates)| candidates.into_iter().next());
            let firsts: Vec<Candidate> = firsts.collect();
            // Scratch buffers are numbered separately in each candidate, so candidates with scratch cannot be
            // concatenated.
            if firsts.iter().all(|c| c.scratch.is_empty()) {
                let parts = firsts.into_iter().flat_map(|c| c.parts).collect();
                candidates.push(Candidate {
                    name: "separate".into(),
                    parts,
                    scratch: Vec::new(),
                    in_place: None,
                });
            }
        } else {
            candidates.truncate(1);
        }
        self.device(&name, &steps, candidates)
    }

    fn device(&mut self, name: &str, steps: &[&Step], candidates: Vec<Candidate>) -> PlannedStep {
        let op = Op::Device(self.add(name, steps, candidates));
        PlannedStep::of_all(self.program, name, steps, Node::Op(op))
    }

    fn device_step(&mut self, step: &Step) -> Result<usize, GpuError> {
        let candidates = self.next(step)?;
        Ok(self.add(step.name(), &[step], candidates))
    }

    /// The candidates of the next step, which were determined before.
    fn next(&mut self, step: &Step) -> Result<Vec<Candidate>, GpuError> {
        let choices = self.candidates.pop_front().unwrap_or_else(|| self.candidates(step))?;
        Ok(choices.candidates)
    }

    /// The candidates of a step, best first by rule; only the first where not all are kept.
    fn candidates(&self, step: &Step) -> Result<Choices, GpuError> {
        if is_exchange(step) {
            return Ok(Choices::from((self.library)(step)));
        }
        let predicted = Predicted::of(self.program, step, self.target);
        if let Some(predicted) = &predicted {
            if let Some(found) = self.found_before(step, predicted)? {
                return Ok(Choices::from(vec![found]));
            }
            if !self.mode.searches() && predicted.is_complete() {
                return self.by_costs(step, predicted);
            }
        }
        let late = |c: &Candidate| outruns_library(self.program, step, self.target, c.parts.len());
        let asked = asks_libraries(self.program, step, self.target, self.mode);
        let offered = if asked { (self.library)(step) } else { Vec::new() };
        let (behind, mut candidates): (Vec<Candidate>, Vec<Candidate>) = offered.into_iter().partition(late);
        let grouped = matches!(step, Step::Conv(k) if k.groups > 1);
        let on_trial = self.mode == Mode::ReduceOverhead && predicted.is_some() && grouped;
        if self.mode.searches() || on_trial || candidates.is_empty() {
            candidates.extend(self.generated(step)?);
        }
        candidates.extend(behind);
        match &predicted {
            Some(predicted) if on_trial => return Ok(predicted.on_trial(candidates)),
            _ if !self.mode.searches() => candidates.truncate(1),
            Some(predicted) => return Ok(predicted.possible(candidates)),
            None => {}
        }
        Ok(Choices::from(candidates))
    }

    fn generated(&self, step: &Step) -> Result<impl Iterator<Item = Candidate> + use<>, GpuError> {
        let generated = variants(self.program, step, self.target).map_err(|e| refused(step, &e))?;
        Ok(generated.into_iter().map(Candidate::from))
    }

    /// The candidate that was found for steps of this class, where it is still there.
    fn found_before(&self, step: &Step, predicted: &Predicted<'_>) -> Result<Option<Candidate>, GpuError> {
        let Some(found) = (self.found)(predicted.class()) else { return Ok(None) };
        let candidates = match found.is_library() {
            true => (self.library)(step),
            false => self.generated(step)?.collect(),
        };
        Ok(found.take(candidates))
    }

    /// The candidates of a step by the cost model, of which those behind the first are close to it.
    fn by_costs(&self, step: &Step, predicted: &Predicted<'_>) -> Result<Choices, GpuError> {
        // Of rows that end within a vector the model has seen few, and none in memory with padding.
        let late = outruns_library(self.program, step, self.target, 1);
        let asked = !late && predicted.asks_library(self.mode);
        let mut all = if asked { (self.library)(step) } else { Vec::new() };
        if !predicted.is_settled(&all, self.mode) {
            all.extend(self.generated(step)?);
        }
        let ordered = predicted.order(all);
        let seconds = ordered.first().map_or(0.0, |(time, _)| *time);
        let candidates = kept(ordered, predicted.is_sure(), self.mode);
        Ok(Choices { candidates, seconds, class: predicted.class().to_owned(), left_out: 0 })
    }

    /// Adds an operation of the device and returns its number.
    fn add(&mut self, name: &str, steps: &[&Step], candidates: Vec<Candidate>) -> usize {
        let class = match steps {
            [step] if candidates.len() > 1 => Predicted::of(self.program, step, self.target),
            _ => None,
        };
        let candidates = candidates.into_iter().map(|c| self.kernels.candidate(c, name)).collect();
        let used = steps.iter().flat_map(|s| {
            let Footprint { reads, writes } = Footprint::of(self.program, s);
            reads.into_iter().chain(writes)
        });
        let mut roots: Vec<usize> = used.map(|b| b.index()).collect();
        roots.sort_unstable();
        roots.dedup();
        let traffic = steps.iter().flat_map(|s| traffic(self.program, s)).collect();
        let class = class.map(|predicted| predicted.class().to_owned());
        let step = DeviceStep { name: name.to_owned(), candidates, chosen: 0, roots, traffic, class };
        self.kernels.steps.push(step);
        self.kernels.steps.len() - 1
    }
}

impl Plan for Planner<'_> {
    type Op = Op;
    type Error = GpuError;

    fn program(&self) -> &Program {
        self.program
    }
    fn list(&mut self, steps: &[Step]) -> Result<Vec<PlannedStep>, GpuError> {
        steps.iter().map(|step| self.planned(step)).collect()
    }
}

/// The memory plan of a program in which each of these ranges of steps is one step: its outputs do not overlap its inputs.
pub(crate) fn widened(program: &Program, chains: &[Range<usize>]) -> ArenaPlan {
    let mut plan = program.plan.clone();
    if chains.is_empty() {
        return plan;
    }
    let of = |n: u32| chains.iter().find(|c| c.contains(&(n as usize)));
    for LiveRange { first, last, .. } in plan.lives.iter_mut().chain(&mut plan.dynamic) {
        *first = of(*first).map_or(*first, |c| c.start as u32);
        *last = of(*last).map_or(*last, |c| c.end as u32 - 1);
    }
    (plan.offsets, plan.bytes) = plan.place(program, &|_| None).ok().unzip();
    plan
}

/// Whether libraries are asked for candidates of a step. A library that was not used yet takes a tenth of a second for its
/// first answer; where a generated kernel is about as fast, only modes that may take longer to compile ask.
pub fn asks_libraries(program: &Program, step: &Step, target: &Target, mode: Mode) -> bool {
    if let Some(predicted) = Predicted::of(program, step, target).filter(Predicted::is_complete) {
        return predicted.asks_library(mode);
    }
    match mode {
        Mode::Default => !prefers_generated(program, step, target),
        // The generated convolution is faster.
        Mode::ReduceOverhead => !(matches!(step, Step::Conv(_)) && prefers_generated(program, step, target)),
        Mode::MaxAutotune | Mode::MaxAutotuneNoCudagraphs => true,
    }
}

/// The steps that the device computes, nested ones included, in the order in which they are planned.
fn of_device<'s>(steps: &'s [Step], out: &mut Vec<&'s Step>) {
    for step in steps {
        match step {
            Step::Bind(_) | Step::Assert(_) => {}
            Step::Cond(_) | Step::For(_) | Step::While(_) | Step::Together(_) => {
                step.nested().into_iter().for_each(|s| of_device(s, out));
            }
            Step::Extern(call) if matches!(call.op, ExternOp::Linalg { .. }) => {}
            _ => out.push(step),
        }
    }
}

fn refused(step: &Step, e: &gpu_codegen::GenError) -> GpuError {
    GpuError::Unsupported { kernel: step.name().into(), reason: e.to_string() }
}

/// The kernel of the first candidate, if that is a single kernel.
fn single(candidates: &[Candidate]) -> Option<&Kernel> {
    match &candidates.first()?.parts[..] {
        [Part::Kernel(kernel)] => Some(kernel),
        _ => None,
    }
}

impl Kernels {
    fn candidate(&mut self, candidate: Candidate, step: &str) -> PlannedCandidate {
        let part = |part| match part {
            Part::Kernel(kernel) => Runnable::Kernel(self.launchable(kernel, step)),
            Part::Library(call) => Runnable::Library(call),
        };
        PlannedCandidate {
            is_library: candidate.is_library(),
            name: candidate.name,
            parts: candidate.parts.into_iter().map(part).collect(),
            scratch: candidate.scratch,
            in_place: candidate.in_place,
        }
    }

    fn launchable(&mut self, kernel: Kernel, step: &str) -> Launchable {
        let Kernel { source, params, maps, launch, checks, early, .. } = kernel;
        let first_check = self.checks.len() as u32;
        self.checks.extend(checks);
        let function = match self.known.get(&source) {
            Some(&n) => n,
            None => {
                let n = self.texts.len();
                let entry = format!("k{n}_{}", identifier(step));
                self.texts.push((entry.clone(), source.replace(ENTRY, &entry)));
                self.known.insert(source, n);
                n
            }
        };
        Launchable { function, params, maps, launch, first_check, early }
    }

    /// Whether a step has several candidates.
    pub(crate) fn have_choices(&self) -> bool {
        self.steps.iter().any(|step| step.candidates.len() > 1)
    }

    /// The text of a kernel.
    pub(crate) fn text(&self, function: usize) -> &str {
        self.texts.get(function).map_or("", |(_, text)| text.as_str())
    }

    /// Splits all texts into modules of `each` kernels.
    pub(crate) fn modules(&self, each: usize, target: &Target) -> Vec<Module> {
        let helpers = Prelude::new(target);
        let numbers: Vec<usize> = (0..self.texts.len()).collect();
        numbers.chunks(each).map(|part| self.module(part, &helpers)).collect()
    }

    /// A module of the kernels with these numbers.
    fn module(&self, numbers: &[usize], helpers: &Prelude) -> Module {
        let (entries, texts): (Vec<_>, Vec<_>) = numbers.iter().map(|n| self.texts[*n].clone()).unzip();
        Module::new(helpers, texts.concat(), entries)
    }

    /// Compiles all texts; the functions are in the order of their numbers.
    pub(crate) fn compile<D: Driver>(&self, driver: &D) -> Result<Vec<D::Function>, GpuError> {
        let helpers = Prelude::new(&driver.target());
        let cost = |(_, text): &(String, String)| text.len() + helpers.of(text).len() / HELPERS;
        let costs: Vec<usize> = self.texts.par_iter().map(cost).collect();
        let parts = packed(&costs, driver.modules().max(1));
        let modules: Vec<Module> = parts.par_iter().map(|part| self.module(part, &helpers)).collect();
        let compiled = driver.compile(&modules)?;
        let mut numbered: Vec<(usize, D::Function)> =
            parts.into_iter().flatten().zip(compiled.into_iter().flatten()).collect();
        numbered.sort_unstable_by_key(|(n, _)| *n);
        Ok(numbered.into_iter().map(|(_, function)| function).collect())
    }
}

/// Distributes kernels over modules, given what each costs to compile: the costly ones are alone and first, so that none of them is
/// left when all others are done; the others share modules, since a module has a cost of its own.
fn packed(costs: &[usize], count: usize) -> Vec<Vec<usize>> {
    let mut numbers: Vec<usize> = (0..costs.len()).collect();
    numbers.sort_by_key(|n| Reverse(costs[*n]));
    let most = costs.len().div_ceil(count).clamp(1, MAX_PER_MODULE);
    let share = if most == 1 { 0 } else { costs.iter().sum::<usize>() / count };
    let mut modules: Vec<Vec<usize>> = Vec::new();
    let mut cost = 0;
    for n in numbers {
        match modules.last_mut() {
            Some(last) if cost + costs[n] <= share && last.len() < MAX_PER_MODULE => last.push(n),
            _ => {
                modules.push(vec![n]);
                cost = 0;
            }
        }
        cost += costs[n];
    }
    modules
}

fn identifier(name: &str) -> String {
    name.chars().take(40).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costly_kernels_are_first_and_alone() {
        assert_eq!(packed(&[], 64), Vec::<Vec<usize>>::new());
        assert_eq!(packed(&[1, 3, 2], 64), [[1], [2], [0]], "few kernels have a module each");
        assert_eq!(packed(&[1, 3, 2], 1), [[1, 2, 0]], "or one together");
        // A module takes 5 of 320.
        let costs: Vec<usize> = (0..200).map(|n| if n % 50 == 7 { 31 } else { 1 }).collect();
        let modules = packed(&costs, 64);
        assert_eq!(modules[..4], [[7], [57], [107], [157]]);
        assert_eq!(modules[4], [0, 1, 2, 3, 4]);
        assert_eq!(modules.len(), 4 + 196usize.div_ceil(5));
        let mut all = modules.concat();
        all.sort_unstable();
        assert_eq!(all, (0..200).collect::<Vec<_>>());
        // Modules have no more than eight kernels, however many there are.
        assert!(packed(&[1; 1000], 64).iter().all(|m| m.len() <= MAX_PER_MODULE));
    }
}
