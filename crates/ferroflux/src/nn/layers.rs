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
    Relu6 relu6 "Every element, between 0 and 6.";
    Hardswish hardswish "`x * relu6(x + 3) / 6`.";
    Mish mish "`x * tanh(softplus(x))`.";
    Identity clone "The input itself.";
}

macro_rules! by_name {
    ($($name:ident $target:literal $doc:literal;)*) => {$(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;
        impl Module for $name {
            fn visit(&self, _: &str, _: &mut dyn super::Visitor) {}
        }
        impl Layer for $name {
            fn forward(&self, x: &Tensor) -> Tensor {
                x.call($target, [])
            }
        }
    )*};
}

by_name! {
    Elu "aten.elu.default" "`exp(x) - 1` where an element is negative.";
    Selu "aten.selu.default" "The scaled exponential linear unit.";
    Softplus "aten.softplus.default" "`log(1 + exp(x))`.";
    Hardsigmoid "aten.hardsigmoid.default" "`relu6(x + 3) / 6`.";
    LogSigmoid "aten.log_sigmoid.default" "The logarithm of the logistic function.";
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

/// The name of an operator over `N` dimensions.
fn of_dims<const N: usize>(names: [&'static str; 3]) -> &'static str {
    names[N.clamp(1, 3) - 1]
}

/// The largest element of each window of the last `N` dimensions of `[batch, channels, …]`.
#[derive(Clone, Debug, derive::Module)]
pub struct MaxPool<const N: usize> {
    /// Size of the window.
    pub kernel: i64,
    /// Distance between windows.
    pub stride: i64,
    /// Elements added on both sides of each dimension.
    pub padding: i64,
}

/// Largest elements over one dimension.
pub type MaxPool1d = MaxPool<1>;
/// Largest elements over two dimensions.
pub type MaxPool2d = MaxPool<2>;
/// Largest elements over three dimensions.
pub type MaxPool3d = MaxPool<3>;

impl<const N: usize> Layer for MaxPool<N> {
    fn forward(&self, x: &Tensor) -> Tensor {
        let (kernel, stride, padding) = ([self.kernel; N], [self.stride; N], [self.padding; N]);
        let names = ["aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default"];
        x.call(of_dims::<N>(names), [(&kernel).into(), (&stride).into(), (&padding).into()])
    }
}

/// The mean of each window of the last `N` dimensions of `[batch, channels, …]`.
#[derive(Clone, Debug, derive::Module)]
pub struct AvgPool<const N: usize> {
    /// Size of the window.
    pub kernel: i64,
    /// Distance between windows.
    pub stride: i64,
    /// Zeros added on both sides of each dimension.
    pub padding: i64,
}

/// Means over one dimension.
pub type AvgPool1d = AvgPool<1>;
/// Means over two dimensions.
pub type AvgPool2d = AvgPool<2>;
/// Means over three dimensions.
pub type AvgPool3d = AvgPool<3>;

impl<const N: usize> Layer for AvgPool<N> {
    fn forward(&self, x: &Tensor) -> Tensor {
        let (kernel, stride, padding) = ([self.kernel; N], [self.stride; N], [self.padding; N]);
        let names = ["aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default"];
        x.call(of_dims::<N>(names), [(&kernel).into(), (&stride).into(), (&padding).into()])
    }
}

/// Means of windows such that the last `N` dimensions of the result have these sizes.
#[derive(Clone, Debug)]
pub struct AdaptiveAvgPool<const N: usize> {
    /// The sizes of the result.
    pub size: [i64; N],
}

/// Means over one dimension, for a result of a given size.
pub type AdaptiveAvgPool1d = AdaptiveAvgPool<1>;
/// Means over two dimensions, for a result of given sizes.
pub type AdaptiveAvgPool2d = AdaptiveAvgPool<2>;
/// Means over three dimensions, for a result of given sizes.
pub type AdaptiveAvgPool3d = AdaptiveAvgPool<3>;

impl<const N: usize> Module for AdaptiveAvgPool<N> {
    fn visit(&self, _: &str, _: &mut dyn super::Visitor) {}
}

impl<const N: usize> Layer for AdaptiveAvgPool<N> {
    fn forward(&self, x: &Tensor) -> Tensor {
        let names = [
            "aten.adaptive_avg_pool1d.default",
            "aten.adaptive_avg_pool2d.default",
            "aten.adaptive_avg_pool3d.default",
        ];
        x.call(of_dims::<N>(names), [(&self.size).into()])
    }
}
