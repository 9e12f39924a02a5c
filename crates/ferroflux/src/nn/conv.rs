//! Convolutions over one to three dimensions.

use super::{Layer, Module, Parameter};
use crate::eager::Tensor;

/// What both kinds of convolution have.
#[derive(Clone, Debug)]
struct Shape<const N: usize> {
    stride: [i64; N],
    padding: [i64; N],
    dilation: [i64; N],
    groups: i64,
}

impl<const N: usize> Default for Shape<N> {
    fn default() -> Self {
        Shape { stride: [1; N], padding: [0; N], dilation: [1; N], groups: 1 }
    }
}

impl<const N: usize> Module for Shape<N> {
    fn visit(&self, _: &str, _: &mut dyn super::Visitor) {}
}

/// A convolution over the last `N` dimensions: `[batch, in, …]` to `[batch, out, …]`.
#[derive(Clone, Debug, derive::Module)]
pub struct Conv<const N: usize> {
    /// `[out, in / groups, kernel…]`.
    pub weight: Parameter,
    /// `[out]`.
    pub bias: Option<Parameter>,
    shape: Shape<N>,
}

/// A convolution over one dimension.
pub type Conv1d = Conv<1>;
/// A convolution over two dimensions.
pub type Conv2d = Conv<2>;
/// A convolution over three dimensions.
pub type Conv3d = Conv<3>;

fn weight<const N: usize>(first: i64, second: i64, kernel: [i64; N], fan: i64) -> (Parameter, f64) {
    let mut sizes = vec![first, second];
    sizes.extend(kernel);
    let bound = 1.0 / (fan.max(1) as f64).sqrt();
    (Parameter::uniform(&sizes, bound), bound)
}

impl<const N: usize> Conv<N> {
    /// With a kernel of the same size in all dimensions, a bias, stride 1 and no padding.
    pub fn new(inputs: i64, outputs: i64, kernel: i64) -> Self {
        Conv::with(inputs, outputs, [kernel; N], 1)
    }
    /// With a kernel of these sizes, over groups of channels.
    pub fn with(inputs: i64, outputs: i64, kernel: [i64; N], groups: i64) -> Self {
        let own = inputs / groups.max(1);
        let (weight, bound) = weight(outputs, own, kernel, own * kernel.iter().product::<i64>());
        let bias = Some(Parameter::uniform(&[outputs], bound));
        Conv { weight, bias, shape: Shape { groups, ..Shape::default() } }
    }
    /// The same with another stride.
    pub fn stride(mut self, stride: i64) -> Self {
        self.shape.stride = [stride; N];
        self
    }
    /// The same with zeros on all sides.
    pub fn padding(mut self, padding: i64) -> Self {
        self.shape.padding = [padding; N];
        self
    }
    /// The same with distances between the elements of the kernel.
    pub fn dilation(mut self, dilation: i64) -> Self {
        self.shape.dilation = [dilation; N];
        self
    }
    /// The same without a bias.
    pub fn without_bias(self) -> Self {
        Conv { bias: None, ..self }
    }
}

impl<const N: usize> Conv<N> {
    /// The convolution with another weight.
    #[track_caller]
    pub(super) fn convolve(&self, weight: &Tensor, x: &Tensor) -> Tensor {
        let Shape { stride, padding, dilation, groups } = &self.shape;
        let outer: &[i64] = &[0; N];
        let lists = [stride.as_slice().into(), padding.as_slice().into(), dilation.as_slice().into()];
        let parameters = [weight.into(), self.bias.as_deref().into()];
        let rest = [false.into(), outer.into(), (*groups).into()];
        x.call("aten.convolution.default", parameters.into_iter().chain(lists).chain(rest))
    }
}

impl<const N: usize> Layer for Conv<N> {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.convolve(&self.weight, x)
    }
}

/// A transposed convolution over the last `N` dimensions: `[batch, in, …]` to `[batch, out, …]`.
#[derive(Clone, Debug, derive::Module)]
pub struct ConvTranspose<const N: usize> {
    /// `[in, out / groups, kernel…]`.
    pub weight: Parameter,
    /// `[out]`.
    pub bias: Option<Parameter>,
    shape: Shape<N>,
    #[skip]
    output_padding: [i64; N],
}

/// A transposed convolution over one dimension.
pub type ConvTranspose1d = ConvTranspose<1>;
/// A transposed convolution over two dimensions.
pub type ConvTranspose2d = ConvTranspose<2>;
/// A transposed convolution over three dimensions.
pub type ConvTranspose3d = ConvTranspose<3>;

impl<const N: usize> ConvTranspose<N> {
    /// With a kernel of the same size in all dimensions, a bias, stride 1 and no padding.
    pub fn new(inputs: i64, outputs: i64, kernel: i64) -> Self {
        ConvTranspose::with(inputs, outputs, [kernel; N], 1)
    }
    /// With a kernel of these sizes, over groups of channels.
    pub fn with(inputs: i64, outputs: i64, kernel: [i64; N], groups: i64) -> Self {
        let own = outputs / groups.max(1);
        let (weight, bound) = weight(inputs, own, kernel, own * kernel.iter().product::<i64>());
        let bias = Some(Parameter::uniform(&[outputs], bound));
        ConvTranspose { weight, bias, shape: Shape { groups, ..Shape::default() }, output_padding: [0; N] }
    }
    /// The same with another stride.
    pub fn stride(mut self, stride: i64) -> Self {
        self.shape.stride = [stride; N];
        self
    }
    /// The same with zeros removed on all sides.
    pub fn padding(mut self, padding: i64) -> Self {
        self.shape.padding = [padding; N];
        self
    }
    /// The same with rows added on one side.
    pub fn output_padding(mut self, padding: i64) -> Self {
        self.output_padding = [padding; N];
        self
    }
    /// The same without a bias.
    pub fn without_bias(self) -> Self {
        ConvTranspose { bias: None, ..self }
    }
}

impl<const N: usize> ConvTranspose<N> {
    /// The convolution with another weight.
    #[track_caller]
    pub(super) fn convolve(&self, weight: &Tensor, x: &Tensor) -> Tensor {
        let Shape { stride, padding, dilation, groups } = &self.shape;
        let lists = [stride.as_slice().into(), padding.as_slice().into(), dilation.as_slice().into()];
        let parameters = [weight.into(), self.bias.as_deref().into()];
        let rest = [true.into(), self.output_padding.as_slice().into(), (*groups).into()];
        x.call("aten.convolution.default", parameters.into_iter().chain(lists).chain(rest))
    }
}

impl<const N: usize> Layer for ConvTranspose<N> {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.convolve(&self.weight, x)
    }
}
