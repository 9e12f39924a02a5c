//! Normalizations. Batch norm keeps running statistics in buffers, which a captured function writes like any other tensor.

use dynamo::{Setting, no_grad};
use ir_core::DType;

use super::{Buffer, Layer, Parameter};
use crate::eager::{Init, Tensor, call_all};

/// Normalizes each channel of `[batch, channels, …]` over all other dimensions: by the batch's statistics while training, else
/// by the running ones.
#[derive(Clone, Debug, derive::Module)]
pub struct BatchNorm {
    /// `[channels]`.
    pub weight: Parameter,
    /// `[channels]`.
    pub bias: Parameter,
    /// `[channels]`.
    pub running_mean: Buffer,
    /// `[channels]`.
    pub running_var: Buffer,
    /// A count of dtype `i64`.
    pub num_batches_tracked: Buffer,
    training: Setting<bool>,
    momentum: f64,
    eps: f64,
}

/// Batch norm of `[batch, channels]` or `[batch, channels, length]`.
pub type BatchNorm1d = BatchNorm;
/// Batch norm of `[batch, channels, height, width]`.
pub type BatchNorm2d = BatchNorm;
/// Batch norm of `[batch, channels, depth, height, width]`.
pub type BatchNorm3d = BatchNorm;

impl BatchNorm {
    /// With PyTorch's momentum (0.1) and `eps` (1e-5).
    pub fn new(channels: i64) -> BatchNorm {
        BatchNorm {
            weight: Parameter::filled(Init::Ones, &[channels]),
            bias: Parameter::filled(Init::Zeros, &[channels]),
            running_mean: Buffer::new(Tensor::zeros(&[channels])),
            running_var: Buffer::new(Tensor::ones(&[channels])),
            num_batches_tracked: Buffer::new(Tensor::number(0i64, DType::I64)),
            training: Setting::new("training", true),
            momentum: 0.1,
            eps: 1e-5,
        }
    }
    /// The same with another momentum.
    pub fn momentum(self, momentum: f64) -> BatchNorm {
        BatchNorm { momentum, ..self }
    }
    /// The same with another number under the root.
    pub fn eps(self, eps: f64) -> BatchNorm {
        BatchNorm { eps, ..self }
    }

    /// By the statistics of the batch, with which the running ones are updated.
    #[track_caller]
    fn train_step(&self, x: &Tensor) -> Result<Tensor, crate::Error> {
        let tensors = [&*self.weight, &*self.bias, &*self.running_mean, &*self.running_var];
        let numbers = [true.into(), self.momentum.into(), self.eps.into()];
        let inputs = std::iter::once(x.into()).chain(tensors.map(Into::into)).chain(numbers);
        let outs = call_all("aten._native_batch_norm_legit_functional.default", inputs)?;
        let [y, _, _, mean, var] = &outs[..] else {
            return Err(crate::Error::Internal("batch norm did not return its statistics".into()));
        };
        no_grad(|| {
            self.running_mean.set_(&mean.detach())?;
            self.running_var.set_(&var.detach())?;
            self.num_batches_tracked.add_(1)?;
            Ok(y.clone())
        })
    }
}

impl Layer for BatchNorm {
    fn forward(&self, x: &Tensor) -> Tensor {
        if self.training.get() {
            return self.train_step(x).unwrap_or_else(|e| Tensor::refused(&e));
        }
        let tensors = [&*self.weight, &*self.bias, &*self.running_mean, &*self.running_var];
        let numbers = [false.into(), self.momentum.into(), self.eps.into(), true.into()];
        x.call("aten.batch_norm.default", tensors.map(Into::into).into_iter().chain(numbers))
    }
}

/// Normalizes over the last dimensions.
#[derive(Clone, Debug, derive::Module)]
pub struct LayerNorm {
    /// Of the sizes of the normalized dimensions.
    pub weight: Parameter,
    /// Of the sizes of the normalized dimensions.
    pub bias: Parameter,
    #[skip]
    sizes: Vec<i64>,
    eps: f64,
}

impl LayerNorm {
    /// Over dimensions of these sizes, with PyTorch's `eps` (1e-5).
    pub fn new(sizes: &[i64]) -> LayerNorm {
        let (weight, bias) = (Parameter::filled(Init::Ones, sizes), Parameter::filled(Init::Zeros, sizes));
        LayerNorm { weight, bias, sizes: sizes.to_vec(), eps: 1e-5 }
    }
    /// The same with another number under the root.
    pub fn eps(self, eps: f64) -> LayerNorm {
        LayerNorm { eps, ..self }
    }
}

impl Layer for LayerNorm {
    fn forward(&self, x: &Tensor) -> Tensor {
        let parameters = [(&*self.weight).into(), (&*self.bias).into(), self.eps.into()];
        x.call("aten.layer_norm.default", std::iter::once((&self.sizes).into()).chain(parameters))
    }
}

/// Divides by the root of the mean square over the last dimensions.
#[derive(Clone, Debug, derive::Module)]
pub struct RmsNorm {
    /// Of the sizes of the normalized dimensions.
    pub weight: Parameter,
    #[skip]
    sizes: Vec<i64>,
    #[skip]
    eps: Option<f64>,
}

impl RmsNorm {
    /// Over dimensions of these sizes; without `eps` that of the dtype.
    pub fn new(sizes: &[i64], eps: Option<f64>) -> RmsNorm {
        RmsNorm { weight: Parameter::filled(Init::Ones, sizes), sizes: sizes.to_vec(), eps }
    }
}

impl Layer for RmsNorm {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.call("aten.rms_norm.default", [(&self.sizes).into(), (&*self.weight).into(), self.eps.into()])
    }
}

/// Normalizes over groups of channels of `[batch, channels, …]`.
#[derive(Clone, Debug, derive::Module)]
pub struct GroupNorm {
    /// `[channels]`.
    pub weight: Parameter,
    /// `[channels]`.
    pub bias: Parameter,
    groups: i64,
    eps: f64,
}

impl GroupNorm {
    /// With PyTorch's `eps` (1e-5).
    pub fn new(groups: i64, channels: i64) -> GroupNorm {
        let (weight, bias) =
            (Parameter::filled(Init::Ones, &[channels]), Parameter::filled(Init::Zeros, &[channels]));
        GroupNorm { weight, bias, groups, eps: 1e-5 }
    }
}

impl Layer for GroupNorm {
    fn forward(&self, x: &Tensor) -> Tensor {
        let rest = [self.groups.into(), (&*self.weight).into(), (&*self.bias).into(), self.eps.into()];
        x.call("aten.group_norm.default", rest)
    }
}
