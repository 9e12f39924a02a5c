//! Errors of operator rules. The caller adds the node and its source line.

use ir_core::DType;
use kernel_ir::Site;
use thiserror::Error;

/// A rule's refusal.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum OpError {
    /// The table has no such operator.
    #[error("unknown operator `{0}`{near}", near = crate::near::nearest_form(.0))]
    Unknown(String),
    /// The operator is known but not in this form.
    #[error("`{op}` does not support {what}")]
    Unsupported {
        /// The operator.
        op: String,
        /// The form, and where possible the nearest supported one.
        what: String,
    },
    /// The call breaks the operator's own rules.
    #[error("invalid call of `{op}`: {what}")]
    Invalid {
        /// The operator.
        op: String,
        /// What is wrong.
        what: String,
    },
    /// An argument is absent or of another kind.
    #[error("argument `{arg}` of `{op}` {what}")]
    Argument {
        /// The operator.
        op: String,
        /// The argument's name.
        arg: String,
        /// What is wrong.
        what: String,
    },
    /// A dtype that the operator does not support.
    #[error("`{op}` does not take {dtype} tensors")]
    DType {
        /// The operator.
        op: String,
        /// The dtype.
        dtype: DType,
    },
    /// An index from data does not lie in its dimension.
    #[error("{}", site.message(*index, *size))]
    Index {
        /// The operator that uses the index.
        site: Box<Site>,
        /// The index.
        index: i64,
        /// Size of the dimension.
        size: i64,
    },
    /// Computing on tensors failed.
    #[error("`{op}`: {source}")]
    Tensor {
        /// The operator.
        op: String,
        /// Why.
        source: tensor::TensorError,
    },
}
