//! Errors of quantized layers and models against double precision.

use std::collections::BTreeMap;

use aot_autograd::quantize::{Affine, Layer};
use fx_ir::Graph;
use tensor::Tensor;

use crate::surgery::{cut, returning};
use crate::verify::{in_double, widened};
use crate::{Error, Input, Options, Program};

/// Ratios that say nothing more: beyond these every digit of float64 is right.
const MOST: f64 = 300.0;

/// Power of a signal and of what is added to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noise {
    signal: f64,
    noise: f64,
}

impl Noise {
    /// Of one tensor.
    pub(super) fn between(wanted: &Tensor, got: &Tensor) -> Noise {
        let mut noise = Noise::default();
        noise.add(wanted, got);
        noise
    }

    /// Adds a tensor; values that are not finite where they should not be are noise without end.
    pub(super) fn add(&mut self, wanted: &Tensor, got: &Tensor) {
        for (w, g) in wanted.iter_f64().zip(got.iter_f64()).filter(|(w, _)| w.is_finite()) {
            self.signal += w * w;
            self.noise += if g.is_finite() { (w - g) * (w - g) } else { f64::INFINITY };
        }
    }

    /// The ratio in decibels.
    pub(super) fn decibels(&self) -> f64 {
        match (self.signal, self.noise) {
            (_, 0.0) => MOST,
            (0.0, _) => -MOST,
            (signal, noise) => (10.0 * (signal / noise).log10()).clamp(-MOST, MOST),
        }
    }
}

/// A model's computations in double precision.
pub(super) struct Double<'a> {
    pub(super) program: &'a Program,
    pub(super) options: &'a Options,
}

impl Double<'_> {
    /// The results of a call.
    pub(super) fn results(&self, sample: &[Input]) -> Result<Vec<Tensor>, Error> {
        self.run(self.program.graph(), &BTreeMap::new(), &wide(sample)?)
    }

    /// The signal to noise ratio of a layer that reads `input` as a quantization rounds it, with these weights.
    pub(super) fn layer(
        &self,
        layer: &Layer,
        sample: &[Input],
        input: &Tensor,
        affine: Option<&Affine>,
        weight: &Tensor,
    ) -> Result<f64, Error> {
        let graph = returning(self.program.graph(), &[layer.output]);
        let graph = cut(&graph, &[layer.input]);
        let mut inputs = wide(sample)?;
        inputs.push(widened(input)?.into());
        let exact = self.run(&graph, &BTreeMap::new(), &inputs)?;
        if let Some(affine) = affine {
            let rounded: Vec<f64> = input.iter_f64().map(|x| affine.rounded(x)).collect();
            inputs.pop();
            inputs.push(Tensor::from_vec(rounded, input.sizes())?.into());
        }
        let weights = BTreeMap::from([(layer.weight_name.clone(), weight.clone())]);
        let rounded = self.run(&graph, &weights, &inputs)?;
        let mut noise = Noise::default();
        exact.iter().zip(&rounded).for_each(|(wanted, got)| noise.add(wanted, got));
        Ok(noise.decibels())
    }

    /// Runs a graph of the model in double precision, with some weights replaced.
    fn run(
        &self,
        graph: &Graph,
        replaced: &BTreeMap<String, Tensor>,
        inputs: &[Input],
    ) -> Result<Vec<Tensor>, Error> {
        let graph = in_double(graph);
        let mut weights = BTreeMap::new();
        for (_, _, name) in graph.inputs() {
            let tensor = match replaced.get(name) {
                Some(tensor) => tensor.clone(),
                None => match self.program.weight(name) {
                    Some(tensor) => widened(tensor)?,
                    None => continue,
                },
            };
            weights.insert(name.to_owned(), tensor);
        }
        Program::from_graph(graph, &weights)?.compile(self.options)?.call_with(inputs)
    }
}

/// Inputs in double precision.
fn wide(sample: &[Input]) -> Result<Vec<Input>, Error> {
    sample
        .iter()
        .map(|input| match input {
            Input::Tensor(plugin_host::Value::Host(t)) => Ok(widened(t)?.into()),
            other => Ok(other.clone()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_in_decibels() {
        let of = |x: &[f64]| Tensor::from_vec(x.to_vec(), &[x.len()]).unwrap();
        let exact = of(&[3.0, -4.0]);
        assert!((Noise::between(&exact, &of(&[3.0, -4.5])).decibels() - 20.0).abs() < 1e-9);
        assert_eq!(Noise::between(&exact, &exact).decibels(), MOST);
        assert_eq!(Noise::between(&exact, &of(&[3.0, f64::NAN])).decibels(), -MOST);
    }
}
