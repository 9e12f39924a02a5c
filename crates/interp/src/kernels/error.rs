//! Errors of executing a kernel program. An index outside its buffer is a fault of the program and is reported as such.

use ir_core::DType;
use kernel_ir::{PlanError, Site};
use tensor::TensorError;

use crate::Conflict;

/// A refused run.
#[derive(Clone, Debug, thiserror::Error)]
pub enum KernelError {
    /// Too few or too many inputs.
    #[error("the program takes {expected} inputs, {got} were given")]
    InputCount {
        /// Inputs of the program.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// A tensor does not fit its buffer.
    #[error("`{name}` is {got_dtype}{got:?}, the program wants {expected}")]
    Mismatch {
        /// Input or constant.
        name: String,
        /// Its dtype.
        got_dtype: DType,
        /// Its sizes.
        got: Vec<usize>,
        /// The buffer's.
        expected: String,
    },
    /// The inputs' sizes contradict each other or a range.
    #[error("input `{input}`: {problem}")]
    Symbol {
        /// Name of the input.
        input: String,
        /// Which dimension has which size, and what is required.
        problem: String,
    },
    /// There is no constant of this name.
    #[error("constant `{0}` is missing")]
    MissingConstant(String),
    /// A constant holds an index that an operator of the program does not take.
    #[error("{message}")]
    ConstantRange {
        /// Which constant, which element, and which operator uses it as an index.
        message: String,
    },
    /// A size symbol has no value.
    #[error("the size `{0}` is not determined by the inputs")]
    Unbound(String),
    /// A size is negative.
    #[error("the size `{expr}` is {value}")]
    Negative {
        /// The expression.
        expr: String,
        /// Its value.
        value: i64,
    },
    /// A kernel uses an element that its buffer does not have.
    #[error("kernel `{kernel}` uses element {index:?} of buffer `{buffer}` with sizes {sizes:?}")]
    OutOfBounds {
        /// The kernel.
        kernel: String,
        /// The buffer.
        buffer: String,
        /// The index.
        index: Vec<i64>,
        /// The buffer's sizes.
        sizes: Vec<usize>,
    },
    /// An index from data is not within its dimension.
    #[error("{}", site.message(*index, *size))]
    Index {
        /// The kernel.
        kernel: String,
        /// The operator that uses the index.
        site: Box<Site>,
        /// The index.
        index: i64,
        /// The size.
        size: i64,
    },
    /// A kernel writes an input or a constant.
    #[error("kernel `{kernel}` writes buffer `{buffer}`, which is read-only")]
    ReadOnly {
        /// The kernel.
        kernel: String,
        /// The buffer.
        buffer: String,
    },
    /// A kernel is not well formed.
    #[error("kernel `{kernel}`: {what}")]
    Malformed {
        /// The kernel.
        kernel: String,
        /// What is wrong.
        what: String,
    },
    /// A number that the program computes is outside of the range of its symbol.
    #[error("step `{step}`: {conflict}")]
    Range {
        /// The step that binds the symbol.
        step: String,
        /// What does not fit.
        conflict: Conflict,
    },
    /// A condition that the program states does not hold.
    #[error("assertion `{step}` failed: {message}")]
    Assertion {
        /// The step.
        step: String,
        /// The message of the program.
        message: String,
    },
    /// The memory plan does not fit the program.
    #[error("memory plan: {0}")]
    Plan(#[from] PlanError),
    /// A tensor could not be made.
    #[error("`{what}`: {error}")]
    Tensor {
        /// Buffer or kernel.
        what: String,
        /// Why.
        #[source]
        error: TensorError,
    },
}

impl KernelError {
    pub(super) fn malformed(kernel: &str, what: impl Into<String>) -> KernelError {
        KernelError::Malformed { kernel: kernel.into(), what: what.into() }
    }
}
