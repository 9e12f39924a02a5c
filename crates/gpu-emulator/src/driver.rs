//! The emulated device as a `gpu_runtime::Driver`. All calls are synchronous.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu_codegen::{Target, variants};
use gpu_runtime::{
    Arguments, Candidate, Driver, GpuError, Grid, HostMemory, Module, Recorder, Recording, SideStream,
};
use kernel_ir::{Program, Step};
use plugin_sdk::DeviceId;
use plugin_sdk::dlpack::DL_EXT_DEV;

use crate::launch::Function;
use crate::memory::Memory;
use crate::recording::{Graph, Launched};
use crate::side::Side;
use crate::{EmulatorError, compiler, launch};

/// An emulated device with memory of its own.
pub struct Emulator {
    memory: Arc<Mutex<Memory>>,
    /// Its number among the emulated devices, each of which has memory of its own.
    ordinal: i32,
    target: Target,
    prefer: Option<String>,
    /// Whether blocks and threads run from the last to the first.
    backward: bool,
    /// Launches of the recording that is under way.
    recorder: Recorder<Launched>,
    /// What the runtime has the device keep, by keys; of this device alone.
    kept: Mutex<HashMap<String, String>>,
}

impl Default for Emulator {
    fn default() -> Emulator {
        Emulator::new(Target::HOPPER)
    }
}

impl Emulator {
    /// Makes a device with the given target.
    pub fn new(target: Target) -> Emulator {
        Emulator {
            memory: Arc::default(),
            ordinal: 0,
            target: compiler::readable(target),
            prefer: None,
            backward: false,
            recorder: Recorder::default(),
            kept: Mutex::default(),
        }
    }

    /// Makes another device with its own target over the same memory.
    pub fn like(&self, target: Target) -> Emulator {
        Emulator { memory: Arc::clone(&self.memory), ordinal: self.ordinal, ..Emulator::new(target) }
    }

    /// The device with another number.
    pub fn numbered(self, ordinal: i32) -> Emulator {
        Emulator { ordinal, ..self }
    }

    /// The same device and memory, but steps are computed by the first candidate whose name contains this text, where
    /// there is one and the text is not empty.
    pub fn prefer(&self, variant: impl Into<String>) -> Emulator {
        let (memory, target) = (Arc::clone(&self.memory), self.target.clone());
        Emulator {
            memory,
            ordinal: self.ordinal,
            target,
            prefer: Some(variant.into()).filter(|v: &String| !v.is_empty()),
            backward: self.backward,
            recorder: Recorder::default(),
            kept: Mutex::default(),
        }
    }

    /// The same device with another schedule: blocks run from the last to the first, and so do threads where they first run, so
    /// that what relies on the usual order shows.
    pub fn backward(self) -> Emulator {
        Emulator { backward: true, ..self }
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        locked(&self.memory)
    }

    /// Launches a kernel, then checks the guard zones of every buffer.
    ///
    /// # Safety
    /// The arguments match the kernel's parameters, and its addresses are memory of this device.
    ///
    /// # Errors
    /// The kernel's violation.
    pub unsafe fn launch_checked(
        &self,
        function: &Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), EmulatorError> {
        // SAFETY: the caller's promise.
        unsafe { run(&self.memory, function, grid, arguments, self.backward) }
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a kernel, then checks the guard zones of every buffer.
///
/// # Safety
/// The arguments match the kernel's parameters, and its addresses are memory of this device.
pub(crate) unsafe fn run(
    memory: &Mutex<Memory>,
    function: &Function,
    grid: Grid,
    arguments: Arguments<'_>,
    backward: bool,
) -> Result<(), EmulatorError> {
    // SAFETY: the caller's promise.
    let ended = unsafe { launch::run(function, grid, arguments, backward) };
    let damage = locked(memory).damage(function.name());
    ended.and(damage)
}

impl Driver for Emulator {
    type Function = Function;

    /// The host's compiler takes longer to start, to read the emulator's part and to link than for most kernels.
    fn modules(&self) -> usize {
        1
    }

    fn compile(&self, modules: &[Module]) -> Result<Vec<Vec<Function>>, GpuError> {
        Ok(compiler::compile(modules, self.target.wave)?)
    }

    fn allocate(&self, bytes: u64) -> Result<u64, GpuError> {
        self.memory().allocate(bytes).ok_or(GpuError::OutOfMemory { bytes, free: 0, total: 0 })
    }

    fn free(&self, address: u64) {
        self.memory().free(address);
    }

    /// All memory of the device is host memory.
    fn allocate_shared(&self, bytes: usize) -> Result<HostMemory, GpuError> {
        let none = || GpuError::OutOfMemory { bytes: bytes as u64, free: 0, total: 0 };
        let device = self.memory().allocate(bytes as u64).ok_or_else(none)?;
        let host = NonNull::new(device as *mut u8).ok_or_else(none)?;
        // SAFETY: the memory was just allocated with this length.
        unsafe { host.write_bytes(0, bytes) };
        Ok(HostMemory { host, device })
    }

    fn free_shared(&self, memory: HostMemory) {
        self.memory().free(memory.device);
    }

    fn load_cached(&self, key: &str) -> Option<String> {
        locked(&self.kept).get(key).cloned()
    }

    fn store_cached(&self, key: &str, value: &str) {
        locked(&self.kept).insert(key.to_owned(), value.to_owned());
    }

    unsafe fn upload(&self, to: u64, from: *const u8, bytes: usize) -> Result<(), GpuError> {
        self.memory().check("upload", to, bytes as u64)?;
        // SAFETY: the target range is within a live buffer, as was just checked; the caller guarantees the source.
        unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, bytes) };
        Ok(())
    }

    unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError> {
        self.memory().check("download", from, bytes as u64)?;
        // SAFETY: the source range is within a live buffer, as was just checked; the caller guarantees the target.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, bytes) };
        Ok(())
    }

    unsafe fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), GpuError> {
        self.memory().check("copy to", to, bytes)?;
        self.memory().check("copy from", from, bytes)?;
        // SAFETY: both ranges are within live buffers, as was just checked.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
        Ok(())
    }

    unsafe fn launch(
        &self,
        function: &Function,
        grid: Grid,
        arguments: Arguments<'_>,
    ) -> Result<(), GpuError> {
        if self.recorder.is_on() {
            self.recorder.note(Launched::new(function, grid, arguments));
            return Ok(());
        }
        // SAFETY: the caller guarantees the arguments and their memory.
        Ok(unsafe { self.launch_checked(function, grid, arguments) }?)
    }

    fn record(
        &self,
        work: &mut dyn FnMut() -> Result<(), GpuError>,
    ) -> Result<Option<Box<dyn Recording<Function>>>, GpuError> {
        let (done, launches) = self.recorder.during(work);
        done?;
        Ok(Some(Box::new(Graph::new(&self.memory, launches, self.backward))))
    }

    fn target(&self) -> Target {
        self.target.clone()
    }

    fn library(&self, program: &Program, step: &Step, target: &Target) -> Vec<Candidate> {
        let Some(prefer) = &self.prefer else { return Vec::new() };
        let all = variants(program, step, target).unwrap_or_default();
        all.into_iter().filter(|v| v.name.contains(prefer.as_str())).map(Candidate::from).collect()
    }

    fn synchronize(&self) -> Result<(), GpuError> {
        Ok(())
    }

    /// Memory is not pooled, so that every buffer has guard zones of its own.
    fn pooled(&self) -> bool {
        false
    }

    fn side_stream(&self, marks: usize) -> Result<Option<Box<dyn SideStream>>, GpuError> {
        Ok(Some(Box::new(Side::new(marks))))
    }

    fn device(&self) -> DeviceId {
        DeviceId { device_type: DL_EXT_DEV, device_id: self.ordinal }
    }
}
