//! What can go wrong on a GPU, told apart by what the user can do about it.

use kernel_ir::Site;
use kernel_ir::runtime::RunError;
use plugin_sdk::{ErrorKind, PluginError};
use thiserror::Error;

use crate::Inputs;

/// What is said where calls were not waited for.
const EARLIER: &str = "; found by a call that nobody waited for, or by one after it";

/// An error of compiling for a device or of running on it. The process lives on, and so does the device unless it is lost.
#[derive(Clone, Debug, Error)]
pub enum GpuError {
    /// A library of the vendor is not there.
    #[error("{library} is not there: looked for {looked}; {advice}")]
    Missing {
        /// Which.
        library: &'static str,
        /// Where it was looked for.
        looked: String,
        /// What to do.
        advice: &'static str,
    },
    /// A kernel that the vendor's compiler refuses: a bug of this backend.
    #[error("kernel module `{module}` does not compile: {log}")]
    Compile {
        /// First entry point of the module.
        module: String,
        /// What the compiler says.
        log: String,
    },
    /// A step that has no kernel here.
    #[error("kernel `{kernel}`: {reason}")]
    Unsupported {
        /// The step.
        kernel: String,
        /// Why, and what to do.
        reason: String,
    },
    /// No memory left on the device.
    #[error(
        "the device has no {bytes} bytes left ({free} of {total} are free): use smaller batches or a smaller dtype"
    )]
    OutOfMemory {
        /// Asked for.
        bytes: u64,
        /// Free.
        free: u64,
        /// Of the device.
        total: u64,
    },
    /// The driver reports an error.
    #[error("{call}: {what}")]
    Driver {
        /// The call.
        call: &'static str,
        /// What it says.
        what: String,
    },
    /// The device does not answer any more.
    #[error("{call}: {what}; the device is lost to this process: start it again")]
    Lost {
        /// The call that showed it.
        call: &'static str,
        /// What it says.
        what: String,
    },
    /// The caller's tensors do not fit the program.
    #[error("{0}")]
    Argument(String),
    /// The program's own condition on its data does not hold.
    #[error("step `{step}`: {message}")]
    Assertion {
        /// The step.
        step: String,
        /// What it says.
        message: String,
    },
    /// An index from data that is out of bounds. No memory was touched there; the outputs of the call are lost, and the next
    /// call is as if this one had not been.
    #[error("{}{inputs}{}", site.message(*index, *size), if *earlier { EARLIER } else { "" })]
    Index {
        /// Who asked for the check.
        site: Box<Site>,
        /// The index.
        index: i64,
        /// One more than the largest that is allowed.
        size: i64,
        /// What became of the inputs that the call writes in place.
        inputs: Inputs,
        /// Whether an earlier call that nobody waited for may have found it.
        earlier: bool,
    },
    /// A program that breaks the rules of kernel-ir.
    #[error("malformed program: {0}")]
    Malformed(String),
}

impl From<RunError> for GpuError {
    fn from(e: RunError) -> GpuError {
        match e {
            RunError::Unbound(size) => GpuError::Malformed(format!("the size {size} has no value")),
            RunError::Assertion { step, message } => GpuError::Assertion { step, message },
            RunError::Range { step, value, symbol, min, max } => {
                let max = max.map_or("unbounded".to_owned(), |m| m.to_string());
                let message = format!("`{symbol}` is {value}, outside of {min} to {max}");
                GpuError::Assertion { step, message }
            }
            RunError::NumberType(_) => GpuError::Malformed(e.to_string()),
        }
    }
}

impl From<GpuError> for PluginError {
    fn from(e: GpuError) -> PluginError {
        let kind = match &e {
            GpuError::Missing { .. } => ErrorKind::Unavailable,
            GpuError::Unsupported { .. } => ErrorKind::Unsupported,
            GpuError::OutOfMemory { .. } => ErrorKind::OutOfMemory,
            GpuError::Compile { .. } | GpuError::Driver { .. } | GpuError::Lost { .. } => ErrorKind::Internal,
            GpuError::Argument(_)
            | GpuError::Assertion { .. }
            | GpuError::Index { .. }
            | GpuError::Malformed(_) => ErrorKind::InvalidArgument,
        };
        PluginError::new(kind, e.to_string())
    }
}
