//! A program on a device: its kernels, its bound constants, and calls of it.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use ir_core::{DType, EntityId};
use kernel_ir::{Buffer, Program, Storage};
use plugin_sdk::dlpack::{DL_CPU, DL_CUDA_HOST};
use plugin_sdk::{OwnedTensor, TensorView};

use crate::machine::{Dynamic, Machine, bytes_of};
use crate::memory::{copy_strided, span};
use crate::plan::{DeviceStep, Planned, Planner};
use crate::sizes::Sizes;
use crate::{Block, Driver, GpuError};

/// What kernels take the addresses of buffers to be multiples of.
const ALIGNMENT: u64 = 16;

/// A compiled program. Calls from several threads run one after another: they share one stream.
pub struct Compiled<D: Driver> {
    driver: Arc<D>,
    program: Program,
    device_steps: Vec<DeviceStep>,
    functions: Vec<D::Function>,
    init: Vec<Planned>,
    steps: Vec<Planned>,
    dynamic: Dynamic,
    bound: Option<Bound<D>>,
    nowhere: Block<D>,
    turn: Mutex<()>,
}

/// Constants and what is made of them, on the device.
struct Bound<D: Driver> {
    addresses: Vec<u64>,
    _memory: Vec<Block<D>>,
}

impl<D: Driver> Compiled<D> {
    /// Generates and compiles every kernel of a program.
    pub fn new(driver: Arc<D>, program: Program) -> Result<Compiled<D>, GpuError> {
        kernel_ir::verify(&program).map_err(|e| GpuError::Malformed(e.to_string()))?;
        let target = driver.target();
        let library = |step: &kernel_ir::Step| driver.library(&program, step);
        let mut planner = Planner::new(&program, &target, &library, false);
        let init = planner.plan(&program.init)?;
        let steps = planner.plan(&program.steps)?;
        let kernels = planner.kernels;
        let started = std::time::Instant::now();
        let functions = kernels.compile(&*driver)?;
        tracing::debug!(target: "kernel", steps = kernels.steps.len(), kernels = functions.len(), time = ?started.elapsed(), "compiled");
        let nowhere = Block::new(&driver, 256)?;
        Ok(Compiled {
            dynamic: Dynamic::new(&program),
            device_steps: kernels.steps,
            functions,
            init,
            steps,
            bound: None,
            nowhere,
            turn: Mutex::new(()),
            program,
            driver,
        })
    }

    /// What was compiled.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Copies the constants to the device and runs the init steps.
    pub fn bind(&mut self, constants: &[(&str, TensorView<'_>)]) -> Result<(), GpuError> {
        let sizes = Sizes::hints(&self.program);
        let mut addresses = vec![self.nowhere.address(); self.program.buffers.len()];
        let mut memory = Vec::new();
        for c in &self.program.constants {
            let found = constants.iter().find(|(name, _)| *name == c.name);
            let (_, view) = found
                .ok_or_else(|| GpuError::Argument(format!("the constant `{}` was not bound", c.name)))?;
            let (address, block) = self.place(&c.name, &self.program.buffers[c.buf], view, &sizes)?;
            addresses[c.buf.index()] = address;
            memory.extend(block);
        }
        for (id, _) in self.program.buffers.iter().filter(|(_, b)| b.storage == Storage::Persistent) {
            let block = Block::new(&self.driver, bytes_of(&self.program, id, &sizes)?)?;
            addresses[id.index()] = block.address();
            memory.push(block);
        }
        let mut machine = self.machine(addresses, sizes);
        machine.run(&self.init)?;
        let addresses = machine.addresses;
        self.driver.synchronize()?;
        self.bound = Some(Bound { addresses, _memory: memory });
        Ok(())
    }

    /// Runs the program.
    pub fn execute(&self, inputs: &[TensorView<'_>]) -> Result<Vec<OwnedTensor>, GpuError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let sizes_of: Vec<&[i64]> = inputs.iter().map(|v| v.sizes()).collect();
        let sizes = Sizes::bind(&self.program, &sizes_of)?;
        let mut addresses = match &self.bound {
            Some(bound) => bound.addresses.clone(),
            None if self.program.constants.is_empty() && self.program.init.is_empty() => {
                vec![self.nowhere.address(); self.program.buffers.len()]
            }
            None => return Err(GpuError::Argument("the constants were not bound".into())),
        };
        let mut copies = Vec::new();
        for (spec, view) in self.program.inputs.iter().zip(inputs) {
            let (address, block) = self.place(&spec.name, &self.program.buffers[spec.buf], view, &sizes)?;
            addresses[spec.buf.index()] = address;
            copies.extend(block);
        }
        let value = |id: ir_core::SymId| sizes.0.get(id.index()).copied();
        let plan = &self.program.plan;
        let (offsets, bytes) =
            plan.place(&self.program, &value).map_err(|e| GpuError::Argument(e.to_string()))?;
        let arena = Block::new(&self.driver, bytes)?;
        for (live, offset) in plan.lives.iter().zip(offsets) {
            addresses[live.buf.index()] = arena.address() + offset;
        }
        let mut machine = self.machine(addresses, sizes);
        let outputs = || self.program.buffers.iter().filter(|(_, b)| b.storage == Storage::Output);
        for (id, _) in outputs().filter(|(id, _)| !self.program.is_dynamic(*id)) {
            machine.provide(id.index())?;
        }
        machine.run(&self.steps)?;
        for (id, _) in outputs() {
            machine.provide(id.index())?;
        }
        let results = self.program.outputs.iter().map(|spec| self.result(spec, &machine)).collect();
        self.driver.synchronize()?;
        results
    }

    fn machine(&self, addresses: Vec<u64>, sizes: Sizes) -> Machine<'_, D> {
        Machine {
            driver: &self.driver,
            program: &self.program,
            steps: &self.device_steps,
            functions: &self.functions,
            dynamic: &self.dynamic,
            blocks: vec![None; addresses.len()],
            addresses,
            sizes,
            nowhere: self.nowhere.address(),
        }
    }

    /// A tensor as its buffer wants it: its own memory on this device where that fits, else a copy.
    fn place(
        &self,
        name: &str,
        buffer: &Buffer,
        view: &TensorView<'_>,
        sizes: &Sizes,
    ) -> Result<(u64, Option<Block<D>>), GpuError> {
        let (extent, strides) = (sizes.all(&buffer.sizes)?, sizes.all(&buffer.strides)?);
        if view.dtype() != buffer.dtype || view.sizes() != extent {
            let what = format!(
                "`{name}` is {}{:?}, the program wants {}{extent:?}",
                view.dtype(),
                view.sizes(),
                buffer.dtype
            );
            return Err(GpuError::Argument(what));
        }
        if view.numel() == 0 {
            return Ok((self.nowhere.address(), None));
        }
        let same = |d: usize| extent[d] <= 1 || view.strides()[d] == strides[d];
        let fits = (0..extent.len()).all(same);
        let device = view.device();
        if device == self.driver.device() && fits {
            let address = view.as_ptr() as u64;
            if address.is_multiple_of(ALIGNMENT) {
                return Ok((address, None));
            }
            // Kernels read 16 bytes at once; a view into the middle of a tensor may begin anywhere.
            let bytes = span(&extent, &strides) * buffer.dtype.size() as u64;
            let block = Block::new(&self.driver, bytes)?;
            // SAFETY: the view's memory is the device's and as long; the block is new.
            unsafe { self.driver.copy(block.address(), address, bytes)? };
            return Ok((block.address(), Some(block)));
        }
        if device == self.driver.device() {
            let what = format!(
                "`{name}` has strides {:?}, the program wants {strides:?}: make it contiguous",
                view.strides()
            );
            return Err(GpuError::Argument(what));
        }
        let (block, address) = uploaded(&self.driver, view, &extent, &strides)?;
        Ok((address, Some(block)))
    }

    /// An output, on the device. What the call made belongs to the caller; parts of inputs and constants are copied.
    fn result(
        &self,
        spec: &kernel_ir::OutputSpec,
        machine: &Machine<'_, D>,
    ) -> Result<OwnedTensor, GpuError> {
        let root = self.program.root(spec.buf).index();
        let dtype = self.program.buffers[spec.buf].dtype;
        let (extent, strides) = (machine.sizes.all(&spec.sizes)?, machine.sizes.all(&spec.strides)?);
        let at = machine.sizes.eval(&spec.offset)? as u64 * dtype.size() as u64;
        let bytes = span(&extent, &strides) * dtype.size() as u64;
        let (block, address) = match &machine.blocks[root] {
            Some(block) => (Arc::clone(block), block.address() + at),
            None => {
                let block = Arc::new(Block::new(&self.driver, bytes)?);
                // SAFETY: the output is a view of its buffer, by the program's promise; the block has its span.
                unsafe { self.driver.copy(block.address(), machine.addresses[root] + at, bytes)? };
                let address = block.address();
                (block, address)
            }
        };
        owned(&self.driver, block, address, dtype, &extent, &strides)
    }
}

/// A tensor of the caller in a block of the device.
fn owned<D: Driver>(
    driver: &Arc<D>,
    block: Arc<Block<D>>,
    address: u64,
    dtype: DType,
    sizes: &[i64],
    strides: &[i64],
) -> Result<OwnedTensor, GpuError> {
    let data =
        NonNull::new(address as *mut u8).ok_or_else(|| GpuError::Malformed("a null address".into()))?;
    // SAFETY: the block lives as long as the tensor and nobody else writes it; all work is in the stream's order, which
    // every reader waits for.
    unsafe { OwnedTensor::from_raw_parts(data, dtype, driver.device(), sizes, strides, Box::new(block)) }
        .map_err(|e| GpuError::Argument(e.to_string()))
}

/// A copy of a host tensor on the device, row-major.
///
/// # Errors
/// No memory, a lost device, a tensor that is not the host's.
pub fn to_device<D: Driver>(driver: &Arc<D>, view: &TensorView<'_>) -> Result<OwnedTensor, GpuError> {
    let (sizes, dtype) = (view.sizes(), view.dtype());
    let mut strides = vec![1i64; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d] * sizes[d].max(1);
    }
    let (block, address) = uploaded(driver, view, sizes, &strides)?;
    owned(driver, Arc::new(block), address, dtype, sizes, &strides)
}

/// A copy of a device tensor on the host, with the same strides.
///
/// # Errors
/// A lost device, errors of work that was started before, a tensor of another device.
pub fn to_host<D: Driver>(driver: &Arc<D>, view: &TensorView<'_>) -> Result<OwnedTensor, GpuError> {
    if view.device() != driver.device() {
        return Err(GpuError::Argument("the tensor lies on another device".into()));
    }
    let host = |e: plugin_sdk::PluginError| GpuError::Argument(e.to_string());
    let mut tensor = OwnedTensor::zeroed_strided(view.dtype(), view.sizes(), view.strides()).map_err(host)?;
    let bytes = span(view.sizes(), view.strides()) as usize * view.dtype().size();
    if bytes > 0 {
        // SAFETY: the tensor was allocated for this span, and the view's memory is the device's.
        unsafe { driver.download(tensor.as_mut_ptr(), view.as_ptr() as u64, bytes)? };
    }
    Ok(tensor)
}

/// A host tensor in new device memory with these strides.
fn uploaded<D: Driver>(
    driver: &Arc<D>,
    view: &TensorView<'_>,
    extent: &[i64],
    strides: &[i64],
) -> Result<(Block<D>, u64), GpuError> {
    if !matches!(view.device().device_type, DL_CPU | DL_CUDA_HOST) {
        return Err(GpuError::Argument(
            "the tensor lies on another device: copy it to the host first".into(),
        ));
    }
    let width = view.dtype().size();
    let bytes = span(extent, strides) as usize * width;
    let block = Block::new(driver, bytes as u64)?;
    let same = |d: usize| extent[d] <= 1 || view.strides()[d] == strides[d];
    if bytes > 0 && (0..extent.len()).all(same) {
        // SAFETY: the view's span is readable host memory, and the block is as long.
        unsafe { driver.upload(block.address(), view.as_ptr(), bytes)? };
    } else if bytes > 0 {
        let mut staged = vec![0u8; bytes];
        // SAFETY: the view addresses its elements; the staging memory has the span of the layout.
        unsafe {
            copy_strided(width, extent, (view.as_ptr(), view.strides()), (staged.as_mut_ptr(), strides));
            driver.upload(block.address(), staged.as_ptr(), bytes)?;
        }
    }
    let address = block.address();
    Ok((block, address))
}
