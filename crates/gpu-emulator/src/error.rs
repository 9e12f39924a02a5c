//! What goes wrong in emulated kernels, told apart.

use gpu_runtime::GpuError;
use thiserror::Error;

/// An error of the emulator, with the kernel and the place where it showed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EmulatorError {
    /// There is no C++ compiler.
    #[error("no C++ compiler: {looked} does not run; install one or name it in CXX")]
    NoCompiler {
        /// What was tried.
        looked: String,
    },
    /// The compiler refuses a module.
    #[error("kernel module `{module}` does not compile for the emulator: {log}")]
    Compile {
        /// Its first entry.
        module: String,
        /// What the compiler says.
        log: String,
    },
    /// Threads came to different barriers or collectives, or left before one.
    #[error("kernel `{kernel}`, block {block:?}, thread {thread}: {what}")]
    Diverged {
        /// The entry point.
        kernel: String,
        /// The block.
        block: [u32; 3],
        /// The thread that showed it.
        thread: u32,
        /// What came together that does not belong together.
        what: String,
    },
    /// Threads of a block wait for each other.
    #[error("kernel `{kernel}`, block {block:?}: {what}")]
    Deadlock {
        /// The entry point.
        kernel: String,
        /// The block.
        block: [u32; 3],
        /// How many wait for what.
        what: String,
    },
    /// A kernel does what a device would refuse: misaligned accesses, impossible barriers, `__trap`.
    #[error("kernel `{kernel}`, block {block:?}, thread {thread}: {what}")]
    Illegal {
        /// The entry point.
        kernel: String,
        /// The block.
        block: [u32; 3],
        /// The thread.
        thread: u32,
        /// What.
        what: String,
    },
    /// A kernel wrote outside of a buffer.
    #[error("kernel `{kernel}` wrote {distance} bytes {side} a buffer of {bytes} bytes")]
    OutOfBounds {
        /// The entry point.
        kernel: String,
        /// `before` or `behind`.
        side: &'static str,
        /// How far from the buffer the nearest damage is, from 1.
        distance: usize,
        /// Length of the buffer.
        bytes: u64,
    },
    /// An address range that is no part of a live buffer.
    #[error("{call} of {bytes} bytes at {address:#x}: no buffer holds them")]
    Address {
        /// The call of the driver.
        call: &'static str,
        /// First byte.
        address: u64,
        /// How many.
        bytes: u64,
    },
    /// A launch that no device takes.
    #[error("kernel `{kernel}`: {what}")]
    Launch {
        /// The entry point.
        kernel: String,
        /// What is wrong with it.
        what: String,
    },
    /// Files or libraries of the emulator itself.
    #[error("{what}")]
    System {
        /// What failed.
        what: String,
    },
}

impl From<EmulatorError> for GpuError {
    fn from(e: EmulatorError) -> GpuError {
        match e {
            EmulatorError::NoCompiler { looked } => GpuError::Missing {
                library: "a C++ compiler",
                looked,
                advice: "install one or name it in the environment variable CXX",
            },
            EmulatorError::Compile { module, log } => GpuError::Compile { module, log },
            other => GpuError::Driver { call: "emulator", what: other.to_string() },
        }
    }
}
