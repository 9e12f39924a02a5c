//! A call in progress: runs one operation at a time in the memory of the program's buffers, for the shared walk over
//! control flow ([`kernel_ir::runtime::Machine`]). It knows no kernel: [`Op`] runs those.

use std::sync::Arc;

use ir_core::EntityId;
use kernel_ir::runtime::{ExchangeStep, Exchanged, Exchanges, Exec, Number, Sizes};
use kernel_ir::{BufId, Program};
use plugin_sdk::dlpack::DL_CPU;
use plugin_sdk::{DeviceId, ExchangeRun, exchange_ran, step_ran, steps_wanted};

use super::error::Written;
use super::memory::Block;
use super::packs::Packed;
use super::{Buffers, Call, ExecError, Op, byte_size};
use crate::clif::{self, Code, Fault, OutOfBounds};

/// The device of all steps.
const HOST: DeviceId = DeviceId { device_type: DL_CPU, device_id: 0 };

/// A step as this executor runs it.
pub(super) type PlannedStep = kernel_ir::runtime::PlannedStep<Op>;

/// A call in progress.
pub(super) struct Running<'a> {
    pub(super) program: &'a Program,
    pub(super) code: &'a Code,
    pub(super) packed: &'a [Option<Packed>],
    pub(super) buffers: Buffers,
    pub(super) sizes: Sizes,
    /// Memory of outputs and of buffers of unbacked size, by buffer.
    pub(super) blocks: Vec<Option<Arc<Block>>>,
    /// The record for indices out of bounds.
    pub(super) fault: Fault,
    /// Inputs, by number, whose steps write a copy that is returned to the caller when the call has succeeded.
    pub(super) copied: &'a [usize],
    /// Inputs, by number, whose memory a step that has begun stores to.
    pub(super) begun: Vec<usize>,
    /// Dropped with the call, before its memory is given to another one.
    pub(super) exchanges: Exchanges<'a>,
}

impl Running<'_> {
    fn operation(&self, name: &str, op: &Op) -> Result<(), ExecError> {
        let Running { buffers, sizes, code, fault, .. } = self;
        let call = Call { buffers, sizes, code, fault };
        let logged = tracing::enabled!(target: "step", tracing::Level::TRACE);
        if !logged && !steps_wanted() {
            return super::run(op, &call, self.packed);
        }
        let start = std::time::Instant::now();
        let done = super::run(op, &call, self.packed);
        let took = start.elapsed();
        if logged {
            let ns = took.as_nanos() as u64;
            tracing::trace!(target: "step", program = self.program.name, step = name, ns);
        }
        step_ran(&self.program.name, name, HOST, took, took);
        done
    }

    /// An exchange with other ranks, or the wait for one.
    fn exchange(&mut self, name: &str, step: &ExchangeStep) -> Result<(), ExecError> {
        let start = steps_wanted().then(std::time::Instant::now);
        let Running { buffers, sizes, exchanges, .. } = self;
        // SAFETY: every buffer of the call has memory as large as its sizes require until the call ends, which drops the
        // exchanges first.
        let done = unsafe { step.run(&|root| buffers.0[root], sizes, exchanges) }?;
        if let (Some(start), Some(Exchanged { what, group, bytes })) = (start, done) {
            let took = start.elapsed();
            let run = ExchangeRun { what, group: &group, bytes, exchanges: 1, stream: 0 };
            exchange_ran((&self.program.name, name), HOST, (took, took), &run);
        }
        Ok(())
    }

    /// The error for an index out of bounds in a kernel of a step.
    fn out_of_bounds(&self, step: &str, OutOfBounds { site, index, size }: OutOfBounds) -> ExecError {
        // PROOF: the verifier checked that checks name sites of the program.
        let message = self.program.sites[site as usize].message(index, size);
        let inputs = &self.program.inputs;
        let written = if self.begun.is_empty() {
            Written { any: inputs.iter().any(|i| i.written), begun: Vec::new() }
        } else {
            Written { any: true, begun: self.begun.iter().map(|n| inputs[*n].name.clone()).collect() }
        };
        ExecError::Index { step: step.to_owned(), message, index, size, written }
    }
}

impl Exec for Running<'_> {
    type Op = Op;
    type Error = ExecError;

    fn sizes(&mut self) -> &mut Sizes {
        &mut self.sizes
    }

    fn run(&mut self, step: &PlannedStep, op: &Op) -> Result<(), ExecError> {
        for &input in step.inputs.iter().filter(|n| !self.copied.contains(n)) {
            if !self.begun.contains(&input) {
                self.begun.push(input);
            }
        }
        if let Op::Exchange(exchange) = op {
            return self.exchange(&step.name, exchange);
        }
        self.operation(&step.name, op)?;
        self.fault.get().map_or(Ok(()), |found| Err(self.out_of_bounds(&step.name, found)))
    }

    fn read(&mut self, number: &Number) -> Result<i64, ExecError> {
        let width = number.dtype.size().min(8);
        let at = self.sizes.eval(&number.offset)? as isize * number.dtype.size() as isize;
        let mut bytes = [0u8; 8];
        // SAFETY: the verifier has seen that the operand is one element of the buffer's dtype, and the step that wrote it
        // has run; the array has room for the eight bytes that are copied at most.
        unsafe {
            let from = self.buffers.0[number.root()].offset(at);
            std::ptr::copy_nonoverlapping(from.cast_const(), bytes.as_mut_ptr(), width);
        }
        Ok(number.value(bytes)?)
    }

    fn provide(&mut self, buffer: BufId) -> Result<(), ExecError> {
        let number = buffer.index();
        if self.blocks[number].is_none() {
            let block = Arc::new(Block::new(byte_size(&self.program.buffers[buffer], &self.sizes)?)?);
            self.buffers.0[number] = block.ptr();
            self.blocks[number] = Some(block);
        }
        Ok(())
    }

    fn release(&mut self, buffer: BufId) {
        self.blocks[buffer.index()] = None;
        self.buffers.0[buffer.index()] = clif::ZEROS.address() as *mut u8;
    }
}
