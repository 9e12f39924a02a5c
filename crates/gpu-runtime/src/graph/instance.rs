//! One recording of a call: what it reads and writes where, and its launches, which are updated where tensors moved.
//!
//! Not here: when it is made, and which one runs (`policy`, and the module above).

use std::sync::Arc;

use super::{CallTensors, FEW_USES, LARGE, Uses};
use crate::arguments::Source;
use crate::compiled::Parts;
use crate::prepare::{CallKind, List, Prepared};
use crate::transfer::upload;
use crate::{Arguments, Block, Driver, GpuError, Recording};

pub(super) struct Instance<D: Driver> {
    pub(super) recording: Box<dyn Recording<D::Function>>,
    /// That of the call's memory.
    pub(super) generation: u64,
    pub(super) inputs: Vec<Bound<D>>,
    /// The outputs, in the order of [`Prepared::outputs`].
    pub(super) outputs: Vec<OutputBlock<D>>,
    /// Whether it copies what libraries write.
    pub(super) copies: bool,
    /// The number of the last call that it ran.
    pub(super) used: u64,
}

pub(super) enum Bound<D: Driver> {
    /// It has no elements.
    Empty,
    /// Read at this address of the caller.
    Caller(u64),
    /// Copied to this block by each call.
    Own(Block<D>),
}

pub(super) enum OutputBlock<D: Driver> {
    /// Written by kernels, and given to the caller. Their launches are updated to another block where the caller holds it.
    Moving(Arc<Block<D>>),
    /// Used by a library, and given to the caller. It stays, so the recording waits until nobody holds it.
    Staying(Arc<Block<D>>),
    /// Used by a library, and copied for the caller.
    Copied(Block<D>),
}

impl<D: Driver> OutputBlock<D> {
    fn address(&self) -> u64 {
        match self {
            OutputBlock::Moving(block) | OutputBlock::Staying(block) => block.address(),
            OutputBlock::Copied(block) => block.address(),
        }
    }

    /// The block where the caller has it.
    fn given(&self) -> Option<&Arc<Block<D>>> {
        match self {
            OutputBlock::Moving(block) | OutputBlock::Staying(block) => Some(block),
            OutputBlock::Copied(_) => None,
        }
    }
}

impl<D: Driver> Instance<D> {
    /// Whether nobody holds memory that its calls of libraries write. Who let go of it has enqueued all that reads it before.
    pub(super) fn is_free(&mut self) -> bool {
        self.outputs.iter_mut().all(|output| match output {
            OutputBlock::Staying(block) => Arc::get_mut(block).is_some(),
            _ => true,
        })
    }

    /// The inputs that libraries read and that lie elsewhere in a call.
    pub(super) fn moved(&self, prepared: &Prepared, uses: &Uses, call: &CallTensors<'_>) -> Vec<usize> {
        let moved = |(n, bound): (usize, &Bound<D>)| {
            let Bound::Caller(address) = bound else { return None };
            let stays = call.sources[n] == Source::Device(*address);
            (!stays && uses.library[prepared.inputs[n].root]).then_some(n)
        };
        self.inputs.iter().enumerate().filter_map(moved).collect()
    }

    /// How many inputs that libraries read are copied, though they lie where they could be read.
    pub(super) fn copied(&self, prepared: &Prepared, uses: &Uses, call: &CallTensors<'_>) -> usize {
        let copied = |(n, bound): &(usize, &Bound<D>)| {
            let could_be_read =
                matches!(call.sources[*n], Source::Device(_)) && uses.library[prepared.inputs[*n].root];
            matches!(bound, Bound::Own(_)) && could_be_read
        };
        self.inputs.iter().enumerate().filter(copied).count()
    }

    /// Runs a call whose tensors libraries find where they were.
    ///
    /// # Safety
    /// The conditions of the list's launches.
    pub(super) unsafe fn run(
        &mut self,
        prepared: &mut Prepared,
        uses: &Uses,
        parts: &Parts<'_, D>,
        call: &CallTensors<'_>,
        addresses: &mut [u64],
    ) -> Result<(), GpuError> {
        let mut moved = self.place_inputs(prepared, uses, parts, call)?;
        moved.extend(self.place_outputs(prepared, parts)?);
        // Other recordings, and calls without one, have theirs among the addresses.
        self.write_addresses(prepared, parts, addresses);
        if let Ok(list) = &mut prepared.list {
            // SAFETY: the caller guarantees the conditions of the launches; the new addresses are as large as the old ones.
            unsafe { self.update_launches(list, uses, &moved, parts, addresses)? };
        }
        self.recording.launch()
    }

    /// Adapts to the places of a call's inputs, and copies those that are read in memory of the recording. Returns the buffers
    /// that moved.
    fn place_inputs(
        &mut self,
        prepared: &Prepared,
        uses: &Uses,
        parts: &Parts<'_, D>,
        call: &CallTensors<'_>,
    ) -> Result<Vec<usize>, GpuError> {
        let mut moved = Vec::new();
        for (n, bound) in self.inputs.iter_mut().enumerate() {
            let layout = &prepared.inputs[n];
            let few = uses.kernels[layout.root].len() <= FEW_USES;
            let read_directly = few || layout.bytes > LARGE || parts.program.inputs[n].written;
            if bound.rebind(call.sources[n], read_directly, layout.bytes, parts)? {
                moved.push(layout.root);
            }
            bound.fill(call, n, &layout.strides, layout.bytes, parts)?;
        }
        Ok(moved)
    }

    /// Takes other memory for outputs of kernels that the caller still holds. Returns the buffers that moved.
    fn place_outputs(&mut self, prepared: &Prepared, parts: &Parts<'_, D>) -> Result<Vec<usize>, GpuError> {
        let mut moved = Vec::new();
        for (held, &(root, bytes)) in self.outputs.iter_mut().zip(&prepared.outputs) {
            if let OutputBlock::Moving(block) = held
                && Arc::get_mut(block).is_none()
            {
                *block = Arc::new(parts.memory.block(bytes)?);
                moved.push(root);
            }
        }
        Ok(moved)
    }

    fn write_addresses(&self, prepared: &Prepared, parts: &Parts<'_, D>, addresses: &mut [u64]) {
        write_addresses(prepared, &self.inputs, &self.outputs, parts.dummy, addresses);
    }

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

    /// The outputs whose memory the caller gets.
    pub(super) fn given(&self, outputs: &[(usize, u64)]) -> Vec<(usize, Arc<Block<D>>)> {
        let given = self.outputs.iter().zip(outputs);
        given.filter_map(|(held, (root, _))| Some((*root, Arc::clone(held.given()?)))).collect()
    }
}

/// The addresses of inputs and outputs, each at the number of its buffer.
pub(super) fn write_addresses<D: Driver>(
    prepared: &Prepared,
    inputs: &[Bound<D>],
    outputs: &[OutputBlock<D>],
    dummy: u64,
    addresses: &mut [u64],
) {
    for (layout, bound) in prepared.inputs.iter().zip(inputs) {
        addresses[layout.root] = bound.address(dummy);
    }
    for ((root, _), block) in prepared.outputs.iter().zip(outputs) {
        addresses[*root] = block.address();
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

    /// Adapts to the tensor's location in this call, and returns whether its address changed. `read_directly`: an input
    /// in device memory is not copied.
    fn rebind(
        &mut self,
        source: Source,
        read_directly: bool,
        bytes: u64,
        parts: &Parts<'_, D>,
    ) -> Result<bool, GpuError> {
        match (&*self, source) {
            (Bound::Caller(old), Source::Device(new)) if *old == new => return Ok(false),
            (Bound::Caller(_), Source::Device(new)) if read_directly => *self = Bound::Caller(new),
            (Bound::Caller(_), _) => *self = Bound::Own(parts.memory.block(bytes)?),
            _ => return Ok(false),
        }
        Ok(true)
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
