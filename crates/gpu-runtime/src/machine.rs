//! A call in progress: the memory of its buffers, the values of its symbols, and the execution of one operation, for the
//! shared interpreter of control flow ([`kernel_ir::runtime::Machine`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use gpu_codegen::Param;
use ir_core::{EntityId, SymExpr};
use kernel_ir::runtime::{Exec, Number, Sizes};
use kernel_ir::{BufId, Program, Storage};
use linalg::host::{MatrixRoutine, Memory};
use plugin_sdk::Stream;

use crate::faults::Faults;
use crate::memory::span;
use crate::plan::{DeviceStep, Launchable, Op, PlannedStep, Runnable};
use crate::prepare::{ProgramMemory, grid};
use crate::{Arguments, Block, DeviceMemory, Driver, GpuError, Map, Work};

/// A call in progress.
pub(crate) struct Running<'a, D: Driver> {
    pub(crate) memory: &'a Arc<DeviceMemory<D>>,
    pub(crate) driver: &'a D,
    pub(crate) program: &'a Program,
    pub(crate) steps: &'a [DeviceStep],
    pub(crate) functions: &'a [D::Function],
    /// The address of each buffer's memory; views have none.
    pub(crate) addresses: Vec<u64>,
    pub(crate) sizes: Sizes,
    /// Memory of outputs and of buffers of unbacked size.
    pub(crate) blocks: Vec<Option<Arc<Block<D>>>>,
    pub(crate) own: ProgramMemory,
    /// The program's fault record, where it checks indices.
    pub(crate) faults: Option<&'a Faults<D>>,
    /// Whether inputs that are written in place are still unchanged.
    pub(crate) as_before: bool,
    /// The stream on which outputs are read.
    pub(crate) stream: Stream,
}

impl<D: Driver> Exec for Running<'_, D> {
    type Op = Op;
    type Error = GpuError;

    fn sizes(&mut self) -> &mut Sizes {
        &mut self.sizes
    }

    fn run(&mut self, _: &PlannedStep, op: &Op) -> Result<(), GpuError> {
        match op {
            Op::Device(n) => self.compute(&self.steps[*n]),
            Op::Host(routine) => self.on_host(routine),
        }
    }

    /// Reads a number after waiting for the work before it.
    fn read(&mut self, number: &Number) -> Result<i64, GpuError> {
        let width = number.dtype.size();
        let at = self.addresses[number.root()] + self.sizes.eval(&number.offset)? as u64 * width as u64;
        let mut bytes = [0u8; 8];
        // SAFETY: the verifier guarantees that the element is inside the buffer; at most as many bytes are copied as the
        // array has.
        unsafe { self.driver.download(bytes.as_mut_ptr(), at, width.min(8))? };
        self.report()?;
        Ok(number.value(bytes)?)
    }

    fn provide(&mut self, buffer: BufId) -> Result<(), GpuError> {
        let number = buffer.index();
        if self.blocks[number].is_none() {
            let bytes = bytes_of(self.program, buffer, &self.sizes)?;
            let block = match self.program.buffers[buffer].storage {
                Storage::Output => self.memory.block_of_caller(bytes, self.stream),
                _ => self.memory.block(bytes),
            };
            let block = Arc::new(block?);
            self.addresses[number] = block.address();
            self.blocks[number] = Some(block);
        }
        Ok(())
    }

    fn release(&mut self, buffer: BufId) {
        self.blocks[buffer.index()] = None;
        self.addresses[buffer.index()] = self.own.dummy;
    }
}

impl<D: Driver> Running<'_, D> {
    /// Runs the chosen candidate of a step.
    fn compute(&self, step: &DeviceStep) -> Result<(), GpuError> {
        let candidate =
            step.candidate().ok_or_else(|| GpuError::Malformed("a step without a candidate".into()))?;
        tracing::trace!(target: "kernel", step = step.name, candidate = candidate.name);
        // The stream's work is in order, so the scratch memory may be freed before the work has run.
        let scratch: Vec<Block<D>> = candidate
            .scratch
            .iter()
            .map(|bytes| self.memory.block(self.sizes.eval(bytes)?.max(0) as u64))
            .collect::<Result<_, GpuError>>()?;
        let scratch: Vec<u64> = scratch.iter().map(Block::address).collect();
        candidate.parts.iter().try_for_each(|part| match part {
            Runnable::Kernel(kernel) => self.launch(kernel, &scratch),
            Runnable::Library(call) => {
                let work = Work {
                    address: &|buf| self.addresses[self.program.root(buf).index()],
                    size: &|e| Ok(self.sizes.eval(e)?),
                    scratch: &scratch,
                };
                // SAFETY: every address is memory of this call, as large as its buffer, by `provide`, the memory plan and
                // the checks of the inputs; the scratch buffers have the candidate's sizes.
                unsafe { call.run(&work) }
            }
        })
    }

    fn launch(&self, kernel: &Launchable, scratch: &[u64]) -> Result<(), GpuError> {
        let Some(grid) = grid(kernel, &self.sizes)? else { return Ok(()) };
        let argument = |p: &Param| match p {
            Param::Buffer(b) => Some(self.addresses[self.program.root(*b).index()]),
            Param::Symbol(s) => self.sizes.get(*s).map(|n| n as u64),
            Param::Number(n) | Param::Slice(n) => Some(*n as u64),
            Param::Scratch(n) => scratch.get(*n as usize).copied(),
            Param::Tickets => Some(self.own.tickets),
            Param::Fault => Some(self.own.fault),
            Param::FirstCheck => Some(u64::from(kernel.first_check)),
            Param::Map(n) => {
                let map = kernel.maps.get(*n as usize)?;
                Some(self.addresses[self.program.root(map.buf).index()])
            }
        };
        let words = kernel.params.iter().map(argument).collect::<Option<Vec<u64>>>();
        let words = words.ok_or_else(|| {
            GpuError::Malformed("a kernel without its scratch, its map or its symbol".into())
        })?;
        let maps = Map::of(&kernel.params, &kernel.maps, &|e| Ok(self.sizes.eval(e)?))?;
        let arguments = Arguments { words: &words, maps: &maps };
        // SAFETY: the arguments are in the kernel's order. Every address is memory of this call, as large as its buffer,
        // by `provide`, the memory plan and the checks of the inputs; the scratch buffers have the candidate's sizes.
        unsafe { self.driver.launch(&self.functions[kernel.function], grid, arguments) }
    }

    /// Runs a routine on host copies of its operands and copies the results back.
    fn on_host(&self, routine: &MatrixRoutine) -> Result<(), GpuError> {
        let (reads, writes) = routine.roots();
        let mut copies: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        for &root in reads.iter().chain(&writes) {
            if copies.contains_key(&root) {
                continue;
            }
            let bytes = bytes_of(self.program, BufId::from_index(root), &self.sizes)? as usize;
            let mut copy = vec![0u8; bytes];
            if bytes > 0 {
                // SAFETY: the buffer's memory and the copy both have this span.
                unsafe { self.driver.download(copy.as_mut_ptr(), self.addresses[root], bytes)? };
            }
            copies.insert(root, copy);
        }
        self.report()?;
        let memory = HostCopies {
            addresses: copies.iter_mut().map(|(root, copy)| (*root, copy.as_mut_ptr())).collect(),
            sizes: &self.sizes,
        };
        // SAFETY: the addresses are those of the copies, which are as long as their buffers and outlive the call.
        unsafe { routine.run(&memory) }.map_err(|e| GpuError::Argument(e.to_string()))?;
        for root in writes {
            let copy = &copies[&root];
            if !copy.is_empty() {
                // SAFETY: the buffer's memory and the copy both have this span.
                unsafe { self.driver.upload(self.addresses[root], copy.as_ptr(), copy.len())? };
            }
        }
        Ok(())
    }

    /// Ends the call where an index was out of bounds. The work so far was waited for; its results must not decide the
    /// control flow.
    fn report(&self) -> Result<(), GpuError> {
        self.faults.map_or(Ok(()), |f| f.report(self.as_before, f.unread()))
    }
}

/// Copies of buffers in host memory.
struct HostCopies<'a> {
    addresses: BTreeMap<usize, *mut u8>,
    sizes: &'a Sizes,
}

impl Memory for HostCopies<'_> {
    fn address(&self, root: usize) -> *mut u8 {
        // Every root of the routine was copied.
        self.addresses.get(&root).copied().unwrap_or(std::ptr::null_mut())
    }
    fn size(&self, e: &SymExpr) -> Option<i64> {
        self.sizes.eval(e).ok()
    }
}

/// Bytes of a buffer's memory.
pub(crate) fn bytes_of(program: &Program, buf: BufId, sizes: &Sizes) -> Result<u64, GpuError> {
    let buffer = &program.buffers[buf];
    Ok(span(&sizes.all(&buffer.sizes)?, &sizes.all(&buffer.strides)?) * buffer.dtype.size() as u64)
}
