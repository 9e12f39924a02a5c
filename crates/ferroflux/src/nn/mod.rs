//! Modules: layers with parameters, buffers and a mode, whose state dicts have PyTorch's names.
//!
//! ```
//! use ferroflux::nn::{Layer, Linear, Module, Relu, Sequential};
//! use ferroflux::prelude::*;
//!
//! let net = Sequential::new().then(Linear::new(4, 8)).then(Relu).then(Linear::new(8, 2));
//! let names: Vec<String> = net.state_dict()?.into_keys().collect();
//! assert_eq!(names, ["0.bias", "0.weight", "2.bias", "2.weight"]);
//! assert_eq!(net.forward(&Tensor::zeros(&[3, 4])).shape(), [3, 2]);
//! # Ok::<(), ferroflux::Error>(())
//! ```
//!
//! A struct of modules derives [`Module`]: the names of its fields are those of the state dict.
//!
//! ```
//! use ferroflux::nn::{Conv2d, Layer, Module};
//! use ferroflux::prelude::*;
//!
//! #[derive(Module)]
//! struct Block {
//!     first: Conv2d,
//!     second: Conv2d,
//!     scale: f64,
//! }
//!
//! impl Layer for Block {
//!     fn forward(&self, x: &Tensor) -> Tensor {
//!         self.second.forward(&self.first.forward(x).relu()) * self.scale + x
//!     }
//! }
//! # let block = Block { first: Conv2d::new(3, 3, 1), second: Conv2d::new(3, 3, 1), scale: 0.5 };
//! # assert_eq!(block.forward(&Tensor::zeros(&[1, 3, 2, 2])).shape(), [1, 3, 2, 2]);
//! # assert_eq!(block.parameters().len(), 4);
//! ```
//!
//! Not here: operators ([`crate::eager`]) and the optimizers of compiled training steps ([`crate::optim`]).

mod attention;
mod bag;
mod conv;
mod layers;
mod linear;
mod norm;
mod parametrize;
mod recurrent;
mod sequential;
mod sgd;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::Path;

use dynamo::{Setting, no_grad};
use ir_core::DType;
use tensor::Tensor as HostTensor;
use tensor::safetensors::SafetensorsFile;

use crate::Error;
use crate::eager::{Init, Tensor};

pub use attention::{MultiheadAttention, TransformerDecoderLayer, TransformerEncoderLayer};
pub use bag::{BagMode, EmbeddingBag};
pub use conv::{
    Conv, Conv1d, Conv2d, Conv3d, ConvTranspose, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
};
pub use derive::Module;
pub use layers::{
    AdaptiveAvgPool, AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AvgPool, AvgPool1d, AvgPool2d,
    AvgPool3d, Dropout, Elu, Flatten, Gelu, Hardsigmoid, Hardswish, Identity, LeakyRelu, LogSigmoid, MaxPool,
    MaxPool1d, MaxPool2d, MaxPool3d, Mish, Relu, Relu6, Selu, Sigmoid, Silu, Softmax, Softplus, Tanh,
};
pub use linear::{Embedding, Linear};
pub use norm::{BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, GroupNorm, LayerNorm, RmsNorm};
pub use parametrize::{SpectralNorm, WeightNorm, Weighted};
pub use recurrent::{Gru, Lstm, Recurrent, Rnn};
pub use sequential::Sequential;
pub use sgd::Sgd;

/// Receives the parts of a module, each with its name in the state dict.
pub trait Visitor {
    /// A trained tensor.
    fn parameter(&mut self, _name: &str, _tensor: &Tensor) {}
    /// State that is not trained; `persistent` if it is part of the state dict.
    fn buffer(&mut self, _name: &str, _tensor: &Tensor, _persistent: bool) {}
    /// Whether a part of the module trains.
    fn mode(&mut self, _name: &str, _training: &Setting<bool>) {}
}

/// Something with parameters, buffers and modes: a layer, a part of one, or a plain value, which has none.
pub trait Module {
    /// Visits all parts; their names begin with `path`.
    fn visit(&self, path: &str, visitor: &mut dyn Visitor);

    /// The parameters with their names, in the order of the fields.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        struct Parameters(Vec<(String, Tensor)>);
        impl Visitor for Parameters {
            fn parameter(&mut self, name: &str, tensor: &Tensor) {
                self.0.push((name.to_owned(), tensor.clone()));
            }
        }
        let mut all = Parameters(Vec::new());
        self.visit("", &mut all);
        all.0
    }

    /// The parameters, in the order of the fields.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters().into_iter().map(|(_, t)| t).collect()
    }

    /// Parameters and persistent buffers with their names, in the order of the fields.
    fn state(&self) -> Vec<(String, Tensor)> {
        struct State(Vec<(String, Tensor)>);
        impl Visitor for State {
            fn parameter(&mut self, name: &str, tensor: &Tensor) {
                self.0.push((name.to_owned(), tensor.clone()));
            }
            fn buffer(&mut self, name: &str, tensor: &Tensor, persistent: bool) {
                if persistent {
                    self.0.push((name.to_owned(), tensor.clone()));
                }
            }
        }
        let mut all = State(Vec::new());
        self.visit("", &mut all);
        all.0
    }

    /// Parameters and persistent buffers by PyTorch's names, as memory.
    ///
    /// # Errors
    /// A tensor cannot be computed.
    fn state_dict(&self) -> Result<BTreeMap<String, HostTensor>, Error> {
        self.state().into_iter().map(|(name, tensor)| Ok((name, tensor.to_host()?))).collect()
    }

    /// Takes parameters and buffers from tensors by name.
    ///
    /// # Errors
    /// Names that the module has and the tensors lack, or the other way round: all of them; other sizes.
    fn load_state_dict(&self, tensors: &BTreeMap<String, HostTensor>) -> Result<(), Error> {
        let state = self.state();
        let lacking =
            state.iter().filter(|(name, _)| !tensors.contains_key(name)).map(|(name, _)| name.as_str());
        let unknown = tensors.keys().filter(|name| !state.iter().any(|(own, _)| own == *name));
        let (lacking, unknown): (Vec<&str>, Vec<&str>) =
            (lacking.collect(), unknown.map(String::as_str).collect());
        if !lacking.is_empty() || !unknown.is_empty() {
            let list = |names: &[&str]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let what = format!("missing: {}; unknown: {}", list(&lacking), list(&unknown));
            return Err(Error::Snapshot(what));
        }
        for (name, own) in state {
            let Some(given) = tensors.get(&name) else { continue };
            no_grad(|| own.set_(&given.into()).map(|_| ()))
                .map_err(|e| Error::Snapshot(format!("`{name}`: {e}")))?;
        }
        Ok(())
    }

    /// Takes parameters and buffers from a safetensors file, as Hugging Face has them.
    ///
    /// # Errors
    /// The file cannot be read; as for [`load_state_dict`](Module::load_state_dict).
    fn load_safetensors(&self, path: &Path) -> Result<(), Error> {
        let file = SafetensorsFile::open(path).map_err(|e| Error::Snapshot(e.to_string()))?;
        self.load_state_dict(&file.tensors)
    }

    /// Writes parameters and buffers to a safetensors file.
    ///
    /// # Errors
    /// A tensor cannot be computed, or the file cannot be written.
    fn save_safetensors(&self, path: &Path) -> Result<(), Error> {
        let file = SafetensorsFile { tensors: self.state_dict()?, ..SafetensorsFile::default() };
        file.write(path).map_err(|e| Error::Snapshot(e.to_string()))
    }

    /// Sets whether all parts of the module train.
    fn train(&self, training: bool) {
        struct Mode(bool);
        impl Visitor for Mode {
            fn mode(&mut self, _: &str, training: &Setting<bool>) {
                training.set(self.0);
            }
        }
        self.visit("", &mut Mode(training));
    }

    /// Makes the module compute results instead of training.
    fn eval(&self) {
        self.train(false);
    }

    /// Forgets the gradients of all parameters.
    fn zero_grad(&self) {
        self.parameters().iter().for_each(Tensor::clear_grad);
    }
}

/// A module from one tensor to one.
pub trait Layer: Module {
    /// What it computes.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor;
}

/// The name of a part: `layer1.0.weight`.
pub fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A trained tensor of a module.
#[derive(Clone, Debug)]
pub struct Parameter(Tensor);

impl Parameter {
    /// A parameter with this value, a variable of gradients.
    pub fn new(value: Tensor) -> Parameter {
        Parameter(value.with_grad())
    }
    /// Filled as `init` says, of dtype `f32`.
    pub fn filled(init: Init, sizes: &[i64]) -> Parameter {
        Parameter::new(Tensor::filled(init, sizes, DType::F32))
    }
    /// Uniform in `[-bound, bound)`, of dtype `f32`.
    pub fn uniform(sizes: &[i64], bound: f64) -> Parameter {
        Parameter::new((Tensor::rand(sizes) * 2.0 - 1.0) * bound)
    }
}

/// State of a module that is not trained.
#[derive(Clone, Debug)]
pub struct Buffer {
    tensor: Tensor,
    persistent: bool,
}

impl Buffer {
    /// A buffer that is part of the state dict.
    pub fn new(tensor: Tensor) -> Buffer {
        Buffer { tensor, persistent: true }
    }
    /// A buffer that is not.
    pub fn transient(tensor: Tensor) -> Buffer {
        Buffer { tensor, persistent: false }
    }
}

impl Deref for Parameter {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.0
    }
}
impl Deref for Buffer {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl Module for Parameter {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        visitor.parameter(path, self);
    }
}
impl Module for Buffer {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        visitor.buffer(path, self, self.persistent);
    }
}
impl Module for Setting<bool> {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        visitor.mode(path, self);
    }
}
impl<M: Module> Module for Vec<M> {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        self.iter().enumerate().for_each(|(n, item)| item.visit(&join(path, &n.to_string()), visitor));
    }
}
impl<M: Module> Module for Option<M> {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        self.iter().for_each(|item| item.visit(path, visitor));
    }
}
impl<M: Module + ?Sized> Module for Box<M> {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        (**self).visit(path, visitor);
    }
}
impl<M: Module + ?Sized> Module for std::sync::Arc<M> {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        (**self).visit(path, visitor);
    }
}

macro_rules! plain_values {
    ($($ty:ty),*) => {$(
        impl Module for $ty {
            fn visit(&self, _: &str, _: &mut dyn Visitor) {}
        }
    )*};
}
plain_values!(
    bool,
    i32,
    i64,
    usize,
    f32,
    f64,
    String,
    &'static str,
    DType,
    Setting<f64>,
    Setting<i64>,
    [i64; 1],
    [i64; 2],
    [i64; 3]
);
