//! A device: memory and kernels of the emulator, how much it may have, and how it is lost.

use std::collections::HashMap;
use std::ffi::{CString, c_int};

use gpu_codegen::{Dialect, Target};
use gpu_emulator::Emulator;
use gpu_runtime::{Arguments, Driver, GpuError, Grid};

use crate::module::Kernel;
use crate::settings::Settings;

/// Numbers of `hipError_t`.
pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_VALUE: c_int = 1;
pub(crate) const OUT_OF_MEMORY: c_int = 2;
pub(crate) const NO_DEVICE: c_int = 100;
pub(crate) const INVALID_DEVICE: c_int = 101;
pub(crate) const INVALID_IMAGE: c_int = 200;
pub(crate) const NO_BINARY: c_int = 209;
pub(crate) const INVALID_HANDLE: c_int = 400;
pub(crate) const NOT_FOUND: c_int = 500;
pub(crate) const NOT_READY: c_int = 600;
pub(crate) const LAUNCH_FAILURE: c_int = 719;
pub(crate) const NOT_SUPPORTED: c_int = 801;
pub(crate) const CAPTURE_UNSUPPORTED: c_int = 900;
pub(crate) const UNKNOWN: c_int = 999;

/// Lanes of a wave, by the architecture's generation.
pub(crate) fn wave(architecture: &str) -> u32 {
    if architecture.starts_with("gfx9") { 64 } else { 32 }
}

/// What kernels are read as.
pub(crate) fn target(architecture: &str) -> Target {
    let unknown = || Target { dialect: Dialect::HIP, wave: wave(architecture), ..Target::CDNA };
    Target::of_architecture(architecture).unwrap_or_else(unknown)
}

/// A device.
pub(crate) struct Device {
    pub(crate) architecture: String,
    pub(crate) emulator: Emulator,
    /// Bytes of each allocation by its address.
    allocations: HashMap<u64, u64>,
    pub(crate) used: u64,
    pub(crate) memory: u64,
    /// The launch that loses it; counted down.
    lost: Option<u64>,
    /// Why nothing works here any more, for the life of the process.
    pub(crate) failure: Option<CString>,
}

impl Device {
    pub(crate) fn new(architecture: &str, settings: &Settings) -> Device {
        let emulator = Emulator::new(target(architecture));
        Device {
            architecture: architecture.to_owned(),
            emulator: if settings.backward { emulator.backward() } else { emulator },
            allocations: HashMap::new(),
            used: 0,
            memory: settings.memory,
            lost: settings.lost,
            failure: None,
        }
    }

    /// Whether it still answers.
    pub(crate) fn answers(&self) -> Result<(), c_int> {
        if self.failure.is_some() { Err(LAUNCH_FAILURE) } else { Ok(()) }
    }

    /// What the emulator says loses the device, as a fault of a kernel does.
    pub(crate) fn outcome<T>(&mut self, outcome: Result<T, GpuError>) -> Result<T, c_int> {
        outcome.map_err(|e| {
            eprintln!("hip stand-in: {e}");
            let text = e.to_string().replace('\0', " ");
            self.failure.get_or_insert_with(|| CString::new(text).unwrap_or_default());
            LAUNCH_FAILURE
        })
    }

    pub(crate) fn allocate(&mut self, bytes: u64) -> Result<u64, c_int> {
        self.answers()?;
        if self.used.saturating_add(bytes) > self.memory {
            return Err(OUT_OF_MEMORY);
        }
        let address = self.emulator.allocate(bytes.max(1)).map_err(|_| OUT_OF_MEMORY)?;
        self.used += bytes;
        self.allocations.insert(address, bytes);
        Ok(address)
    }

    pub(crate) fn free(&mut self, address: u64) -> Result<(), c_int> {
        let bytes = self.allocations.remove(&address).ok_or(INVALID_VALUE)?;
        self.used -= bytes;
        self.emulator.free(address);
        Ok(())
    }

    /// Runs a kernel.
    ///
    /// # Safety
    /// As for [`Driver::launch`].
    pub(crate) unsafe fn launch(&mut self, kernel: &Kernel, grid: Grid, words: &[u64]) -> Result<(), c_int> {
        self.answers()?;
        if let Some(left) = &mut self.lost {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.lost = None;
                let what = "the device was lost, as it was asked for".to_owned();
                return self.outcome(Err(GpuError::Driver { call: "launch", what }));
            }
        }
        let arguments = Arguments { words, maps: &[] };
        // SAFETY: the caller's promise.
        let done = unsafe { self.emulator.launch_checked(&kernel.function, grid, arguments) };
        self.outcome(done.map_err(GpuError::from))
    }
}
