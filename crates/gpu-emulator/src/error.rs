//! The errors of emulated kernels.

use gpu_runtime::GpuError;
use thiserror::Error;

/// An error of the emulator, with the kernel and the place where it was found.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EmulatorError {
    /// There is no C++ compiler.
    #[error("no C++ compiler: {looked} does not run; install one or name it in CXX")]
    NoCompiler {
        /// The command that was tried.
        looked: String,
    },
    /// The compiler rejects a module.
    #[error("kernel module `{module}` does not compile for the emulator: {log}")]
    Compile {
        /// The module's first entry.
        module: String,
        /// The compiler's output.
        log: String,
    },
    /// Threads of a block reached different barriers or collectives, or exited before one.
    #[error("kernel `{kernel}`, block {block:?}, thread {thread}: {what}")]
    Diverged {
        /// The entry point.
        kernel: String,
        /// The block.
        block: [u32; 3],
        /// The thread at which it was found.
        thread: u32,
        /// The operations that do not match.
        what: String,
    },
    /// The threads of a block wait for each other.
    #[error("kernel `{kernel}`, block {block:?}: {what}")]
    Deadlock {
        /// The entry point.
        kernel: String,
        /// The block.
        block: [u32; 3],
        /// How many threads wait for what.
        what: String,
    },
    /// The kernel does something that a device would reject: a misaligned access, an impossible barrier, `__trap`.
    #[error("kernel `{kernel}`, block {block:?}, thread {thread}: {what}")]
    Illegal {
        /// The entry point.
        kernel: String,
        /// The block.
        block: [u32; 3],
        /// The thread.
        thread: u32,
        /// The operation.
        what: String,
    },
    /// The kernel wrote outside of a buffer.
    #[error("kernel `{kernel}` wrote {distance} bytes {side} a buffer of {bytes} bytes")]
    OutOfBounds {
        /// The entry point.
        kernel: String,
        /// `before` or `behind`.
        side: &'static str,
        /// The distance in bytes of the nearest damage from the buffer, at least 1.
        distance: usize,
        /// Length of the buffer.
        bytes: u64,
    },
    /// An address range is not within a live buffer.
    #[error("{call} of {bytes} bytes at {address:#x}: no buffer holds them")]
    Address {
        /// The driver call.
        call: &'static str,
        /// The first byte.
        address: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// No device accepts the launch.
    #[error("kernel `{kernel}`: {what}")]
    Launch {
        /// The entry point.
        kernel: String,
        /// The reason.
        what: String,
    },
    /// A file or library of the emulator itself fails.
    #[error("{what}")]
    System {
        /// The failure.
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
