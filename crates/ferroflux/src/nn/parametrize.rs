//! Layers whose weight is computed from other parameters at every call: weight norm and spectral norm. The names are those of
//! `torch.nn.utils.parametrizations`.

use dynamo::{Setting, no_grad};

use super::{Buffer, Conv, ConvTranspose, Init, Layer, Linear, Module, Parameter, Visitor, join};
use crate::Error;
use crate::eager::Tensor;

/// A layer whose weight may be another tensor.
pub trait Weighted: Layer {
    /// Its weight.
    fn weight(&self) -> &Parameter;
    /// The dimension of the outputs in its weight.
    fn outputs(&self) -> usize {
        0
    }
    /// What it computes with this weight instead of its own.
    #[track_caller]
    fn forward_with(&self, weight: &Tensor, x: &Tensor) -> Tensor;
}

impl Weighted for Linear {
    fn weight(&self) -> &Parameter {
        &self.weight
    }
    fn forward_with(&self, weight: &Tensor, x: &Tensor) -> Tensor {
        x.call("aten.linear.default", [weight.into(), self.bias.as_deref().into()])
    }
}

impl<const N: usize> Weighted for Conv<N> {
    fn weight(&self) -> &Parameter {
        &self.weight
    }
    fn forward_with(&self, weight: &Tensor, x: &Tensor) -> Tensor {
        self.convolve(weight, x)
    }
}

impl<const N: usize> Weighted for ConvTranspose<N> {
    fn weight(&self) -> &Parameter {
        &self.weight
    }
    fn outputs(&self) -> usize {
        1
    }
    fn forward_with(&self, weight: &Tensor, x: &Tensor) -> Tensor {
        self.convolve(weight, x)
    }
}

/// Passes everything on but the weight, which other parameters replace.
struct WithoutWeight<'v> {
    name: String,
    visitor: &'v mut dyn Visitor,
}

impl Visitor for WithoutWeight<'_> {
    fn parameter(&mut self, name: &str, tensor: &Tensor) {
        if name != self.name {
            self.visitor.parameter(name, tensor);
        }
    }
    fn buffer(&mut self, name: &str, tensor: &Tensor, persistent: bool) {
        self.visitor.buffer(name, tensor, persistent);
    }
    fn mode(&mut self, name: &str, training: &Setting<bool>) {
        self.visitor.mode(name, training);
    }
}

fn visit_rest(layer: &dyn Module, path: &str, visitor: &mut dyn Visitor) {
    layer.visit(path, &mut WithoutWeight { name: join(path, "weight"), visitor });
}

/// The norm over all dimensions but one, which keep the size 1.
fn norm_except(x: &Tensor, dim: usize) -> Tensor {
    let others: Vec<i64> = (0..x.rank()).filter(|&d| d != dim).map(|d| d as i64).collect();
    x.square().sum_dims(&others, true).sqrt()
}

/// A layer whose weight is `magnitude * direction / |direction|`, with a norm for each output (of a transposed convolution each
/// input), as `weight_norm` with its default dimension.
#[derive(Clone, Debug)]
pub struct WeightNorm<L> {
    layer: L,
    /// `parametrizations.weight.original0`: `[outputs, 1, …]`.
    pub magnitude: Parameter,
    /// `parametrizations.weight.original1`: of the weight's sizes.
    pub direction: Parameter,
}

impl<L: Weighted> WeightNorm<L> {
    /// Takes the layer's weight apart, which stays what it is.
    pub fn new(layer: L) -> WeightNorm<L> {
        let weight = layer.weight().detach();
        let (magnitude, direction) =
            (Parameter::new(norm_except(&weight, 0).detach()), Parameter::new(weight.copied()));
        WeightNorm { layer, magnitude, direction }
    }

    /// The weight that calls use.
    #[track_caller]
    pub fn weight(&self) -> Tensor {
        &*self.direction * (&*self.magnitude / norm_except(&self.direction, 0))
    }
}

impl<L: Weighted> Module for WeightNorm<L> {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        visit_rest(&self.layer, path, visitor);
        self.magnitude.visit(&join(path, "parametrizations.weight.original0"), visitor);
        self.direction.visit(&join(path, "parametrizations.weight.original1"), visitor);
    }
}

impl<L: Weighted> Layer for WeightNorm<L> {
    fn forward(&self, x: &Tensor) -> Tensor {
        self.layer.forward_with(&self.weight(), x)
    }
}

/// A layer whose weight is divided by its largest singular value as a matrix `[outputs, rest]`, which power iteration
/// estimates: one more step at every call while training.
#[derive(Clone, Debug)]
pub struct SpectralNorm<L> {
    layer: L,
    /// `parametrizations.weight.original`: of the weight's sizes.
    pub original: Parameter,
    left: Buffer,
    right: Buffer,
    training: Setting<bool>,
}

/// Steps of power iteration when the layer is made.
const FIRST_STEPS: usize = 15;
/// The smallest norm that a vector is divided by.
const EPS: f64 = 1e-12;

impl<L: Weighted> SpectralNorm<L> {
    /// Estimates the singular value of the layer's weight.
    ///
    /// # Errors
    /// A weight with fewer than two dimensions, or without elements.
    pub fn new(layer: L) -> Result<SpectralNorm<L>, Error> {
        let weight = layer.weight().detach();
        if weight.rank() < 2 {
            let what = format!("spectral norm: a weight of sizes {:?} is no matrix", weight.shape());
            return Err(Error::Function(what));
        }
        let matrix = matrix_of(&weight, layer.outputs());
        let random = |n: i64| normalized(&Tensor::filled(Init::Normal, &[n], weight.dtype()));
        let (mut u, mut v) = (random(matrix.size(0).get()), random(matrix.size(1).get()));
        for _ in 0..FIRST_STEPS {
            (u, v) = step(&matrix, &v);
        }
        Ok(SpectralNorm {
            layer,
            original: Parameter::new(weight.copied()),
            left: Buffer::new(u),
            right: Buffer::new(v),
            training: Setting::new("training", true),
        })
    }

    /// The weight that calls use; in training with one more step of power iteration.
    ///
    /// # Errors
    /// The vectors of power iteration cannot be written.
    #[track_caller]
    pub fn weight(&self) -> Result<Tensor, Error> {
        let matrix = matrix_of(&self.original, self.layer.outputs());
        if self.training.get() {
            no_grad(|| {
                let (u, v) = step(&matrix.detach(), &self.right);
                self.left.copy_(&u)?;
                self.right.copy_(&v).map(|_| ())
            })?;
        }
        // Copies: a later step must not change what a gradient needs.
        let (u, v) = (self.left.copied(), self.right.copied());
        let sigma = (matrix.matmul(&v) * u).sum();
        Ok(&*self.original / sigma)
    }
}

/// The weight as a matrix with the outputs as rows.
fn matrix_of(weight: &Tensor, outputs: usize) -> Tensor {
    let weight = if outputs == 0 { weight.clone() } else { weight.transpose(0, outputs as i64) };
    weight.flatten(1, -1)
}

fn normalized(x: &Tensor) -> Tensor {
    x / x.square().sum().sqrt().clamp(Some(EPS), None)
}

/// One step of power iteration: `u` from `v`, then `v` from `u`.
fn step(matrix: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
    let u = normalized(&matrix.matmul(v));
    let v = normalized(&matrix.t().matmul(&u));
    (u, v)
}

impl<L: Weighted> Module for SpectralNorm<L> {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        visit_rest(&self.layer, path, visitor);
        self.original.visit(&join(path, "parametrizations.weight.original"), visitor);
        self.left.visit(&join(path, "parametrizations.weight.0._u"), visitor);
        self.right.visit(&join(path, "parametrizations.weight.0._v"), visitor);
        self.training.visit(&join(path, "training"), visitor);
    }
}

impl<L: Weighted> Layer for SpectralNorm<L> {
    fn forward(&self, x: &Tensor) -> Tensor {
        match self.weight() {
            Ok(weight) => self.layer.forward_with(&weight, x),
            Err(error) => Tensor::refused(&error),
        }
    }
}
