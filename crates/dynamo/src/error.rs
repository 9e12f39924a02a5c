//! Errors of recording and capturing.

use std::panic::Location;

use aot_autograd::JointError;
use prims::OpError;
use thiserror::Error;

/// Why a call cannot be recorded, or a function cannot be captured.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The operator refuses the call.
    #[error("{source} (called at {at})")]
    Call {
        /// The line of the program.
        at: &'static Location<'static>,
        /// Why.
        source: OpError,
    },
    /// The operator returns numbers or nothing instead of tensors.
    #[error("`{op}` does not return tensors (called at {at}): read the tensor instead")]
    NotTensors {
        /// The operator.
        op: String,
        /// The line of the program.
        at: &'static Location<'static>,
    },
    /// A graph break where none is allowed.
    #[error(
        "graph break at {at}: {reason}. The function is compiled with `fullgraph`: compute with tensors instead, or allow breaks"
    )]
    Break {
        /// The line of the program.
        at: &'static Location<'static>,
        /// Why capture cannot go on.
        reason: String,
    },
    /// No gradient can be computed.
    #[error("{source} (at {at})")]
    Gradient {
        /// The line of the program.
        at: &'static Location<'static>,
        /// Why.
        source: JointError,
    },
    /// The value does not depend on any variable.
    #[error("nothing to differentiate at {at}: the value depends on no tensor that requires a gradient")]
    NoVariable {
        /// The line of the program.
        at: &'static Location<'static>,
    },
    /// What was recorded could not be computed.
    #[error("{0}")]
    Run(String),
    /// A value was wanted that nothing computed.
    #[error("internal error: a recorded value was not computed; please report the program")]
    NotComputed,
}
