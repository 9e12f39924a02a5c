//! Quantization of a model: what its layers read is observed on sample inputs, weights become integers, and layers whose error
//! is too large stay floats. The result is a model like any other, with PyTorch's operators of quantized networks, which
//! [`Program::save`] writes as an archive.
//!
//! ```no_run
//! use ferroflux::{Input, Options, Program, Tensor, quantize::Settings};
//!
//! let program = Program::load("model.pt2")?;
//! let samples: Vec<Vec<Input>> = vec![vec![Tensor::zeros(ferroflux::DType::F32, &[1, 3, 224, 224])?.into()]];
//! let quantized = program.quantize(&samples, &Settings::default(), &Options::new())?;
//! for layer in &quantized.layers {
//!     println!("{} {:.1} dB", layer.name, layer.decibels);
//! }
//! quantized.program.save("model-int8.pt2")?;
//! # Ok::<(), ferroflux::Error>(())
//! ```
//!
//! Not here: the graph transform and the observers (`aot_autograd::quantize`), and what makes products of integers of the result.

mod measure;

use std::collections::{BTreeMap, HashMap};

use aot_autograd::quantize::{Affine, Choice, Layer, Observer, QuantizedWeight, WeightForm, layers, rewrite};
use fx_ir::{InputKind, ValueId};
use ir_core::DType;
use pt2::{ExportedProgram, WeightTable};
use tensor::Tensor;

pub use aot_autograd::quantize::Observation;

use crate::surgery::returning;
use crate::{Error, Input, Options, Program};
use measure::{Double, Noise};

/// What is quantized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// Activations to `u8` with one factor and zero point, weights to 8 bits with a factor for each output channel.
    #[default]
    Static,
    /// Weights of products alone, to 8 bits with a factor for each output channel.
    WeightsInt8,
    /// Weights of products alone, to 4 bits with a factor for each group of neighbours along the sum.
    WeightsInt4 {
        /// Numbers of a group, or fewer where they do not divide a row.
        group: usize,
    },
}

/// Settings of [`Program::quantize`].
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// What is quantized.
    pub scheme: Scheme,
    /// How ranges of activations are found.
    pub observation: Observation,
    /// A layer whose result has a signal to noise ratio below this stays a float; in decibels.
    pub least_layer: f64,
    /// Layers return to floats, that with the most noise first, until the model's results have this signal to noise ratio; in
    /// decibels. None asks for nothing.
    pub least_model: Option<f64>,
}

impl Default for Settings {
    fn default() -> Settings {
        let (scheme, observation) = (Scheme::default(), Observation::default());
        Settings { scheme, observation, least_layer: 15.0, least_model: None }
    }
}

/// What was measured of a layer.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct LayerReport {
    /// The module, or the name of the result.
    pub name: String,
    /// The operator.
    pub operator: String,
    /// The weight's name.
    pub weight: String,
    /// Signal to noise of the layer's result against float64, from exact inputs; in decibels.
    pub decibels: f64,
    /// Whether it is quantized.
    pub quantized: bool,
    /// Bytes of the weight, before and after.
    pub bytes: [usize; 2],
}

/// A quantized model and what is known of it.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// The model.
    pub program: Program,
    /// All layers that could be quantized, in the order of the graph.
    pub layers: Vec<LayerReport>,
    /// Signal to noise of the model's results on the samples against float64, in decibels; `None` without samples.
    pub decibels: Option<f64>,
}

/// A layer with what would become of it.
struct Candidate {
    choice: Choice,
    weight: QuantizedWeight,
    decibels: f64,
    bytes: [usize; 2],
}

impl Program {
    /// Quantizes the model. `samples` are calls with typical inputs; with weights alone there may be none, and errors are then those of the
    /// weights.
    ///
    /// # Errors
    /// `Quantize` where there is nothing to quantize or samples are needed; those of compiling and running the model.
    pub fn quantize(
        &self,
        samples: &[Vec<Input>],
        settings: &Settings,
        options: &Options,
    ) -> Result<Quantized, Error> {
        let mut whole = self.clone();
        whole.make_weights_now()?;
        whole.require_weights()?;
        Run { program: &whole, samples, settings, options }.quantize()
    }

    /// Writes the model as an archive of `torch.export`, complete or not at all.
    ///
    /// # Errors
    /// Weights without data, what archives cannot have ([`pt2`]), and those of the file system.
    pub fn save(&self, path: impl AsRef<std::path::Path>) -> Result<(), Error> {
        let mut whole = self.clone();
        whole.make_weights_now()?;
        Ok(whole.exported().save(path)?)
    }
}

struct Run<'a> {
    program: &'a Program,
    samples: &'a [Vec<Input>],
    settings: &'a Settings,
    options: &'a Options,
}

impl Run<'_> {
    fn quantize(&self) -> Result<Quantized, Error> {
        let found: Vec<Layer> = layers(self.program.graph()).into_iter().filter(|l| self.takes(l)).collect();
        if found.is_empty() {
            return Err(Error::Quantize("it has no product or convolution with a parameter".into()));
        }
        let is_static = self.settings.scheme == Scheme::Static;
        if is_static && self.samples.is_empty() {
            return Err(Error::Quantize(
                "the ranges of activations are found on samples, and there are none".into(),
            ));
        }
        let observed = if self.samples.is_empty() { HashMap::new() } else { self.observe(&found)? };
        let candidates = found.into_iter().map(|layer| self.candidate(layer, &observed));
        let candidates: Vec<Candidate> = candidates.collect::<Result<_, Error>>()?;
        let mut kept: Vec<bool> =
            candidates.iter().map(|c| c.decibels >= self.settings.least_layer).collect();
        let truth = if self.samples.is_empty() { Vec::new() } else { self.truth()? };
        let (mut program, mut decibels) = self.assemble(&candidates, &kept, &truth)?;
        if let (Some(wanted), Some(_)) = (self.settings.least_model, decibels) {
            let mut worst: Vec<usize> = (0..candidates.len()).filter(|n| kept[*n]).collect();
            worst.sort_by(|a, b| candidates[*a].decibels.total_cmp(&candidates[*b].decibels));
            let (mut worst, mut count) = (worst.into_iter(), 1);
            // Twice as many each time: the model is measured as often as its layers have binary digits.
            while decibels.is_some_and(|db| db < wanted) && kept.contains(&true) {
                worst.by_ref().take(count).for_each(|n| kept[n] = false);
                count *= 2;
                (program, decibels) = self.assemble(&candidates, &kept, &truth)?;
            }
        }
        let report = |(c, kept): (&Candidate, &bool)| LayerReport {
            name: c.choice.layer.name.clone(),
            operator: c.choice.layer.target.clone(),
            weight: c.choice.layer.weight_name.clone(),
            decibels: c.decibels,
            quantized: *kept,
            bytes: if *kept { c.bytes } else { [c.bytes[0]; 2] },
        };
        Ok(Quantized { program, layers: candidates.iter().zip(&kept).map(report).collect(), decibels })
    }

    /// Whether the scheme has something for a layer.
    fn takes(&self, layer: &Layer) -> bool {
        let graph = self.program.graph();
        let single = |v: ValueId| graph.meta(v).is_some_and(|m| m.dtype == DType::F32);
        match self.settings.scheme {
            Scheme::Static => single(layer.input) && single(layer.weight),
            Scheme::WeightsInt8 => layer.is_product,
            // Groups are along the last dimension of what is stored, which has to be the sum.
            Scheme::WeightsInt4 { .. } => layer.is_product && layer.axis == 0 && self.group(layer) > 1,
        }
    }

    /// The length of a layer's groups: the wanted one, halved until it divides a row.
    fn group(&self, layer: &Layer) -> usize {
        let Scheme::WeightsInt4 { group } = self.settings.scheme else { return 0 };
        let row = self.program.graph().meta(layer.weight).and_then(|m| m.sizes.last()?.as_const());
        let row = row.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let mut length = group.clamp(1, row.max(1));
        while length > 1 && !row.is_multiple_of(length) {
            length /= 2;
        }
        length
    }

    /// Runs the samples on the graph that returns what layers read.
    fn observe(&self, layers: &[Layer]) -> Result<HashMap<ValueId, (Observer, Vec<Tensor>)>, Error> {
        let mut values: Vec<ValueId> = layers.iter().map(|l| l.input).collect();
        values.sort_unstable();
        values.dedup();
        let exported = self.program.exported();
        let graph = returning(&exported.graph, &values);
        let program = Program::from_graph(graph, &exported.weights)?;
        let compiled = program.compile(self.options)?;
        let new = || (Observer::new(self.settings.observation), Vec::new());
        let mut seen: HashMap<ValueId, (Observer, Vec<Tensor>)> =
            values.iter().map(|v| (*v, new())).collect();
        for sample in self.samples {
            for (v, tensor) in values.iter().zip(compiled.call_with(sample)?) {
                let Some((observer, first)) = seen.get_mut(v) else { continue };
                observer.observe(&tensor.iter_f64().collect::<Vec<f64>>());
                // Errors of layers are measured on the first sample.
                if first.is_empty() {
                    first.push(tensor);
                }
            }
        }
        Ok(seen)
    }

    fn candidate(
        &self,
        layer: Layer,
        observed: &HashMap<ValueId, (Observer, Vec<Tensor>)>,
    ) -> Result<Candidate, Error> {
        let form = match self.settings.scheme {
            Scheme::WeightsInt4 { .. } => WeightForm::Groups(self.group(&layer)),
            Scheme::Static | Scheme::WeightsInt8 => WeightForm::PerChannel,
        };
        let weight = self.program.weight(&layer.weight_name);
        let weight = weight.ok_or_else(|| Error::Quantize(format!("`{}` has no data", layer.weight_name)))?;
        let quantized = QuantizedWeight::of(weight, layer.axis, form)?;
        let seen = observed.get(&layer.input);
        let affine: Option<Affine> = match self.settings.scheme {
            Scheme::Static => seen.and_then(|(observer, _)| observer.affine()),
            _ => None,
        };
        let values = quantized.values()?;
        let decibels = match seen.and_then(|(_, first)| first.first()) {
            Some(input) => {
                let double = Double { program: self.program, options: self.options };
                let inputs = self.samples.first().map_or(&[][..], Vec::as_slice);
                double.layer(&layer, inputs, input, affine.as_ref(), &values)?
            }
            None => Noise::between(weight, &values).decibels(),
        };
        let bytes =
            [weight.nbytes(), quantized.integers.numel() * form.bits() / 8 + quantized.scales.nbytes()];
        Ok(Candidate { choice: Choice { layer, form, input: affine }, weight: quantized, decibels, bytes })
    }

    /// The results of all samples in double precision.
    fn truth(&self) -> Result<Vec<Vec<Tensor>>, Error> {
        let double = Double { program: self.program, options: self.options };
        self.samples.iter().map(|sample| double.results(sample)).collect()
    }

    /// The model with these layers quantized, and the signal to noise ratio of its results.
    fn assemble(
        &self,
        candidates: &[Candidate],
        kept: &[bool],
        truth: &[Vec<Tensor>],
    ) -> Result<(Program, Option<f64>), Error> {
        let chosen = || candidates.iter().zip(kept).filter(|(_, kept)| **kept).map(|(c, _)| c);
        let choices: Vec<Choice> = chosen().map(|c| c.choice.clone()).collect();
        let exported = self.program.exported();
        let made = rewrite(&exported.graph, &choices);
        let mut new: BTreeMap<String, Tensor> = BTreeMap::new();
        for c in chosen() {
            let Some([integers, factors, zeros]) = made.weights.get(&c.choice.layer.weight_name) else {
                continue;
            };
            new.insert(integers.clone(), c.weight.integers.clone());
            new.insert(factors.clone(), c.weight.scales.clone());
            new.insert(zeros.clone(), Tensor::zeros(DType::I64, c.weight.scales.sizes())?);
        }
        let mut weights = WeightTable::of_graph(&made.graph)?;
        weights.fill(&new)?;
        weights.fill(&exported.weights)?;
        for old in exported.weights.iter().filter(|w| w.kind == InputKind::Parameter) {
            if weights.get(&old.name).is_some() {
                weights.set_requires_grad(&old.name, old.requires_grad)?;
            }
        }
        let program = ExportedProgram { graph: made.graph, weights, ..exported.clone() };
        let program = Program::from(program).named(self.program.name());
        if truth.is_empty() {
            return Ok((program, None));
        }
        let compiled = program.compile(self.options)?;
        let mut noise = Noise::default();
        for (sample, truth) in self.samples.iter().zip(truth) {
            for (got, wanted) in compiled.call_with(sample)?.iter().zip(truth) {
                noise.add(wanted, got);
            }
        }
        Ok((program, Some(noise.decibels())))
    }
}
