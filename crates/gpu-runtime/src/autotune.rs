//! The search (autotuning): the candidates of a step are timed on the device at the sizes of capture, and the fastest is
//! chosen. Equal steps are timed once. The driver may keep the choice for later processes, by the texts of the candidates and by
//! the class of the step (`found`).
//!
//! All candidates of a step are timed in one batch: a few runs of each, then more of those that may still be the fastest. Not
//! here: which candidates there are (`plan`, `choice`).

use std::fmt::Write;
use std::time::Instant;

use gpu_codegen::{Param, Target};
use ir_core::EntityId;
use kernel_ir::runtime::Sizes;
use kernel_ir::{BufId, Program};
use rustc_hash::FxHashMap;

use crate::compiled::tickets;
use crate::faults::Record;
use crate::found::{self, Among, Found};
use crate::machine::bytes_of;
use crate::plan::{DeviceStep, Kernels, PlannedCandidate, Runnable};
use crate::prepare::{SCRATCH_GRAIN, grid};
use crate::{Arguments, Block, DeviceMemory, Driver, GpuError, Map, Mode, Work};
use std::sync::Arc;

/// Timed runs of each candidate of a batch: a few, then more of those that are not slower than the fastest by more than runs
/// vary. The median of all counts.
const FIRST_RUNS: usize = 3;
const MORE_RUNS: usize = 6;
const VARIES: f64 = 1.25;
/// A candidate whose first run takes so many times as long as the fastest so far is not run again, if that is as many seconds: the
/// first run of a kernel loads it, which is no part of its time.
const HOPELESS: (f64, f64) = (16.0, 0.1);
/// When the first runs of a step's candidates have taken so many seconds, and so many times as long as the fastest of them, no
/// others are tried: a library's algorithm can take thousands of times as long as another.
const PATIENCE: (f64, f64) = (1.0, 32.0);
/// A 32-bit pattern that is two small numbers as f16 (0.0001) or bf16 (0.0027) and a small one as f32: nothing overflows
/// or is subnormal.
const FILL_WORD: u32 = 0x3b31_3b31;

/// Chooses a candidate for every step that has several.
///
/// # Errors
/// A lost device. A candidate that fails is skipped.
pub(crate) fn choose<D: Driver>(
    memory: &Arc<DeviceMemory<D>>,
    (program, target, mode): (&Program, &Target, Mode),
    kernels: &mut Kernels,
    functions: &[D::Function],
) -> Result<(), GpuError> {
    let sizes = Sizes::hints(program);
    let mut known: FxHashMap<String, usize> = FxHashMap::default();
    let mut flush = None;
    let tickets = tickets(memory)?;
    // The data of the search is arbitrary, so this record is never read.
    let faults = (!kernels.checks.is_empty()).then(|| Record::new(memory.driver())).transpose()?;
    let fault = faults.as_ref().map_or(0, Record::address);
    for n in 0..kernels.steps.len() {
        let step = &kernels.steps[n];
        if step.candidates.len() < 2 {
            continue;
        }
        let Ok(key) = key(kernels, step, &sizes) else { continue };
        let chosen = match known.get(&key) {
            Some(&candidate) => candidate,
            None => {
                let candidate = match cached_candidate(&**memory.driver(), step, &key) {
                    Some(candidate) => candidate,
                    None => {
                        let tickets = tickets.address();
                        let search = Search { memory, program, functions, sizes: &sizes, tickets, fault };
                        let candidate = search.best(step, &mut flush)?;
                        let driver = memory.driver();
                        driver.store_cached(&identity_key(&**driver, &key), &step.candidates[candidate].name);
                        candidate
                    }
                };
                if let (Some(class), Some(chosen)) = (&step.class, step.candidates.get(candidate)) {
                    let found = Found::of(&chosen.name, chosen.is_library);
                    found::store(&**memory.driver(), class, target, Among::of(mode), &found);
                }
                known.insert(key, candidate);
                candidate
            }
        };
        kernels.steps[n].chosen = chosen.min(kernels.steps[n].candidates.len() - 1);
    }
    Ok(())
}

fn identity_key<D: Driver>(driver: &D, key: &str) -> String {
    format!("autotune\n{}\n{key}", driver.identity())
}

fn cached_candidate<D: Driver>(driver: &D, step: &DeviceStep, key: &str) -> Option<usize> {
    let name = driver.load_cached(&identity_key(driver, key))?;
    step.candidates.iter().position(|w| w.name == name)
}

/// Everything apart from the device that the times of a step's candidates depend on.
fn key(kernels: &Kernels, step: &DeviceStep, sizes: &Sizes) -> Result<String, GpuError> {
    let mut key = String::new();
    for candidate in &step.candidates {
        let _ = writeln!(key, "candidate {}", candidate.name);
        for part in &candidate.parts {
            let Runnable::Kernel(kernel) = part else { continue };
            let symbols = kernel.params.iter().filter_map(|p| match p {
                Param::Symbol(s) => sizes.get(*s),
                Param::Number(n) => Some(*n),
                // Where a slice lies is of no matter.
                _ => None,
            });
            let symbols: Vec<i64> = symbols.collect();
            let maps = Map::of(&kernel.params, &kernel.maps, &|e| Ok(sizes.eval(e)?))?;
            let _ = writeln!(key, "{:?} {symbols:?} {maps:?}", grid(kernel, sizes)?);
            key.push_str(kernels.text(kernel.function));
        }
    }
    Ok(key)
}

/// What was got, or nothing where the step or one candidate of it cannot be timed, which is logged.
///
/// # Errors
/// A lost device.
fn unless_lost<T>(
    step: &DeviceStep,
    candidate: &str,
    result: Result<T, GpuError>,
) -> Result<Option<T>, GpuError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e @ GpuError::Lost { .. }) => Err(e),
        Err(e) => {
            tracing::info!(target: "autotune", step = step.name, candidate, "not timed: {e}");
            Ok(None)
        }
    }
}

/// The times of a candidate's runs.
struct Runs {
    /// Its number.
    candidate: usize,
    seconds: Vec<f64>,
}

impl Runs {
    fn median(&self) -> f64 {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied().unwrap_or(f64::INFINITY)
    }
}

/// The buffers of a step, the addresses of scratch memory, and what evicts them from caches.
type StepMemory<'a, D> = (&'a FxHashMap<usize, Block<D>>, &'a [u64], Option<&'a Block<D>>);

/// What timing needs beside a step.
pub(crate) struct Search<'a, D: Driver> {
    pub(crate) memory: &'a Arc<DeviceMemory<D>>,
    pub(crate) program: &'a Program,
    pub(crate) functions: &'a [D::Function],
    pub(crate) sizes: &'a Sizes,
    /// Address of zeroed block counters.
    pub(crate) tickets: u64,
    /// Address of a fault record.
    pub(crate) fault: u64,
}

impl<D: Driver> Search<'_, D> {
    /// The fastest candidate of a step; the first where none can be timed.
    fn best(&self, step: &DeviceStep, flush: &mut Option<Block<D>>) -> Result<usize, GpuError> {
        let times = self.times(step, flush)?;
        tracing::info!(target: "autotune", "{}", table(step, &times));
        Ok(times.first().map_or(0, |t| t.1))
    }

    /// The times of a step's candidates and their numbers, fastest first; without those that fail.
    ///
    /// # Errors
    /// A lost device.
    pub(crate) fn times(
        &self,
        step: &DeviceStep,
        flush: &mut Option<Block<D>>,
    ) -> Result<Vec<(f64, usize)>, GpuError> {
        let driver = &**self.memory.driver();
        let Some(buffers) = unless_lost(step, "", self.buffers(step))? else { return Ok(Vec::new()) };
        let Some(scratch) = unless_lost(step, "", self.scratch(step, flush))? else { return Ok(Vec::new()) };
        let mut tried: Vec<(f64, usize)> = Vec::with_capacity(step.candidates.len());
        for (n, candidate) in step.candidates.iter().enumerate() {
            if is_enough(&tried) {
                tracing::info!(target: "autotune", step = step.name, left_out = step.candidates.len() - n, "not tried: others took long");
                break;
            }
            let start = Instant::now();
            let run = self.run(candidate, &buffers, &scratch).and_then(|()| driver.synchronize());
            if unless_lost(step, &candidate.name, run)?.is_some() {
                tried.push((start.elapsed().as_secs_f64(), n));
            }
        }
        let (hopeful, hopeless) = with_hope(tried);
        let runs = hopeful.into_iter().map(|n| Runs { candidate: n, seconds: Vec::new() }).collect();
        let memory = (&buffers, &scratch[..], flush.as_ref());
        let timed = unless_lost(step, "", self.in_rounds(step, runs, memory))?;
        Ok(timed.map(|times| times.into_iter().chain(hopeless).collect()).unwrap_or_default())
    }

    /// The times of candidates that run, and their numbers, fastest first.
    fn in_rounds(
        &self,
        step: &DeviceStep,
        mut runs: Vec<Runs>,
        memory: StepMemory<'_, D>,
    ) -> Result<Vec<(f64, usize)>, GpuError> {
        self.batch(step, &mut runs, FIRST_RUNS, memory)?;
        let least = runs.iter().map(Runs::median).fold(f64::INFINITY, f64::min);
        // Those that are left out have the time of their few runs, which is longer.
        let (mut close, far): (Vec<Runs>, Vec<Runs>) =
            runs.into_iter().partition(|runs| runs.median() <= VARIES * least);
        if close.len() + far.len() > 1 {
            self.batch(step, &mut close, MORE_RUNS, memory)?;
        }
        let mut times: Vec<(f64, usize)> =
            close.iter().chain(&far).map(|runs| (runs.median(), runs.candidate)).collect();
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        Ok(times)
    }

    /// Runs the candidates in turn, each as often as `times` says, with cold caches.
    fn batch(
        &self,
        step: &DeviceStep,
        all: &mut [Runs],
        times: usize,
        (buffers, scratch, flush): StepMemory<'_, D>,
    ) -> Result<(), GpuError> {
        if all.is_empty() {
            return Ok(());
        }
        let driver = &**self.memory.driver();
        let chosen: Vec<usize> = all.iter().map(|runs| runs.candidate).collect();
        let pieces = driver.timed(2 * times * chosen.len(), &mut |n| match flush {
            // SAFETY: the block has this many whole words.
            Some(block) if n % 2 == 0 => unsafe { driver.fill(block.address(), 0, self.flushed() / 4) },
            _ if n % 2 == 0 => Ok(()),
            _ => self.run(&step.candidates[chosen[n / 2 % chosen.len()]], buffers, scratch),
        })?;
        for (n, piece) in pieces.iter().skip(1).step_by(2).enumerate() {
            all[n % chosen.len()].seconds.push(piece.seconds);
        }
        Ok(())
    }

    /// Bytes whose overwriting evicts nearly all that the previous run read: as many as the cache holds. More would be more memory than
    /// small programs ever need.
    fn flushed(&self) -> u64 {
        self.memory.driver().target().cache.max(1 << 20)
    }

    /// The addresses of scratch memory that is enough for every candidate of a step. Work is in order, so that all candidates share it, and
    /// with what is overwritten between runs, which grows where it is too small: a search should need little more memory than calls.
    fn scratch(&self, step: &DeviceStep, flush: &mut Option<Block<D>>) -> Result<Vec<u64>, GpuError> {
        let mut most: Vec<u64> = Vec::new();
        for candidate in &step.candidates {
            for (n, bytes) in candidate.scratch.iter().enumerate() {
                let bytes = self.sizes.eval(bytes)?.max(0) as u64;
                match most.get_mut(n) {
                    Some(most) => *most = bytes.max(*most),
                    None => most.push(bytes),
                }
            }
        }
        let mut end = 0;
        let mut place = |bytes: &u64| {
            let at = end;
            end += bytes.next_multiple_of(SCRATCH_GRAIN);
            at
        };
        let places: Vec<u64> = most.iter().map(&mut place).collect();
        let wanted = end.max(self.flushed());
        if flush.as_ref().is_none_or(|block| block.bytes() < wanted) {
            // The old one first, so that both are never there.
            *flush = None;
            *flush = Some(self.memory.block(wanted)?);
        }
        let start = flush.as_ref().map_or(0, Block::address);
        Ok(places.into_iter().map(|at| start + at).collect())
    }

    /// Allocates the buffers of a step at their actual sizes.
    fn buffers(&self, step: &DeviceStep) -> Result<FxHashMap<usize, Block<D>>, GpuError> {
        let mut all = FxHashMap::default();
        for &root in &step.roots {
            let id = BufId::from_index(root);
            let block = self.memory.block(bytes_of(self.program, id, self.sizes)?.max(16))?;
            // Index 0 is valid in every dimension.
            let word = if self.program.buffers[id].dtype.is_inexact() { FILL_WORD } else { 0 };
            // SAFETY: the block is new and has this many whole words.
            unsafe { self.memory.driver().fill(block.address(), word, block.bytes() / 4)? };
            all.insert(root, block);
        }
        Ok(all)
    }

    fn run(
        &self,
        candidate: &PlannedCandidate,
        buffers: &FxHashMap<usize, Block<D>>,
        scratch: &[u64],
    ) -> Result<(), GpuError> {
        let address = |buf: BufId| buffers.get(&self.program.root(buf).index()).map_or(0, Block::address);
        for part in &candidate.parts {
            match part {
                Runnable::Kernel(kernel) => {
                    let Some(grid) = grid(kernel, self.sizes)? else { continue };
                    let argument = |p: &Param| match p {
                        Param::Buffer(b) => address(*b),
                        Param::Symbol(s) => self.sizes.get(*s).unwrap_or_default() as u64,
                        Param::Number(n) | Param::Slice(n) => *n as u64,
                        Param::Scratch(n) => scratch.get(*n as usize).copied().unwrap_or(0),
                        Param::Tickets => self.tickets,
                        Param::Fault => self.fault,
                        Param::FirstCheck => u64::from(kernel.first_check),
                        Param::Map(n) => kernel.maps.get(*n as usize).map_or(0, |map| address(map.buf)),
                    };
                    let words: Vec<u64> = kernel.params.iter().map(argument).collect();
                    let maps = Map::of(&kernel.params, &kernel.maps, &|e| Ok(self.sizes.eval(e)?))?;
                    let arguments = Arguments { words: &words, maps: &maps };
                    let function = &self.functions[kernel.function];
                    // SAFETY: the arguments are in the kernel's order, and every buffer of the step has memory of its
                    // size.
                    unsafe { self.memory.driver().launch(function, grid, arguments)? };
                }
                Runnable::Library(call) => {
                    let work = Work { address: &address, size: &|e| Ok(self.sizes.eval(e)?), scratch };
                    // SAFETY: every buffer of the step has memory of its size, and the scratch buffers have the
                    // candidate's sizes.
                    unsafe { call.run(&work)? };
                }
            }
        }
        Ok(())
    }
}

/// Whether first runs have taken so long that no others are tried.
fn is_enough(tried: &[(f64, usize)]) -> bool {
    let spent: f64 = tried.iter().map(|t| t.0).sum();
    let least = tried.iter().map(|t| t.0).fold(f64::INFINITY, f64::min);
    spent > PATIENCE.0 && spent > PATIENCE.1 * least
}

/// Of candidates and the times of their first runs those that are worth more runs, in their order, and the others, fastest first.
fn with_hope(tried: Vec<(f64, usize)>) -> (Vec<usize>, Vec<(f64, usize)>) {
    let least = tried.iter().map(|t| t.0).fold(f64::INFINITY, f64::min);
    let (mut hopeless, hopeful): (Vec<_>, Vec<_>) =
        tried.into_iter().partition(|(time, _)| *time > HOPELESS.1 && *time > HOPELESS.0 * least);
    hopeless.sort_by(|a, b| a.0.total_cmp(&b.0));
    (hopeful.into_iter().map(|(_, n)| n).collect(), hopeless)
}

/// The candidates and their times as a table, fastest first, in the form that PyTorch prints.
fn table(step: &DeviceStep, times: &[(f64, usize)]) -> String {
    let mut text = format!("AUTOTUNE {}\n", step.name);
    let best = times.first().map_or(0.0, |t| t.0);
    for (time, candidate) in times {
        let share = if *time > 0.0 { 100.0 * best / time } else { 100.0 };
        let _ =
            writeln!(text, "  {:<40} {:>9.4} ms {share:>6.1}%", step.candidates[*candidate].name, 1e3 * time);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_far_longer_is_not_run_again() {
        assert_eq!(with_hope(vec![(0.2, 0), (0.1, 1), (0.4, 2)]), (vec![0, 1, 2], vec![]));
        assert_eq!(with_hope(vec![(2.0, 0), (0.001, 1), (0.5, 2)]), (vec![1], vec![(0.5, 2), (2.0, 0)]));
        // Loading a short kernel takes many times its time.
        assert_eq!(with_hope(vec![(0.04, 0), (0.00001, 1)]), (vec![0, 1], vec![]));
    }

    #[test]
    fn no_others_are_tried_once_the_first_took_long() {
        assert!(!is_enough(&[]));
        assert!(!is_enough(&[(9.0, 0)]), "one that is long may be the only one");
        assert!(!is_enough(&[(9.0, 0), (8.0, 1)]));
        assert!(is_enough(&[(9.0, 0), (0.001, 1)]));
        assert!(!is_enough(&[(0.5, 0), (0.001, 1)]));
    }
}
