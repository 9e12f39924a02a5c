//! Calls as device graphs: a prepared list of launches is recorded and then launched as one.
//!
//! A recording contains addresses. Inputs are read from the caller's memory; where an address changes, either the launches
//! that read it are updated, or the input is copied to memory of the recording from then on. Outputs belong to the caller:
//! memory that the caller still holds at the next call is left alone, and the launches that write it are updated to
//! another block. The addresses of library calls cannot be updated. There may be several recordings for one set of sizes,
//! therefore, in other memory each, and a call runs one whose outputs of libraries nobody holds and whose inputs of libraries
//! lie where they lay ([`policy`]). Where there is none, inputs are copied, and outputs as well while the caller holds
//! those of all recordings.

mod instance;
mod policy;

use std::sync::Arc;

use plugin_sdk::{Stream, TensorView};

use crate::arguments::Source;
use crate::compiled::Parts;
use crate::prepare::{CallKind, List, Prepared};
use crate::{Block, Driver, GpuError};

use instance::{Bound, Instance, OutputBlock, write_addresses};
use policy::{Choice, Credit, Standing, choose};

/// Maximum number of sets of sizes that have recordings, per program; those of the least recently used are dropped.
pub(crate) const MAX_RECORDED: usize = 8;
/// How often a set of sizes is recorded before recording is given up, beside once in so many calls.
const MAX_RECORDINGS: u64 = 64;
const CALLS_OF_A_RECORDING: u64 = 64;
/// Calls after which a recording that none of them ran is dropped with its memory, for each recording that there is. One whose results
/// the caller holds is kept: another in its place would be held as long.
const IDLE_CALLS: u64 = 64;
/// How often a recording is made again because an input of libraries moved before that input is copied.
const MOST_MOVES: u32 = 1;
/// An input that at most this many launches read is never copied; its launches are updated.
const FEW_USES: usize = 2;
/// Larger inputs are never copied: copying takes longer than updating the launches, about 1 µs each.
const LARGE: u64 = 4 << 20;

/// The recording state of one set of sizes.
pub(crate) struct Recorded<D: Driver> {
    instances: Vec<Instance<D>>,
    /// Whether recording again is pointless.
    given_up: bool,
    /// How many recordings were made, and how many calls wanted one.
    times: u64,
    calls: u64,
    /// For each input how often it moved so that a recording was made again: one that gives its memory away, or one that copies.
    moves: [Vec<u32>; 2],
    credit: Credit,
    uses: Option<Uses>,
}

/// The launches that use each buffer.
struct Uses {
    /// For each buffer its kernels, by their number among kernels and among all launches.
    kernels: Vec<Vec<(usize, usize)>>,
    /// For each buffer whether a library call uses it.
    library: Vec<bool>,
}

/// The outputs that a recorded call gives: the buffer's number and its block.
pub(crate) type Given<D> = Vec<(usize, Arc<Block<D>>)>;

impl<D: Driver> Default for Recorded<D> {
    fn default() -> Self {
        Recorded {
            instances: Vec::new(),
            given_up: false,
            times: 0,
            calls: 0,
            moves: Default::default(),
            credit: Credit::default(),
            uses: None,
        }
    }
}

impl<D: Driver> Recorded<D> {
    /// Whether there is a recording.
    pub(crate) fn exists(&self) -> bool {
        !self.instances.is_empty()
    }
    /// Whether a call should be recorded.
    pub(crate) fn wanted(&self) -> bool {
        !self.given_up
    }
    /// Drops the recordings and their memory; they are made again when needed.
    pub(crate) fn release(&mut self) {
        self.instances.clear();
    }

    fn give_up(&mut self, program: &str, why: &str) {
        self.given_up = true;
        self.instances.clear();
        tracing::info!(target: "graph", program, "no device graph: {why}");
    }

    /// Runs a call by a recording, which is made if necessary. Returns `None`, without having run anything, where the
    /// call has to be launched one by one. `addresses` are those of the last call.
    ///
    /// # Safety
    /// The conditions of the list's launches.
    pub(crate) unsafe fn run(
        &mut self,
        prepared: &mut Prepared,
        parts: &Parts<'_, D>,
        call: &CallTensors<'_>,
        addresses: &mut [u64],
    ) -> Result<Option<Given<D>>, GpuError> {
        self.calls += 1;
        self.moves.iter_mut().for_each(|moves| moves.resize(call.sources.len(), 0));
        if self.uses.is_none() {
            self.uses = prepared.list.as_ref().ok().map(|list| Uses::of(list, parts, addresses.len()));
        }
        let Some(n) = self.chosen(prepared, parts, call, addresses)? else { return Ok(None) };
        let (Some(instance), Some(uses)) = (self.instances.get_mut(n), &self.uses) else { return Ok(None) };
        // SAFETY: the caller guarantees the conditions of the launches.
        if let Err(e) = unsafe { instance.run(prepared, uses, parts, call, addresses) } {
            // Some of its launches may be for this call's addresses, and others for those of an earlier one.
            self.instances.remove(n);
            return Err(e);
        }
        instance.used = self.calls;
        let given = instance.given(&prepared.outputs);
        let idle = IDLE_CALLS * self.instances.len() as u64;
        self.instances.retain_mut(|i| self.calls - i.used < idle || !i.is_free());
        Ok(Some(given))
    }

    /// The recording that a call runs, which is made if necessary; `None` where there is none.
    fn chosen(
        &mut self,
        prepared: &mut Prepared,
        parts: &Parts<'_, D>,
        call: &CallTensors<'_>,
        addresses: &mut [u64],
    ) -> Result<Option<usize>, GpuError> {
        self.instances.retain(|i| i.generation == call.generation);
        let Some(uses) = &self.uses else {
            self.record(prepared, parts, call, addresses, (false, false))?;
            return Ok(None);
        };
        let moved: Vec<Vec<usize>> = self.instances.iter().map(|i| i.moved(prepared, uses, call)).collect();
        let standing = |(i, moved): (&mut Instance<D>, &Vec<usize>)| Standing {
            copies: i.copies,
            is_free: i.is_free(),
            moved: moved.len(),
            copied: i.copied(prepared, uses, call),
            used: i.used,
        };
        let all: Vec<Standing> = self.instances.iter_mut().zip(&moved).map(standing).collect();
        let results: u64 = prepared.outputs.iter().map(|(_, bytes)| bytes).sum();
        let on_host = |(n, source): (usize, &Source)| match source {
            Source::Host | Source::Unaligned(_) => prepared.inputs[n].bytes,
            _ => 0,
        };
        let own: u64 = call.sources.iter().enumerate().map(on_host).sum();
        let (copies, exact) = match choose(&all, self.credit, results + own) {
            Choice::Replay(n) => {
                if !all[n].copies && self.instances[n].used + 1 < self.calls {
                    self.credit.earn();
                }
                return Ok(Some(n));
            }
            Choice::Record { copies, exact } => {
                if !copies {
                    self.credit.spend(all.iter().filter(|s| !s.copies).count());
                }
                (copies, exact)
            }
            Choice::Again(n) => {
                let copies = all[n].copies;
                moved[n].iter().for_each(|input| self.moves[usize::from(copies)][*input] += 1);
                self.instances.remove(n);
                (copies, false)
            }
        };
        let made = self.record(prepared, parts, call, addresses, (copies, exact))?;
        Ok(made.then(|| self.instances.len() - 1))
    }

    /// Whether the next recording of a kind reads a copy of an input: one that moved before. One that is written in place is never copied.
    fn is_staged(&self, parts: &Parts<'_, D>, input: usize, copies: bool) -> bool {
        self.moves[usize::from(copies)][input] > MOST_MOVES && !parts.program.inputs[input].written
    }

    /// Records the call as the last instance, and returns whether that succeeded. `copies`: what libraries write is copied for
    /// the caller; `exact`: no input is copied.
    fn record(
        &mut self,
        prepared: &mut Prepared,
        parts: &Parts<'_, D>,
        call: &CallTensors<'_>,
        addresses: &mut [u64],
        (copies, exact): (bool, bool),
    ) -> Result<bool, GpuError> {
        let name = &parts.program.name;
        if let Err(why) = &prepared.list {
            self.give_up(name, why);
            return Ok(false);
        }
        self.times += 1;
        if self.times > MAX_RECORDINGS + self.calls / CALLS_OF_A_RECORDING {
            self.give_up(name, "the addresses of tensors that library calls use change too often");
            return Ok(false);
        }
        let inputs = self.bound_inputs(prepared, parts, call, (copies, exact))?;
        let outputs = self.output_blocks(prepared, parts, copies)?;
        write_addresses(prepared, &inputs, &outputs, parts.dummy, addresses);
        let Ok(list) = &mut prepared.list else { return Ok(false) };
        list.patch(addresses);
        let (list, on) = (&*list, parts.on(addresses, call.arena));
        // SAFETY: the addresses are those of the blocks above and of the call's tensors, which are as large as their
        // buffers.
        let mut work = || (0..list.calls.len()).try_for_each(|n| unsafe { list.launch(n, &on) });
        let start = std::time::Instant::now();
        match parts.driver.record(&mut work) {
            Ok(Some(recording)) => {
                tracing::debug!(target: "graph", program = name, launches = list.calls.len(), copies, beside = self.instances.len(), time = ?start.elapsed(), "recorded");
                let (generation, used) = (call.generation, self.calls);
                self.instances.push(Instance { recording, generation, inputs, outputs, copies, used });
                Ok(true)
            }
            Ok(None) => {
                self.give_up(name, "the driver has none");
                Ok(false)
            }
            Err(e) if matches!(e, GpuError::Lost { .. }) || e.is_out_of_memory() => Err(e),
            Err(e) => {
                self.give_up(name, &e.to_string());
                Ok(false)
            }
        }
    }

    /// Where a new recording reads the inputs of a call.
    fn bound_inputs(
        &self,
        prepared: &Prepared,
        parts: &Parts<'_, D>,
        call: &CallTensors<'_>,
        (copies, exact): (bool, bool),
    ) -> Result<Vec<Bound<D>>, GpuError> {
        let one = |(n, source): (usize, &Source)| {
            Ok(match *source {
                Source::Empty => Bound::Empty,
                Source::Device(address) if exact || !self.is_staged(parts, n, copies) => {
                    Bound::Caller(address)
                }
                _ => Bound::Own(parts.memory.block(prepared.inputs[n].bytes)?),
            })
        };
        call.sources.iter().enumerate().map(one).collect()
    }

    /// Memory for the outputs of a new recording.
    fn output_blocks(
        &self,
        prepared: &Prepared,
        parts: &Parts<'_, D>,
        copies: bool,
    ) -> Result<Vec<OutputBlock<D>>, GpuError> {
        let one = |&(root, bytes): &(usize, u64)| {
            let block = parts.memory.block(bytes)?;
            Ok(match (self.uses.as_ref().is_some_and(|u| u.library[root]), copies) {
                (false, _) => OutputBlock::Moving(Arc::new(block)),
                (true, false) => OutputBlock::Staying(Arc::new(block)),
                (true, true) => OutputBlock::Copied(block),
            })
        };
        prepared.outputs.iter().map(one).collect()
    }
}

/// The tensors of a call.
pub(crate) struct CallTensors<'a> {
    pub(crate) views: &'a [TensorView<'a>],
    pub(crate) sources: &'a [Source],
    /// Address of the arena.
    pub(crate) arena: u64,
    /// A counter of changes of everything but inputs and outputs.
    pub(crate) generation: u64,
    /// The caller's stream.
    pub(crate) stream: Stream,
}

impl Uses {
    fn of<D: Driver>(list: &List, parts: &Parts<'_, D>, buffers: usize) -> Uses {
        let mut uses = Uses { kernels: vec![Vec::new(); buffers], library: vec![false; buffers] };
        let mut kernels = 0;
        for (n, call) in list.calls.iter().enumerate() {
            match &call.what {
                CallKind::Kernel { words, .. } => {
                    let from = list.moving.partition_point(|(word, _)| *word < words.start);
                    let own = list.moving[from..].iter().take_while(|(word, _)| *word < words.end);
                    own.for_each(|(_, root)| uses.kernels[*root as usize].push((kernels, n)));
                    kernels += 1;
                }
                CallKind::Library { .. } => {
                    parts.steps[call.step as usize].roots.iter().for_each(|root| uses.library[*root] = true);
                }
            }
        }
        uses
    }
}
