//! The errors of a GPU backend, distinguished by what the user can do about them.

use kernel_ir::Site;
use kernel_ir::runtime::{ExchangeError, RunError};
use plugin_sdk::{ErrorKind, PluginError};
use thiserror::Error;

use crate::Inputs;

/// The suffix of errors of calls that were not waited for.
const EARLIER: &str = "; found by a call that nobody waited for, or by one after it";

/// An error of compiling for a device or of running on it. The process survives, and so does the device unless it is lost.
#[derive(Clone, Debug, Error)]
pub enum GpuError {
    /// A library of the vendor is missing.
    #[error("{library} is not there: looked for {looked}; {advice}")]
    Missing {
        /// The library.
        library: &'static str,
        /// The places that were searched.
        looked: String,
        /// How to install it.
        advice: &'static str,
    },
    /// The vendor's compiler rejects a kernel: a bug of this backend.
    #[error("kernel module `{module}` does not compile: {log}")]
    Compile {
        /// First entry point of the module.
        module: String,
        /// The compiler's output.
        log: String,
    },
    /// A step has no kernel here.
    #[error("kernel `{kernel}`: {reason}")]
    Unsupported {
        /// The step.
        kernel: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The device is out of memory.
    #[error(
        "the device has no {bytes} bytes left ({free} of {total} are free): use smaller batches or a smaller dtype"
    )]
    OutOfMemory {
        /// Bytes that were requested.
        bytes: u64,
        /// Free bytes.
        free: u64,
        /// Bytes of the device.
        total: u64,
    },
    /// The allocator of the host's process has no memory left.
    #[error("no {bytes} bytes of the device are left: {what}")]
    HostOutOfMemory {
        /// Bytes that were requested.
        bytes: u64,
        /// What the allocator says.
        what: String,
    },
    /// The driver reports an error.
    #[error("{call}: {what}")]
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's message.
        what: String,
    },
    /// The device does not answer any more.
    #[error("{call}: {what}; the device is lost to this process: start it again")]
    Lost {
        /// The call that failed.
        call: &'static str,
        /// The driver's message.
        what: String,
    },
    /// The caller's tensors do not fit the program.
    #[error("{0}")]
    Argument(String),
    /// A condition of the program on its data does not hold.
    #[error("step `{step}`: {message}")]
    Assertion {
        /// The step.
        step: String,
        /// The program's message.
        message: String,
    },
    /// An index from data is out of bounds. No memory was accessed there. The outputs of the call are lost; later calls
    /// are not affected.
    #[error("{}{inputs}{}", site.message(*index, *size), if *earlier { EARLIER } else { "" })]
    Index {
        /// The source of the check.
        site: Box<Site>,
        /// The index.
        index: i64,
        /// The size of the indexed dimension.
        size: i64,
        /// The state of the inputs that the call writes in place.
        inputs: Inputs,
        /// Whether an earlier call that nobody waited for may have found it.
        earlier: bool,
    },
    /// An exchange between ranks did not take place.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// The program breaks the rules of kernel-ir.
    #[error("malformed program: {0}")]
    Malformed(String),
}

impl GpuError {
    /// Whether memory of the device is what is missing.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, GpuError::OutOfMemory { .. } | GpuError::HostOutOfMemory { .. })
    }
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
            GpuError::Missing { .. } | GpuError::Exchange(ExchangeError::Engine { .. }) => {
                ErrorKind::Unavailable
            }
            GpuError::Unsupported { .. } => ErrorKind::Unsupported,
            GpuError::OutOfMemory { .. } | GpuError::HostOutOfMemory { .. } => ErrorKind::OutOfMemory,
            GpuError::Compile { .. } | GpuError::Driver { .. } | GpuError::Lost { .. } => ErrorKind::Internal,
            GpuError::Argument(_)
            | GpuError::Assertion { .. }
            | GpuError::Index { .. }
            | GpuError::Exchange(_)
            | GpuError::Malformed(_) => ErrorKind::InvalidArgument,
        };
        PluginError::new(kind, e.to_string())
    }
}
