//! Recurrent layers: RNN (tanh), LSTM and GRU, batch first, in one direction or in both.

use dynamo::Setting;

use super::{Module, Parameter, Visitor, join};
use crate::Error;
use crate::eager::{Input, Tensor, call_all};

/// The parameters of a recurrent layer with `GATES` gates: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, …; those
/// of the direction from the end to the beginning are named `weight_ih_l0_reverse`, ….
#[derive(Clone, Debug)]
pub struct Recurrent<const GATES: i64> {
    parameters: Vec<(String, Parameter)>,
    inputs: i64,
    hidden: i64,
    layers: i64,
    bidirectional: bool,
    dropout: f64,
    training: Setting<bool>,
}

/// A recurrent layer with tanh.
pub type Rnn = Recurrent<1>;
/// A gated recurrent unit.
pub type Gru = Recurrent<3>;
/// Long short-term memory.
pub type Lstm = Recurrent<4>;

impl<const GATES: i64> Recurrent<GATES> {
    /// From `[batch, length, inputs]` to `[batch, length, hidden]`.
    pub fn new(inputs: i64, hidden: i64, layers: i64) -> Self {
        let training = Setting::new("training", true);
        let parameters = parameters(GATES, (inputs, hidden, layers), false);
        Recurrent { parameters, inputs, hidden, layers, bidirectional: false, dropout: 0.0, training }
    }

    /// The same in both directions, to `[batch, length, 2 * hidden]`, with new parameters.
    pub fn bidirectional(self) -> Self {
        let parameters = parameters(GATES, (self.inputs, self.hidden, self.layers), true);
        Recurrent { parameters, bidirectional: true, ..self }
    }

    /// The same with dropout between layers while training.
    pub fn dropout(self, p: f64) -> Self {
        Recurrent { dropout: p, ..self }
    }

    /// A state of zeros for a batch: `[layers * directions, batch, hidden]`.
    pub fn zero_state(&self, x: &Tensor) -> Tensor {
        let states = self.layers * if self.bidirectional { 2 } else { 1 };
        Tensor::filled(super::Init::Zeros, &[states.into(), x.size(0), self.hidden.into()], x.dtype())
    }

    /// Runs over a sequence. An LSTM has two states, the hidden one and the cell's; gives the outputs and the last states.
    ///
    /// # Errors
    /// Sizes that do not fit; another number of states.
    #[track_caller]
    pub fn run(&self, x: &Tensor, states: &[&Tensor]) -> Result<(Tensor, Vec<Tensor>), Error> {
        let (target, wanted) = match GATES {
            4 => ("aten.lstm.input", 2),
            3 => ("aten.gru.input", 1),
            _ => ("aten.rnn_tanh.input", 1),
        };
        let [first, ..] = states else {
            return Err(Error::Function(format!("`{target}` takes {wanted} states, none were given")));
        };
        let states: Input = if wanted == 2 { states.into() } else { (*first).into() };
        let parameters: Vec<Tensor> = self.parameters.iter().map(|(_, p)| Tensor::clone(p)).collect();
        // Without dropout the mode does not matter, and is no condition of a captured function.
        let training = self.dropout > 0.0 && self.training.get();
        let dropout = if training { self.dropout } else { 0.0 };
        let numbers: [Input; 5] =
            [self.layers.into(), dropout.into(), training.into(), self.bidirectional.into(), true.into()];
        let inputs = [x.into(), states, (&parameters).into(), true.into()].into_iter().chain(numbers);
        let mut outs = call_all(target, inputs)?.into_iter();
        let y = outs.next().ok_or_else(|| Error::Internal("a recurrent layer gave nothing".into()))?;
        Ok((y, outs.collect()))
    }
}

/// New parameters, uniform as PyTorch initializes them.
fn parameters(
    gates: i64,
    (inputs, hidden, layers): (i64, i64, i64),
    bidirectional: bool,
) -> Vec<(String, Parameter)> {
    let bound = 1.0 / (hidden.max(1) as f64).sqrt();
    let suffixes: &[&str] = if bidirectional { &["", "_reverse"] } else { &[""] };
    let (rows, directions) = (gates * hidden, suffixes.len() as i64);
    let mut parameters = Vec::new();
    for layer in 0..layers {
        let from = if layer == 0 { inputs } else { hidden * directions };
        for suffix in suffixes {
            let mut add = |name: &str, sizes: &[i64]| {
                parameters.push((format!("{name}_l{layer}{suffix}"), Parameter::uniform(sizes, bound)));
            };
            add("weight_ih", &[rows, from]);
            add("weight_hh", &[rows, hidden]);
            add("bias_ih", &[rows]);
            add("bias_hh", &[rows]);
        }
    }
    parameters
}

impl<const GATES: i64> Module for Recurrent<GATES> {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        self.parameters.iter().for_each(|(name, p)| p.visit(&join(path, name), visitor));
        self.training.visit(&join(path, "training"), visitor);
    }
}
