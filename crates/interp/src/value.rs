//! What a value of a graph is while it runs.

use ir_core::{DType, Scalar};
use tensor::{Tensor, TensorError};

/// A run-time value.
#[derive(Clone, Debug)]
pub enum Value {
    /// An output that the operator leaves out.
    None,
    /// A tensor.
    Tensor(Tensor),
    /// An integer, float or truth value that the program computes with.
    Scalar(Scalar),
}

impl Value {
    /// The tensor, where it is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Value::Tensor(t) => Some(t),
            _ => None,
        }
    }
    /// A number: a scalar, or the only element of a tensor.
    pub fn as_scalar(&self) -> Option<Scalar> {
        match self {
            Value::Scalar(s) => Some(*s),
            Value::Tensor(t) => t.item(),
            Value::None => None,
        }
    }
    /// As a tensor: a number becomes one without dimensions, of PyTorch's default dtype for its class but `f64` for
    /// floats (a Python float has 64 bits). `None` for [`Value::None`].
    pub fn into_tensor(self) -> Result<Option<Tensor>, TensorError> {
        Ok(match self {
            Value::None => None,
            Value::Tensor(t) => Some(t),
            Value::Scalar(s) => Some(Tensor::scalar(scalar_dtype(s), s)?),
        })
    }
}

fn scalar_dtype(s: Scalar) -> DType {
    match s {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) => DType::I64,
        Scalar::Float(_) => DType::F64,
        Scalar::Complex(..) => DType::C128,
    }
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Value {
        Value::Tensor(t)
    }
}
impl From<Scalar> for Value {
    fn from(s: Scalar) -> Value {
        Value::Scalar(s)
    }
}
