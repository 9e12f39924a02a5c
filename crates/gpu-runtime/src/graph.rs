//! Calls as device graphs: a prepared list of launches is recorded once per set of sizes and then launched as one.
//!
//! A recording contains addresses. Inputs are read from the caller's memory; where an address changes, either the launches
//! that read it are updated, or the input is copied to memory of the recording from then on. Outputs belong to the caller:
//! memory that the caller still holds at the next call is left alone, and the launches that write it are updated to
//! another block. The addresses of library calls cannot be updated, so their inputs are copied or the call is recorded
//! again.

use std::sync::Arc;

use plugin_sdk::TensorView;

use crate::arguments::Source;
use crate::compiled::Parts;
use crate::prepare::{CallKind, List, Prepared};
use crate::transfer::upload;
use crate::{Arguments, Block, Driver, GpuError, Recording};

/// Maximum number of recordings per program; those of the least recently used sizes are dropped.
pub(crate) const MAX_RECORDINGS: usize = 8;
/// How often a set of sizes is recorded again because of changed addresses before recording is given up.
const MAX_RERECORDINGS: u32 = 16;
/// An input that at most this many launches read is never copied; its launches are updated.
const FEW_USES: usize = 2;
/// Larger inputs are never copied: copying takes longer than updating the launches, about 1 µs each.
const LARGE: u64 = 4 << 20;

/// The recording state of one set of sizes.
pub(crate) struct Recorded<D: Driver> {
    graph: Option<Graph<D>>,
    /// Whether recording again is pointless.
    given_up: bool,
    times: u32,
    /// Inputs that are copied to memory of the recording.
    staged: Vec<bool>,
    uses: Option<Uses>,
}

struct Graph<D: Driver> {
    recording: Box<dyn Recording<D::Function>>,
    generation: u64,
    inputs: Vec<Bound<D>>,
    /// The outputs, in the order of [`Prepared::outputs`].
    outputs: Vec<OutputBlock<D>>,
}

enum Bound<D: Driver> {
    /// It has no elements.
    Empty,
    /// Read at this address of the caller.
    Caller(u64),
    /// Copied to this block by each call.
    Own(Block<D>),
}

enum OutputBlock<D: Driver> {
    /// Written by kernels, and given to the caller directly.
    Shared(Arc<Block<D>>),
    /// Written by a library, and copied for the caller.
    Copied { _memory: Block<D> },
}

/// The launches that use each buffer.
struct Uses {
    /// For each buffer its kernels, by their number among kernels and among all launches.
    kernels: Vec<Vec<(usize, usize)>>,
    /// For each buffer whether a library call uses it.
    library: Vec<bool>,
}

/// The outputs of a recorded call.
pub(crate) struct Outputs<D: Driver> {
    /// The buffer's number, and its block where the caller may have it.
    pub(crate) shared: Vec<(usize, Arc<Block<D>>)>,
}

impl<D: Driver> Default for Recorded<D> {
    fn default() -> Self {
        Recorded { graph: None, given_up: false, times: 0, staged: Vec::new(), uses: None }
    }
}

impl<D: Driver> Recorded<D> {
    /// Whether there is a recording.
    pub(crate) fn exists(&self) -> bool {
        self.graph.is_some()
    }
    /// Whether a call should be recorded.
    pub(crate) fn wanted(&self) -> bool {
        !self.given_up
    }
    /// Drops the recording and its memory; it is made again when needed.
    pub(crate) fn release(&mut self) {
        self.graph = None;
    }

    fn give_up(&mut self, program: &str, why: &str) {
        self.given_up = true;
        self.graph = None;
        tracing::info!(target: "graph", program, "no device graph: {why}");
    }

    /// Runs a call by its recording, which is made if necessary. Returns `None`, without having run anything, where the
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
    ) -> Result<Option<Outputs<D>>, GpuError> {
        self.staged.resize(call.sources.len(), false);
        if self.uses.is_none() {
            self.uses = prepared.list.as_ref().ok().map(|list| Uses::of(list, parts, addresses.len()));
        }
        let rerecord = match &self.graph {
            Some(graph) => graph.generation != call.generation || self.must_rerecord(prepared, parts, call),
            None => true,
        };
        if rerecord && !self.record(prepared, parts, call, addresses)? {
            return Ok(None);
        }
        let (Some(graph), Some(uses), Ok(list)) = (&mut self.graph, &self.uses, &mut prepared.list) else {
            return Ok(None);
        };
        let mut moved = Vec::new();
        for (n, bound) in graph.inputs.iter_mut().enumerate() {
            let layout = &prepared.inputs[n];
            let few = uses.kernels[layout.root].len() <= FEW_USES;
            let read_directly = few || layout.bytes > LARGE || parts.program.inputs[n].written;
            if let Some(address) = bound.rebind(call.sources[n], read_directly, layout.bytes, parts)? {
                addresses[layout.root] = address;
                moved.push(layout.root);
            }
            bound.fill(call, n, &layout.strides, layout.bytes, parts)?;
        }
        for (held, &(root, bytes)) in graph.outputs.iter_mut().zip(&prepared.outputs) {
            if let OutputBlock::Shared(block) = held
                && Arc::get_mut(block).is_none()
            {
                *block = Arc::new(parts.memory.block(bytes)?);
                addresses[root] = block.address();
                moved.push(root);
            }
        }
        // SAFETY: the caller guarantees the conditions of the launches; the new addresses are as large as the old ones.
        unsafe { graph.update_launches(list, uses, &moved, parts, addresses)? };
        graph.recording.launch()?;
        Ok(Some(graph.given(&prepared.outputs)))
    }

    /// Whether an input that a library call uses has moved.
    fn must_rerecord(&mut self, prepared: &Prepared, parts: &Parts<'_, D>, call: &CallTensors<'_>) -> bool {
        let (Some(graph), Some(uses)) = (&self.graph, &self.uses) else { return true };
        let mut rerecord = false;
        for (n, bound) in graph.inputs.iter().enumerate() {
            let Bound::Caller(address) = bound else { continue };
            if call.sources[n] == Source::Device(*address) || !uses.library[prepared.inputs[n].root] {
                continue;
            }
            rerecord = true;
            // An input that is written in place is never copied.
            self.staged[n] = !parts.program.inputs[n].written;
        }
        rerecord
    }

    /// Records the call, and returns whether there is a recording now.
    fn record(
        &mut self,
        prepared: &mut Prepared,
        parts: &Parts<'_, D>,
        call: &CallTensors<'_>,
        addresses: &mut [u64],
    ) -> Result<bool, GpuError> {
        self.graph = None;
        let name = &parts.program.name;
        let list = match (&mut prepared.list, &self.uses) {
            (Ok(list), Some(_)) => list,
            (Err(why), _) => {
                let why = why.clone();
                self.give_up(name, &why);
                return Ok(false);
            }
            _ => return Ok(false),
        };
        self.times += 1;
        if self.times > MAX_RERECORDINGS {
            self.give_up(name, "the addresses of inputs that library calls use change too often");
            return Ok(false);
        }
        let mut inputs = Vec::with_capacity(call.sources.len());
        for (n, source) in call.sources.iter().enumerate() {
            let bound = match *source {
                Source::Empty => Bound::Empty,
                Source::Device(address) if !self.staged[n] => Bound::Caller(address),
                _ => Bound::Own(parts.memory.block(prepared.inputs[n].bytes)?),
            };
            addresses[prepared.inputs[n].root] = bound.address(parts.dummy);
            inputs.push(bound);
        }
        let mut outputs = Vec::with_capacity(prepared.outputs.len());
        for &(root, bytes) in &prepared.outputs {
            let block = parts.memory.block(bytes)?;
            addresses[root] = block.address();
            let library = self.uses.as_ref().is_some_and(|u| u.library[root]);
            outputs.push(if library {
                OutputBlock::Copied { _memory: block }
            } else {
                OutputBlock::Shared(Arc::new(block))
            });
        }
        list.patch(addresses);
        let (list, on) = (&*list, parts.on(addresses, call.arena));
        // SAFETY: the addresses are those of the blocks above and of the call's tensors, which are as large as their
        // buffers.
        let mut work = || (0..list.calls.len()).try_for_each(|n| unsafe { list.launch(n, &on) });
        let start = std::time::Instant::now();
        match parts.driver.record(&mut work) {
            Ok(Some(recording)) => {
                tracing::debug!(target: "graph", program = name, launches = list.calls.len(), time = ?start.elapsed(), "recorded");
                self.graph = Some(Graph { recording, generation: call.generation, inputs, outputs });
                Ok(true)
            }
            Ok(None) => {
                self.give_up(name, "the driver has none");
                Ok(false)
            }
            Err(e @ (GpuError::Lost { .. } | GpuError::OutOfMemory { .. })) => Err(e),
            Err(e) => {
                self.give_up(name, &e.to_string());
                Ok(false)
            }
        }
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
}

impl<D: Driver> Graph<D> {
    /// Updates the launches that use these buffers to their new addresses.
    ///
    /// # Safety
    /// The conditions of [`Recording::update`].
    unsafe fn update_launches(
        &self,
        list: &mut List,
        uses: &Uses,
        moved: &[usize],
        parts: &Parts<'_, D>,
        addresses: &[u64],
    ) -> Result<(), GpuError> {
        if moved.is_empty() {
            return Ok(());
        }
        list.patch(addresses);
        let mut launches: Vec<(usize, usize)> =
            moved.iter().flat_map(|root| uses.kernels[*root].iter().copied()).collect();
        launches.sort_unstable();
        launches.dedup();
        for (kernel, call) in launches {
            let CallKind::Kernel { function, grid, words, maps, .. } = &list.calls[call].what else {
                continue;
            };
            let words = &list.words[words.start as usize..words.end as usize];
            let arguments = Arguments { words, maps };
            // SAFETY: the caller guarantees the addresses; the launch was recorded with this function and grid.
            unsafe { self.recording.update(kernel, &parts.functions[*function], *grid, arguments)? };
        }
        Ok(())
    }

    fn given(&self, outputs: &[(usize, u64)]) -> Outputs<D> {
        let shared = |(held, (root, _)): (&OutputBlock<D>, &(usize, u64))| match held {
            OutputBlock::Shared(block) => Some((*root, Arc::clone(block))),
            OutputBlock::Copied { .. } => None,
        };
        Outputs { shared: self.outputs.iter().zip(outputs).filter_map(shared).collect() }
    }
}

impl<D: Driver> Bound<D> {
    fn address(&self, dummy: u64) -> u64 {
        match self {
            Bound::Empty => dummy,
            Bound::Caller(address) => *address,
            Bound::Own(block) => block.address(),
        }
    }

    /// Adapts to the tensor's location in this call, and returns the new address if it changed. `read_directly`: an input
    /// in device memory is not copied.
    fn rebind(
        &mut self,
        source: Source,
        read_directly: bool,
        bytes: u64,
        parts: &Parts<'_, D>,
    ) -> Result<Option<u64>, GpuError> {
        match (&*self, source) {
            (Bound::Caller(old), Source::Device(new)) if *old == new => return Ok(None),
            (Bound::Caller(_), Source::Device(new)) if read_directly => *self = Bound::Caller(new),
            (Bound::Caller(_), _) => *self = Bound::Own(parts.memory.block(bytes)?),
            _ => return Ok(None),
        }
        Ok(Some(self.address(parts.dummy)))
    }

    /// Copies the tensor to the recording's memory, where it has a copy.
    fn fill(
        &self,
        call: &CallTensors<'_>,
        n: usize,
        strides: &[i64],
        bytes: u64,
        parts: &Parts<'_, D>,
    ) -> Result<(), GpuError> {
        let Bound::Own(block) = self else { return Ok(()) };
        match call.sources[n] {
            Source::Empty => Ok(()),
            Source::Host => upload(parts.driver, &call.views[n], strides, block.address()),
            // SAFETY: the view is device memory, and as long as the block by the checks of its layout.
            Source::Device(from) | Source::Unaligned(from) => unsafe {
                parts.driver.copy(block.address(), from, bytes)
            },
        }
    }
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
