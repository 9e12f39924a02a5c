//! Layers without parameters: activations, pooling, dropout, reshaping.

use dynamo::Setting;

use super::{Layer, Module};
use crate::eager::Tensor;

macro_rules! activations {
    ($($name:ident $method:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;
        impl Module for $name {
            fn visit(&self, _: &str, _: &mut dyn super::Visitor) {}
        }
        impl Layer for $name {
            fn forward(&self, x: &Tensor) -> Tensor {
                x.$method()
            }
        }
    )*};
}

activations! {
    Relu relu "Every element, zero where it is negative.";
    Gelu gelu "Gaussian error linear unit.";
    Silu silu "`x * sigmoid(x)`.";
    Sigmoid sigmoid "The logistic function.";
    Tanh tanh "The hyperbolic tangent.";
    Identity clone "The input itself.";
}

/// Every element, times a number where it is negative.
#[derive(Clone, Debug, derive::Module)]
pub struct LeakyRelu {
    /// The factor of negative elements.
    pub slope: f64,
}

impl Layer for LeakyRelu {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.call("aten.leaky_relu.default", [self.slope.into()])
    }
}

/// Softmax along a dimension.
#[derive(Clone, Debug, derive::Module)]
pub struct Softmax {
    /// The dimension.
    pub dim: i64,
}

impl Layer for Softmax {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.softmax(self.dim)
    }
}

/// While training, elements are zero with a probability, and the others scaled so that the mean stays.
#[derive(Clone, Debug, derive::Module)]
pub struct Dropout {
    p: f64,
    training: Setting<bool>,
}

impl Dropout {
    /// With this probability.
    pub fn new(p: f64) -> Dropout {
        Dropout { p, training: Setting::new("training", true) }
    }
}

impl Layer for Dropout {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.call("aten.dropout.default", [self.p.into(), self.training.get().into()])
    }
}

/// Dimensions from `start` to `end` as one.
#[derive(Clone, Debug, derive::Module)]
pub struct Flatten {
    /// The first dimension.
    pub start: i64,
    /// The last dimension.
    pub end: i64,
}

impl Default for Flatten {
    /// All dimensions but the batch.
    fn default() -> Flatten {
        Flatten { start: 1, end: -1 }
    }
}

impl Layer for Flatten {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.flatten(self.start, self.end)
    }
}

/// The largest element of each window of `[batch, channels, height, width]`.
#[derive(Clone, Debug, derive::Module)]
pub struct MaxPool2d {
    /// Size of the window.
    pub kernel: i64,
    /// Distance between windows.
    pub stride: i64,
    /// Rows and columns added on all sides.
    pub padding: i64,
}

impl Layer for MaxPool2d {
    fn forward(&self, x: &Tensor) -> Tensor {
        let pair = |n: i64| [n; 2];
        let (kernel, stride, padding) = (pair(self.kernel), pair(self.stride), pair(self.padding));
        x.call("aten.max_pool2d.default", [(&kernel).into(), (&stride).into(), (&padding).into()])
    }
}

/// The mean of each window of `[batch, channels, height, width]`.
#[derive(Clone, Debug, derive::Module)]
pub struct AvgPool2d {
    /// Size of the window.
    pub kernel: i64,
    /// Distance between windows.
    pub stride: i64,
    /// Rows and columns of zeros added on all sides.
    pub padding: i64,
}

impl Layer for AvgPool2d {
    fn forward(&self, x: &Tensor) -> Tensor {
        let pair = |n: i64| [n; 2];
        let (kernel, stride, padding) = (pair(self.kernel), pair(self.stride), pair(self.padding));
        x.call("aten.avg_pool2d.default", [(&kernel).into(), (&stride).into(), (&padding).into()])
    }
}

/// Means of windows such that the result has these sizes.
#[derive(Clone, Debug, derive::Module)]
pub struct AdaptiveAvgPool2d {
    /// Height and width of the result.
    pub size: [i64; 2],
}

impl Layer for AdaptiveAvgPool2d {
    fn forward(&self, x: &Tensor) -> Tensor {
        x.call("aten.adaptive_avg_pool2d.default", [(&self.size).into()])
    }
}
