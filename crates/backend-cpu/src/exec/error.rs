//! Errors of compiling and running a program.

use ir_core::DType;
use kernel_ir::PlanError;
use kernel_ir::runtime::RunError;

use crate::clif::JitError;
use crate::micro::MicroError;
use crate::vir::LowerError;

/// Why a program is not compiled, bound or run.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// A kernel that this backend does not support.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// The program breaks an invariant of kernel-ir.
    #[error("malformed program: {0}")]
    Malformed(String),
    /// Code generation failed.
    #[error(transparent)]
    Jit(#[from] JitError),
    /// A template refused its operands.
    #[error("kernel `{kernel}`: {source}")]
    Template {
        /// The kernel.
        kernel: String,
        /// Why.
        source: MicroError,
    },
    /// An exchange between ranks did not take place.
    #[error(transparent)]
    Exchange(#[from] kernel_ir::runtime::ExchangeError),
    /// No memory plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An allocation failed.
    #[error("cannot allocate {0} bytes")]
    OutOfMemory(usize),
    /// The number of tensors given is wrong.
    #[error("the program takes {expected} {what}, {got} were given")]
    Count {
        /// Inputs or constants.
        what: &'static str,
        /// How many it takes.
        expected: usize,
        /// How many were given.
        got: usize,
    },
    /// A constant is missing.
    #[error("constant `{0}` was not bound")]
    MissingConstant(String),
    /// `execute` before `bind_constants`.
    #[error("the constants were not bound: call bind_constants before execute")]
    NotBound,
    /// The file that packed weights are read from was cut short.
    #[error("the file of packed weights was cut short while it was in use: bind the constants again")]
    WeightsCut,
    /// A tensor of another dtype.
    #[error("`{name}` has dtype {got}, the program was compiled for {expected}")]
    DType {
        /// The input or constant.
        name: String,
        /// In the program.
        expected: DType,
        /// In the tensor.
        got: DType,
    },
    /// A tensor of another rank.
    #[error("`{name}` has {got} dimensions, the program was compiled for {expected}")]
    Rank {
        /// The input or constant.
        name: String,
        /// In the program.
        expected: usize,
        /// In the tensor.
        got: usize,
    },
    /// A size that contradicts the program or another input.
    #[error("dimension {dim} of `{name}` is {got}, but must be {expected} (`{expr}`)")]
    Size {
        /// The input or constant.
        name: String,
        /// Which dimension.
        dim: usize,
        /// The size given.
        got: i64,
        /// The size that the program and the other inputs require.
        expected: i64,
        /// The expression in the program.
        expr: String,
    },
    /// A size outside of its symbol's range.
    #[error("`{name}`: {problem}")]
    Range {
        /// The input.
        name: String,
        /// Which dimension has which size, and what is required.
        problem: String,
    },
    /// A number that the program computes is outside of its symbol's range.
    #[error("step `{step}` gives {value}, outside of the range {range} of `{symbol}`")]
    Bound {
        /// The step.
        step: String,
        /// What it computed.
        value: i64,
        /// `1..=64`.
        range: String,
        /// Name of the symbol.
        symbol: String,
    },
    /// A condition that the program states does not hold.
    #[error("assertion `{name}` failed: {message}")]
    Assertion {
        /// The step.
        name: String,
        /// The message of the program.
        message: String,
    },
    /// An index from data is not in its dimension. Nothing was read or stored there, and the call has no results.
    #[error("{message}{written}")]
    Index {
        /// The step.
        step: String,
        /// The operator, its place, the index, the dimension and its size.
        message: String,
        /// The index.
        index: i64,
        /// The size of the dimension.
        size: i64,
        /// The state of inputs that the call writes in place.
        written: Written,
    },
    /// A size expression without a value.
    #[error("the size `{0}` has no value: no input determines it")]
    Unbound(String),
    /// A tensor that is not in host memory.
    #[error("`{0}` is not in host memory; copy it to the cpu first")]
    Device(String),
    /// A matrix routine refused its operands.
    #[error(transparent)]
    Linalg(#[from] linalg::host::RoutineError),
    /// The host refused a result.
    #[error("{0}")]
    Host(String),
}

/// The state that a failed call leaves inputs in that it writes in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Whether the program has such inputs.
    pub any: bool,
    /// Names of those that a step has begun to store to.
    pub begun: Vec<String>,
}

impl std::fmt::Display for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.begun[..] {
            [] if self.any => write!(f, "; the inputs that are written in place are as before"),
            [] => Ok(()),
            names => {
                let names: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
                write!(f, "; written in place, and now partly written: {}", names.join(", "))
            }
        }
    }
}

impl From<RunError> for ExecError {
    fn from(e: RunError) -> ExecError {
        match e {
            RunError::Unbound(size) => ExecError::Unbound(size),
            RunError::Assertion { step, message } => ExecError::Assertion { name: step, message },
            RunError::Range { step, value, symbol, min, max } => {
                let max = max.map_or(String::new(), |m| format!("={m}"));
                ExecError::Bound { step, value, range: format!("{min}..{max}"), symbol }
            }
            RunError::NumberType(_) => ExecError::Malformed(e.to_string()),
        }
    }
}
