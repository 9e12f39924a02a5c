//! Recurrent layers, unrolled over a sequence of known length. The products with the inputs of all time steps are one
//! product before the loop. Not here: the operators of cuDNN (`cudnn_rnn`), which state these layers in another way.

use fx_ir::{Arg, ValueId};
use ir_core::SymExpr;
use smallvec::smallvec;

use crate::ops::matrices::matmul::product;
use crate::ops::shapes::shape::{self, Made, out};
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::lstm.input(Tensor input, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor, Tensor)",
        |b, c| {
            let hx = c.values("hx")?;
            let [h, cell] = hx[..] else {
                return Err(c.bad_arg("hx", "must be the hidden and the cell state"));
            };
            layers(b, c, Cell::Lstm, vec![h, cell])
        }
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::gru.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)",
        |b, c| layers(b, c, Cell::Gru, vec![c.value("hx")?])
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::rnn_tanh.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)",
        |b, c| layers(b, c, Cell::Tanh, vec![c.value("hx")?])
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::rnn_relu.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)",
        |b, c| layers(b, c, Cell::Relu, vec![c.value("hx")?])
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::lstm_cell(Tensor input, Tensor[] hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> (Tensor, Tensor)",
        |b, c| {
            let hx = c.values("hx")?;
            let state = one_step(b, c, Cell::Lstm, &hx)?;
            Ok(state.into_iter().collect())
        }
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::gru_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor",
        |b, c| single(b, c, Cell::Gru)
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::rnn_tanh_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor",
        |b, c| single(b, c, Cell::Tanh)
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::rnn_relu_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor",
        |b, c| single(b, c, Cell::Relu)
    ).autocast(Autocast::LOWER_ON_GPU),
];

/// What one time step computes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Cell {
    Lstm,
    Gru,
    Tanh,
    Relu,
}

/// Several recurrent layers with their operands.
pub(super) struct Layers {
    pub(super) cell: Cell,
    /// `[time, batch, features]`, or batch first; the rows of packed sequences are `[rows, features]`.
    pub(super) input: ValueId,
    /// The hidden state and for an LSTM the cell state, `[layers * directions, batch, size]`.
    pub(super) states: Vec<ValueId>,
    /// The weights in the order that PyTorch lists them: layer by layer, direction by direction.
    pub(super) weights: Vec<ValueId>,
    pub(super) biases: bool,
    /// Whether a last weight projects the hidden state.
    pub(super) projected: bool,
    pub(super) count: i64,
    pub(super) directions: usize,
    pub(super) batch_first: bool,
    /// The probability to drop an element between layers.
    pub(super) dropout: f64,
    /// Where sequences are packed, how many are as long as each time step, not rising.
    pub(super) packed: Option<Vec<i64>>,
}

/// Weights of one direction of one layer.
struct Weights {
    ih: ValueId,
    hh: ValueId,
    b_ih: Option<ValueId>,
    b_hh: Option<ValueId>,
    /// Projection of the hidden state.
    hr: Option<ValueId>,
}

fn single(b: &mut Builder<'_>, c: &Call<'_>, cell: Cell) -> Made {
    let state = one_step(b, c, cell, &[c.value("hx")?])?;
    out(state[0])
}

fn one_step(b: &mut Builder<'_>, c: &Call<'_>, cell: Cell, hx: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
    let w = Weights {
        ih: c.value("w_ih")?,
        hh: c.value("w_hh")?,
        b_ih: c.opt_value("b_ih")?,
        b_hh: c.opt_value("b_hh")?,
        hr: None,
    };
    let x = affine(b, c, c.value("input")?, w.ih, w.b_ih)?;
    step(b, c, cell, x, hx, &w)
}

/// `x wᵀ + bias`.
fn affine(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    x: ValueId,
    w: ValueId,
    bias: Option<ValueId>,
) -> Result<ValueId, OpError> {
    let w = b.permute(w, &[1, 0])?;
    let y = product(b, c, x, w)?;
    match bias {
        Some(bias) => b.add(y, bias),
        None => Ok(y),
    }
}

fn sigmoid(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId, OpError> {
    b.call1("aten.sigmoid.default", vec![x.into()])
}

/// `n` equal parts of the last dimension.
fn gates(b: &mut Builder<'_>, x: ValueId, n: i64) -> Result<Vec<ValueId>, OpError> {
    let d = b.rank(x)? - 1;
    let each = b.sizes(x)?[d].floor_div(&n.into());
    (0..n).map(|g| b.slice(x, d, &each * g, each.clone(), 1)).collect()
}

/// The next state from the inputs' share `x` of the gates.
fn step(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    cell: Cell,
    x: ValueId,
    state: &[ValueId],
    w: &Weights,
) -> Result<Vec<ValueId>, OpError> {
    let h = *state.first().ok_or_else(|| c.bad_arg("hx", "is empty"))?;
    let own = affine(b, c, h, w.hh, w.b_hh)?;
    match cell {
        Cell::Tanh | Cell::Relu => {
            let sum = b.add(x, own)?;
            let next = if cell == Cell::Tanh {
                b.tanh(sum)?
            } else {
                b.call1("aten.relu.default", vec![sum.into()])?
            };
            Ok(vec![next])
        }
        Cell::Lstm => {
            let memory = *state.get(1).ok_or_else(|| c.bad_arg("hx", "lacks the cell state"))?;
            let sum = b.add(x, own)?;
            let g = gates(b, sum, 4)?;
            let (input, forget, out) = (sigmoid(b, g[0])?, sigmoid(b, g[1])?, sigmoid(b, g[3])?);
            let new = b.tanh(g[2])?;
            let (kept, added) = (b.mul(forget, memory)?, b.mul(input, new)?);
            let memory = b.add(kept, added)?;
            let shown = b.tanh(memory)?;
            let mut h = b.mul(out, shown)?;
            if let Some(hr) = w.hr {
                h = affine(b, c, h, hr, None)?;
            }
            Ok(vec![h, memory])
        }
        Cell::Gru => {
            let (gx, gh) = (gates(b, x, 3)?, gates(b, own, 3)?);
            let reset = b.add(gx[0], gh[0])?;
            let reset = sigmoid(b, reset)?;
            let update = b.add(gx[1], gh[1])?;
            let update = sigmoid(b, update)?;
            let past = b.mul(reset, gh[2])?;
            let new = b.add(gx[2], past)?;
            let new = b.tanh(new)?;
            // new + update * (h - new)
            let change = b.sub(h, new)?;
            let change = b.mul(update, change)?;
            Ok(vec![b.add(new, change)?])
        }
    }
}

fn layers(b: &mut Builder<'_>, c: &Call<'_>, cell: Cell, states: Vec<ValueId>) -> Made {
    // A projected hidden state is smaller than the cell state.
    let projected = match states[..] {
        [h, cell] => b.sizes(h)?.last() != b.sizes(cell)?.last(),
        _ => false,
    };
    let stated = Layers {
        cell,
        input: c.value("input")?,
        states,
        weights: c.values("params")?,
        biases: c.bool("has_biases")?,
        projected,
        count: c.int("num_layers")?,
        directions: 1 + usize::from(c.bool("bidirectional")?),
        batch_first: c.bool("batch_first")?,
        dropout: if c.bool("train")? { c.float("dropout")? } else { 0.0 },
        packed: None,
    };
    stated.build(b, c)
}

impl Layers {
    /// All outputs of the last layer, and the last states of each direction of each layer.
    pub(super) fn build(&self, b: &mut Builder<'_>, c: &Call<'_>) -> Made {
        let mut x = self.input;
        let rank = if self.packed.is_some() { 2 } else { 3 };
        if b.rank(x)? != rank {
            return Err(c.bad_arg("input", "must be [time, batch, features] (or batch first)"));
        }
        let swapped = self.batch_first && self.packed.is_none();
        if swapped {
            x = shape::swap(b, x, 0, 1)?;
        }
        let all = self.weights(c)?;
        let rows = self.rows(b, c, x)?;
        let mut last: Vec<Vec<ValueId>> = vec![Vec::new(); self.states.len()];
        for (layer, pair) in all.chunks(self.directions).enumerate() {
            if layer > 0 && self.dropout != 0.0 {
                x = b.call1("aten.dropout.default", vec![x.into(), self.dropout.into(), true.into()])?;
            }
            let mut outputs = Vec::new();
            for (direction, w) in pair.iter().enumerate() {
                let at = SymExpr::from_i64((layer * self.directions + direction) as i64);
                let state = self.states.iter().map(|&v| shape::select(b, v, 0, at.clone()));
                let state = state.collect::<Result<Vec<_>, _>>()?;
                let (output, state) = sequence(b, c, self.cell, x, state, w, &rows, direction == 1)?;
                outputs.push(output);
                state.into_iter().zip(&mut last).for_each(|(v, list)| list.push(v));
            }
            x = shape::cat(b, &outputs, rank - 1)?;
        }
        let mut outs = smallvec![if swapped { shape::swap(b, x, 0, 1)? } else { x }];
        for list in last {
            let list = Arg::values(list);
            outs.push(b.call1("aten.stack.default", vec![list, 0i64.into()])?);
        }
        Ok(outs)
    }

    fn weights(&self, c: &Call<'_>) -> Result<Vec<Weights>, OpError> {
        let each = 2 + 2 * usize::from(self.biases) + usize::from(self.projected);
        let wanted = self.count.max(0) as usize * self.directions * each;
        if self.weights.len() != wanted {
            return Err(c.invalid(format!("has {} weights, not {wanted}", self.weights.len())));
        }
        let one = |p: &[ValueId]| Weights {
            ih: p[0],
            hh: p[1],
            b_ih: self.biases.then(|| p[2]),
            b_hh: self.biases.then(|| p[3]),
            hr: self.projected.then(|| p[each - 1]),
        };
        Ok(self.weights.chunks(each).map(one).collect())
    }

    /// Which rows of the input, whose time is its first dimension, are which time step.
    fn rows(&self, b: &mut Builder<'_>, c: &Call<'_>, x: ValueId) -> Result<Rows, OpError> {
        let first = b.sizes(x)?[0].clone();
        let Some(counts) = &self.packed else {
            return Ok(Rows::Steps(shape::known(c, &first, "length of a recurrent sequence")?));
        };
        if counts.iter().any(|&n| n <= 0) || !counts.is_sorted_by(|a, b| a >= b) {
            return Err(c.invalid("the numbers of packed sequences must be positive and must not rise"));
        }
        let sum: i64 = counts.iter().sum();
        b.require_equal(&first, &sum.into(), |graph| {
            format!("the input has {} rows, its packed sequences have {sum}", graph.size_text(&first))
        })?;
        Ok(Rows::Packed(counts.clone()))
    }
}

/// How the time steps lie in the first dimension.
enum Rows {
    /// Each is one element, so many of them.
    Steps(i64),
    /// Each is a row for every sequence that is long enough, so many of them.
    Packed(Vec<i64>),
}

impl Rows {
    fn steps(&self) -> usize {
        match self {
            Rows::Steps(n) => (*n).max(0) as usize,
            Rows::Packed(counts) => counts.len(),
        }
    }
    /// Time step `n` of the rows, `[batch, size]`.
    fn step(&self, b: &mut Builder<'_>, v: ValueId, n: usize) -> Result<ValueId, OpError> {
        match self {
            Rows::Steps(_) => shape::select(b, v, 0, (n as i64).into()),
            Rows::Packed(counts) => {
                let before: i64 = counts[..n].iter().sum();
                b.slice(v, 0, before.into(), counts[n].into(), 1)
            }
        }
    }
    /// The opposite of `step` of all steps.
    fn join(&self, b: &mut Builder<'_>, steps: Vec<ValueId>) -> Result<ValueId, OpError> {
        match self {
            Rows::Steps(_) => b.call1("aten.stack.default", vec![Arg::values(steps), 0i64.into()]),
            Rows::Packed(_) => shape::cat(b, &steps, 0),
        }
    }
}

/// The states of those sequences that a time step has. Packed sequences are sorted by length: the first ones are the longest.
struct Running {
    /// The states before the first step, of all sequences.
    initial: Vec<ValueId>,
    state: Vec<ValueId>,
    /// States of sequences that have ended, the shortest ones first.
    ended: Vec<Vec<ValueId>>,
    /// The number of sequences in `state`, once a step has said how many it has.
    held: Option<i64>,
}

impl Running {
    /// All sequences, before the first step.
    fn new(initial: Vec<ValueId>) -> Running {
        Running { state: initial.clone(), ended: vec![Vec::new(); initial.len()], initial, held: None }
    }
    /// Takes in sequences that begin with a step of `count` sequences, and sets aside those that have ended before it.
    fn resize(&mut self, b: &mut Builder<'_>, count: i64) -> Result<(), OpError> {
        let Some(held) = self.held.replace(count) else {
            let first = |&v: &ValueId| b.slice(v, 0, SymExpr::ZERO, count.into(), 1);
            self.state = self.initial.iter().map(first).collect::<Result<_, _>>()?;
            return Ok(());
        };
        for (n, v) in self.state.iter_mut().enumerate() {
            if count > held {
                let begun = b.slice(self.initial[n], 0, held.into(), (count - held).into(), 1)?;
                *v = shape::cat(b, &[*v, begun], 0)?;
            } else if count < held {
                self.ended[n].push(b.slice(*v, 0, count.into(), (held - count).into(), 1)?);
                *v = b.slice(*v, 0, SymExpr::ZERO, count.into(), 1)?;
            }
        }
        Ok(())
    }
    /// The last states of all sequences.
    fn last(self, b: &mut Builder<'_>) -> Result<Vec<ValueId>, OpError> {
        let whole = |(v, ended): (ValueId, Vec<ValueId>)| {
            let parts: Vec<ValueId> = [v].into_iter().chain(ended.into_iter().rev()).collect();
            if parts.len() == 1 { Ok(v) } else { shape::cat(b, &parts, 0) }
        };
        self.state.into_iter().zip(self.ended).map(whole).collect()
    }
}

/// One direction of one layer: all hidden states, and the last state.
#[allow(clippy::too_many_arguments, reason = "a layer's operands")]
fn sequence(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    cell: Cell,
    x: ValueId,
    initial: Vec<ValueId>,
    w: &Weights,
    rows: &Rows,
    backwards: bool,
) -> Result<(ValueId, Vec<ValueId>), OpError> {
    let shares = affine(b, c, x, w.ih, w.b_ih)?;
    let mut shown = Vec::new();
    let mut running = Running::new(initial);
    for n in 0..rows.steps() {
        let at = if backwards { rows.steps() - 1 - n } else { n };
        if let Rows::Packed(counts) = rows {
            running.resize(b, counts[at])?;
        }
        let share = rows.step(b, shares, at)?;
        running.state = step(b, c, cell, share, &running.state, w)?;
        shown.push(running.state[0]);
    }
    if backwards {
        shown.reverse();
    }
    if shown.is_empty() {
        return Err(c.invalid("the sequence is empty"));
    }
    Ok((rows.join(b, shown)?, running.last(b)?))
}
