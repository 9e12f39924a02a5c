//! Fully connected layers and tables of vectors.

use super::{Layer, Parameter};
use crate::eager::{Init, Tensor, call};

/// `x · weightᵀ + bias`: `[…, in]` to `[…, out]`.
#[derive(Clone, Debug, derive::Module)]
pub struct Linear {
    /// `[out, in]`.
    pub weight: Parameter,
    /// `[out]`.
    pub bias: Option<Parameter>,
}

impl Linear {
    /// With a bias; uniform weights as PyTorch initializes them.
    pub fn new(inputs: i64, outputs: i64) -> Linear {
        let bound = 1.0 / (inputs.max(1) as f64).sqrt();
        let bias = Some(Parameter::uniform(&[outputs], bound));
        Linear { weight: Parameter::uniform(&[outputs, inputs], bound), bias }
    }
    /// The same without a bias.
    pub fn without_bias(self) -> Linear {
        Linear { bias: None, ..self }
    }
}

impl Layer for Linear {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.call("aten.linear.default", [(&*self.weight).into(), self.bias.as_deref().into()])
    }
}

/// A table of vectors: numbers `[…]` of dtype `i64` to `[…, size]`.
#[derive(Clone, Debug, derive::Module)]
pub struct Embedding {
    /// `[count, size]`.
    pub weight: Parameter,
}

impl Embedding {
    /// `count` normally distributed vectors of `size` elements.
    pub fn new(count: i64, size: i64) -> Embedding {
        Embedding { weight: Parameter::filled(Init::Normal, &[count, size]) }
    }
}

impl Layer for Embedding {
    fn forward(&self, x: &Tensor) -> Tensor {
        call("aten.embedding.default", [(&*self.weight).into(), x.into()])
    }
}
