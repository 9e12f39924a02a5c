//! Recurrent layers: RNN (tanh), LSTM and GRU, batch first, in one direction.

use dynamo::Setting;

use super::{Module, Parameter, Visitor, join};
use crate::Error;
use crate::eager::{Input, Tensor, call_all};

/// The parameters of a recurrent layer with `GATES` gates: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, ….
#[derive(Clone, Debug)]
pub struct Recurrent<const GATES: i64> {
    parameters: Vec<(String, Parameter)>,
    hidden: i64,
    layers: i64,
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
        let bound = 1.0 / (hidden.max(1) as f64).sqrt();
        let mut parameters = Vec::new();
        for layer in 0..layers {
            let from = if layer == 0 { inputs } else { hidden };
            let rows = GATES * hidden;
            let mut add = |name: &str, sizes: &[i64]| {
                parameters.push((format!("{name}_l{layer}"), Parameter::uniform(sizes, bound)));
            };
            add("weight_ih", &[rows, from]);
            add("weight_hh", &[rows, hidden]);
            add("bias_ih", &[rows]);
            add("bias_hh", &[rows]);
        }
        Recurrent { parameters, hidden, layers, training: Setting::new("training", true) }
    }

    /// A state of zeros for a batch: `[layers, batch, hidden]`.
    pub fn zero_state(&self, x: &Tensor) -> Tensor {
        Tensor::filled(super::Init::Zeros, &[self.layers.into(), x.size(0), self.hidden.into()], x.dtype())
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
        let numbers: [Input; 5] =
            [self.layers.into(), 0.0.into(), self.training.get().into(), false.into(), true.into()];
        let inputs = [x.into(), states, (&parameters).into(), true.into()].into_iter().chain(numbers);
        let mut outs = call_all(target, inputs)?.into_iter();
        let y = outs.next().ok_or_else(|| Error::Internal("a recurrent layer gave nothing".into()))?;
        Ok((y, outs.collect()))
    }
}

impl<const GATES: i64> Module for Recurrent<GATES> {
    fn visit(&self, path: &str, visitor: &mut dyn Visitor) {
        self.parameters.iter().for_each(|(name, p)| p.visit(&join(path, name), visitor));
        self.training.visit(&join(path, "training"), visitor);
    }
}
