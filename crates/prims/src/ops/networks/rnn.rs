//! Recurrent layers, unrolled over a sequence of known length. The products with the inputs of all time steps are one
//! product before the loop.

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
            layers(b, c, Cell::Lstm, &[h, cell])
        }
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::gru.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)",
        |b, c| layers(b, c, Cell::Gru, &[c.value("hx")?])
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::rnn_tanh.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)",
        |b, c| layers(b, c, Cell::Tanh, &[c.value("hx")?])
    ).autocast(Autocast::LOWER_ON_GPU),
    composite!(
        "aten::rnn_relu.input(Tensor input, Tensor hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first) -> (Tensor, Tensor)",
        |b, c| layers(b, c, Cell::Relu, &[c.value("hx")?])
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

#[derive(Clone, Copy, PartialEq)]
enum Cell {
    Lstm,
    Gru,
    Tanh,
    Relu,
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

/// The weights in the order that PyTorch lists them: layer by layer, direction by direction.
fn weights(c: &Call<'_>, directions: usize, projected: bool) -> Result<Vec<Weights>, OpError> {
    let (params, biases) = (c.values("params")?, c.bool("has_biases")?);
    let each = 2 + 2 * usize::from(biases) + usize::from(projected);
    let wanted = c.int("num_layers")?.max(0) as usize * directions * each;
    if params.len() != wanted {
        return Err(c.bad_arg("params", format!("has {} tensors, not {wanted}", params.len())));
    }
    let one = |p: &[ValueId]| Weights {
        ih: p[0],
        hh: p[1],
        b_ih: biases.then(|| p[2]),
        b_hh: biases.then(|| p[3]),
        hr: projected.then(|| p[each - 1]),
    };
    Ok(params.chunks(each).map(one).collect())
}

fn layers(b: &mut Builder<'_>, c: &Call<'_>, cell: Cell, hx: &[ValueId]) -> Made {
    let (dropout, train) = (c.float("dropout")?, c.bool("train")?);
    let batch_first = c.bool("batch_first")?;
    let mut x = c.value("input")?;
    if b.rank(x)? != 3 {
        return Err(c.bad_arg("input", "must be [time, batch, features] (or batch first)"));
    }
    if batch_first {
        x = shape::swap(b, x, 0, 1)?;
    }
    let directions = 1 + usize::from(c.bool("bidirectional")?);
    // A projected hidden state is smaller than the cell state.
    let projected = match hx {
        [h, cell] => b.sizes(*h)?.last() != b.sizes(*cell)?.last(),
        _ => false,
    };
    let all = weights(c, directions, projected)?;
    let steps = shape::known(c, &b.sizes(x)?[0].clone(), "length of a recurrent sequence")?;
    let mut last: Vec<Vec<ValueId>> = vec![Vec::new(); hx.len()];
    for (layer, pair) in all.chunks(directions).enumerate() {
        if layer > 0 && train && dropout != 0.0 {
            x = b.call1("aten.dropout.default", vec![x.into(), dropout.into(), true.into()])?;
        }
        let mut outputs = Vec::new();
        for (direction, w) in pair.iter().enumerate() {
            let at = SymExpr::from_i64((layer * directions + direction) as i64);
            let state =
                hx.iter().map(|&v| shape::select(b, v, 0, at.clone())).collect::<Result<Vec<_>, _>>()?;
            let (output, state) = sequence(b, c, cell, x, state, w, steps, direction == 1)?;
            outputs.push(output);
            state.into_iter().zip(&mut last).for_each(|(v, list)| list.push(v));
        }
        x = shape::cat(b, &outputs, 2)?;
    }
    let mut outs = smallvec![if batch_first { shape::swap(b, x, 0, 1)? } else { x }];
    for list in last {
        let list = Arg::values(list);
        outs.push(b.call1("aten.stack.default", vec![list, 0i64.into()])?);
    }
    Ok(outs)
}

/// One direction of one layer: all hidden states, and the last state.
#[allow(clippy::too_many_arguments, reason = "a layer's operands")]
fn sequence(
    b: &mut Builder<'_>,
    c: &Call<'_>,
    cell: Cell,
    x: ValueId,
    mut state: Vec<ValueId>,
    w: &Weights,
    steps: i64,
    backwards: bool,
) -> Result<(ValueId, Vec<ValueId>), OpError> {
    let shares = affine(b, c, x, w.ih, w.b_ih)?;
    let mut shown = Vec::new();
    for n in 0..steps {
        let at = if backwards { steps - 1 - n } else { n };
        let share = shape::select(b, shares, 0, at.into())?;
        state = step(b, c, cell, share, &state, w)?;
        shown.push(state[0]);
    }
    if backwards {
        shown.reverse();
    }
    if shown.is_empty() {
        return Err(c.invalid("the sequence is empty"));
    }
    Ok((b.call1("aten.stack.default", vec![Arg::values(shown), 0i64.into()])?, state))
}
