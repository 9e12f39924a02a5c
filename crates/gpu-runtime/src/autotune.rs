//! The search (autotuning): every candidate of a step is timed on the device at the sizes of capture, and the fastest is
//! chosen. Equal steps are timed once. The driver may keep the choice for later processes.

use std::fmt::Write;

use gpu_codegen::Param;
use ir_core::EntityId;
use kernel_ir::runtime::Sizes;
use kernel_ir::{BufId, Program};
use rustc_hash::FxHashMap;

use crate::compiled::tickets;
use crate::faults::Record;
use crate::machine::bytes_of;
use crate::plan::{DeviceStep, Kernels, PlannedCandidate, Runnable};
use crate::prepare::grid;
use crate::{Arguments, Block, DeviceMemory, Driver, GpuError, Map, Work};
use std::sync::Arc;

/// Timed runs per candidate; the median counts.
const TIMED_RUNS: usize = 9;
/// A 32-bit pattern that is two small numbers as f16 (0.0001) or bf16 (0.0027) and a small one as f32: nothing overflows
/// or is subnormal.
const FILL_WORD: u32 = 0x3b31_3b31;

/// Chooses a candidate for every step that has several.
///
/// # Errors
/// A lost device. A candidate that fails is skipped.
pub(crate) fn choose<D: Driver>(
    memory: &Arc<DeviceMemory<D>>,
    program: &Program,
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

struct Search<'a, D: Driver> {
    memory: &'a Arc<DeviceMemory<D>>,
    program: &'a Program,
    functions: &'a [D::Function],
    sizes: &'a Sizes,
    /// Address of zeroed block counters.
    tickets: u64,
    /// Address of a fault record.
    fault: u64,
}

impl<D: Driver> Search<'_, D> {
    /// The fastest candidate of a step; the first where none can be timed.
    fn best(&self, step: &DeviceStep, flush: &mut Option<Block<D>>) -> Result<usize, GpuError> {
        let driver = &**self.memory.driver();
        let buffers = match self.buffers(step) {
            Ok(buffers) => buffers,
            Err(e @ GpuError::Lost { .. }) => return Err(e),
            Err(e) => {
                tracing::info!(target: "autotune", step = step.name, "not searched: {e}");
                return Ok(0);
            }
        };
        if flush.is_none() {
            // Overwriting twice the cache's size evicts what the previous run read.
            *flush = Some(self.memory.block((2 * driver.target().cache).max(1 << 20))?);
        }
        let mut times = Vec::with_capacity(step.candidates.len());
        for (n, candidate) in step.candidates.iter().enumerate() {
            match self.time(candidate, &buffers, flush.as_ref()) {
                Ok(time) => times.push((time, n)),
                Err(e @ GpuError::Lost { .. }) => return Err(e),
                Err(e) => {
                    tracing::info!(target: "autotune", step = step.name, candidate = candidate.name, "left out: {e}");
                }
            }
        }
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        tracing::info!(target: "autotune", "{}", table(step, &times));
        Ok(times.first().map_or(0, |t| t.1))
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

    /// The time of a candidate in seconds, with cold caches.
    fn time(
        &self,
        candidate: &PlannedCandidate,
        buffers: &FxHashMap<usize, Block<D>>,
        flush: Option<&Block<D>>,
    ) -> Result<f64, GpuError> {
        let driver = &**self.memory.driver();
        let scratch: Vec<Block<D>> = candidate
            .scratch
            .iter()
            .map(|bytes| self.memory.block(self.sizes.eval(bytes)?.max(0) as u64))
            .collect::<Result<_, GpuError>>()?;
        let scratch: Vec<u64> = scratch.iter().map(Block::address).collect();
        self.run(candidate, buffers, &scratch)?;
        driver.synchronize()?;
        let times = driver.timed(2 * TIMED_RUNS, &mut |n| match flush {
            // SAFETY: the block has this many whole words.
            Some(block) if n % 2 == 0 => unsafe { driver.fill(block.address(), 0, block.bytes() / 4) },
            _ if n % 2 == 0 => Ok(()),
            _ => self.run(candidate, buffers, &scratch),
        })?;
        let mut times: Vec<f64> = times.into_iter().skip(1).step_by(2).map(|t| t.seconds).collect();
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().ok_or_else(|| GpuError::Malformed("no times".into()))
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
                        Param::Number(n) => *n as u64,
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
