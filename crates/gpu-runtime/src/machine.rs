//! A call in progress: memory of its buffers, values of its symbols, and the run of its operations.

use std::collections::BTreeMap;
use std::sync::Arc;

use gpu_codegen::Param;
use host_routines::{MatrixRoutine, Memory};
use ir_core::{Atom, DType, EntityId, SymExpr, SymId};
use kernel_ir::{BufId, Program, Storage};

use crate::faults::Faults;
use crate::memory::span;
use crate::plan::{DeviceStep, Launchable, Number, Op, Planned, Runnable};
use crate::prepare::{Own, grid};
use crate::sizes::Sizes;
use crate::{Arguments, Block, DeviceMemory, Driver, GpuError, Map, Work};

/// Which buffers have memory of their own during a call.
pub(crate) struct Dynamic {
    /// For each symbol that a step binds the buffers whose size mentions it.
    by_symbol: Vec<Vec<usize>>,
    /// For each step of the program the buffers that are not used after it.
    frees: Vec<Vec<usize>>,
}

impl Dynamic {
    pub(crate) fn new(program: &Program) -> Dynamic {
        let mut by_symbol = vec![Vec::new(); program.symbols.len()];
        let owned = |s: &Storage| matches!(s, Storage::Arena | Storage::Output);
        for (id, buffer) in program.buffers.iter().filter(|(_, b)| owned(&b.storage)) {
            let mut mentioned: Vec<SymId> = Vec::new();
            for e in buffer.sizes.iter().chain(&buffer.strides) {
                e.for_each_leaf(&mut |a| {
                    if let Atom::Sym(s) = a {
                        mentioned.push(*s);
                    }
                });
            }
            mentioned.sort_unstable();
            mentioned.dedup();
            mentioned.retain(|s| program.symbols.get(*s).is_some_and(|s| s.unbacked));
            mentioned.iter().for_each(|s| by_symbol[s.index()].push(id.index()));
        }
        let mut frees = vec![Vec::new(); program.steps.len()];
        for live in &program.plan.dynamic {
            if let Some(list) = frees.get_mut(live.last as usize) {
                list.push(live.buf.index());
            }
        }
        Dynamic { by_symbol, frees }
    }
}

/// A call in progress.
pub(crate) struct Machine<'a, D: Driver> {
    pub(crate) memory: &'a Arc<DeviceMemory<D>>,
    pub(crate) driver: &'a D,
    pub(crate) program: &'a Program,
    pub(crate) steps: &'a [DeviceStep],
    pub(crate) functions: &'a [D::Function],
    pub(crate) dynamic: &'a Dynamic,
    /// Address of each buffer's memory; views have none.
    pub(crate) addresses: Vec<u64>,
    pub(crate) sizes: Sizes,
    /// Memory of outputs and of buffers of unbacked size.
    pub(crate) blocks: Vec<Option<Arc<Block<D>>>>,
    pub(crate) own: Own,
    /// The record of the program's checks of indices, where there are some.
    pub(crate) faults: Option<&'a Faults<D>>,
    /// Whether no input that is written in place lies where kernels write.
    pub(crate) as_before: bool,
}

impl<D: Driver> Machine<'_, D> {
    /// Runs the program's own steps.
    pub(crate) fn run(&mut self, steps: &[Planned]) -> Result<(), GpuError> {
        for (n, planned) in steps.iter().enumerate() {
            self.step(planned)?;
            for &buffer in self.dynamic.frees.get(n).into_iter().flatten() {
                self.forget(buffer);
            }
        }
        Ok(())
    }

    fn list(&mut self, steps: &[Planned]) -> Result<(), GpuError> {
        steps.iter().try_for_each(|planned| self.step(planned))
    }

    fn step(&mut self, planned: &Planned) -> Result<(), GpuError> {
        for &buffer in &planned.dynamic {
            self.provide(buffer)?;
        }
        match &planned.op {
            Op::Device(n) => self.compute(&self.steps[*n]),
            Op::Several(list) => self.list(list),
            Op::Host(routine) => self.on_host(routine),
            Op::Bind { name, symbol, from } => {
                let value = self.read(from)?;
                let program = self.program;
                self.sizes
                    .set(program, *symbol, value)
                    .map_err(|message| GpuError::Assertion { step: name.clone(), message })?;
                self.begin_anew(*symbol);
                Ok(())
            }
            Op::Assert { name, message, pred } => match self.read(pred)? {
                0 => Err(GpuError::Assertion { step: name.clone(), message: message.clone() }),
                _ => Ok(()),
            },
            Op::Cond { pred, then, otherwise } => {
                let taken = if self.read(pred)? != 0 { then } else { otherwise };
                self.list(taken)
            }
            Op::For { symbol, count, body } => {
                for n in 0..self.sizes.eval(count)? {
                    self.sizes.0[symbol.index()] = n;
                    self.begin_anew(*symbol);
                    self.list(body)?;
                }
                Ok(())
            }
            Op::While { cond, pred, body } => loop {
                self.list(cond)?;
                if self.read(pred)? == 0 {
                    return Ok(());
                }
                self.list(body)?;
            },
        }
    }

    /// Runs a step the way that was chosen.
    fn compute(&self, step: &DeviceStep) -> Result<(), GpuError> {
        let way = step.way().ok_or_else(|| GpuError::Malformed("a step without a way".into()))?;
        tracing::trace!(target: "kernel", step = step.name, way = way.name);
        // Work of the stream is in order, so the memory may go back before the work has run.
        let scratch: Vec<Block<D>> = way
            .scratch
            .iter()
            .map(|bytes| self.memory.block(self.sizes.eval(bytes)?.max(0) as u64))
            .collect::<Result<_, GpuError>>()?;
        let scratch: Vec<u64> = scratch.iter().map(Block::address).collect();
        way.parts.iter().try_for_each(|part| match part {
            Runnable::Kernel(kernel) => self.launch(kernel, &scratch),
            Runnable::Library(call) => {
                let work = Work {
                    address: &|buf| self.addresses[self.program.root(buf).index()],
                    size: &|e| self.sizes.eval(e),
                    scratch: &scratch,
                };
                // SAFETY: every address is memory of this call, as large as its buffer, by `provide`, the plan and the
                // checks of the inputs; the scratch has the size that the way asks for.
                unsafe { call.run(&work) }
            }
        })
    }

    fn launch(&self, kernel: &Launchable, scratch: &[u64]) -> Result<(), GpuError> {
        let Some(grid) = grid(kernel, &self.sizes)? else { return Ok(()) };
        let argument = |p: &Param| match p {
            Param::Buffer(b) => Some(self.addresses[self.program.root(*b).index()]),
            Param::Symbol(s) => Some(self.sizes.0[s.index()] as u64),
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
        let words =
            words.ok_or_else(|| GpuError::Malformed("a kernel without its scratch or its map".into()))?;
        let maps = Map::of(&kernel.params, &kernel.maps, &|e| self.sizes.eval(e))?;
        let arguments = Arguments { words: &words, maps: &maps };
        // SAFETY: parameters are in the kernel's order; every address is memory of this call, as large as its buffer, by
        // `provide`, the plan and the checks of the inputs; scratch is as long as the way asks for.
        unsafe { self.driver.launch(&self.functions[kernel.function], grid, arguments) }
    }

    /// Runs a routine on copies of its operands and brings the results back.
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
                // SAFETY: the buffer's memory is as long as its span, and so is the copy.
                unsafe { self.driver.download(copy.as_mut_ptr(), self.addresses[root], bytes)? };
            }
            copies.insert(root, copy);
        }
        self.report()?;
        let memory = HostCopies {
            addresses: copies.iter_mut().map(|(root, copy)| (*root, copy.as_mut_ptr())).collect(),
            sizes: &self.sizes,
        };
        // SAFETY: the addresses are those of the copies, which are as long as their buffers and live through the call.
        unsafe { routine.run(&memory) }.map_err(|e| GpuError::Argument(e.to_string()))?;
        for root in writes {
            let copy = &copies[&root];
            if !copy.is_empty() {
                // SAFETY: as above.
                unsafe { self.driver.upload(self.addresses[root], copy.as_ptr(), copy.len())? };
            }
        }
        Ok(())
    }

    /// One number of the device's memory; waits for it.
    fn read(&self, number: &Number) -> Result<i64, GpuError> {
        let width = number.dtype.size();
        let at = self.addresses[number.root] + self.sizes.eval(&number.offset)? as u64 * width as u64;
        let mut bytes = [0u8; 8];
        // SAFETY: one element inside of the buffer, by the verifier; no dtype is wider than the array but complex ones,
        // which the match below refuses and which is looked at first.
        unsafe { self.driver.download(bytes.as_mut_ptr(), at, width.min(8))? };
        self.report()?;
        Ok(match number.dtype {
            DType::Bool | DType::U8 => i64::from(bytes[0]),
            DType::I8 => i64::from(bytes[0] as i8),
            DType::I16 => i64::from(i16::from_le_bytes([bytes[0], bytes[1]])),
            DType::I32 => i64::from(i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            DType::I64 => i64::from_le_bytes(bytes),
            other => return Err(GpuError::Malformed(format!("a symbol is bound from {other}"))),
        })
    }

    /// Ends the call where an index was out of bounds: the work so far was waited for, and what it left decides nothing then.
    fn report(&self) -> Result<(), GpuError> {
        self.faults.map_or(Ok(()), |f| f.report(self.as_before, f.unread()))
    }

    /// A symbol has a new value: buffers whose size mentions it lose their memory.
    fn begin_anew(&mut self, symbol: SymId) {
        let dynamic = self.dynamic;
        for &buffer in dynamic.by_symbol.get(symbol.index()).into_iter().flatten() {
            self.forget(buffer);
        }
    }

    fn forget(&mut self, buffer: usize) {
        self.blocks[buffer] = None;
        self.addresses[buffer] = self.own.nowhere;
    }

    /// Memory for a buffer that has none.
    pub(crate) fn provide(&mut self, buffer: usize) -> Result<(), GpuError> {
        if self.blocks[buffer].is_none() {
            let bytes = bytes_of(self.program, BufId::from_index(buffer), &self.sizes)?;
            let block = Arc::new(self.memory.block(bytes)?);
            self.addresses[buffer] = block.address();
            self.blocks[buffer] = Some(block);
        }
        Ok(())
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
