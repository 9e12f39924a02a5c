//! The recurrent layers that PyTorch gives to cuDNN, in terms of the recurrences of `rnn`, which has their formulas.
//!
//! The list of weights is what is read: `weight_buf`, where it is given, holds the same values in an order of cuDNN's own, and is
//! returned as it is. `reserve`, in which cuDNN leaves for the backward what it likes, has no elements here, which is the shape that
//! PyTorch's own shape function states. So the backward depends on no contents of it: it computes the forward again from the inputs,
//! and its gradients are those of the recurrences.

use fx_ir::ValueId;
use ir_core::{DType, SymExpr};
use rustc_hash::FxHashSet;

use super::rnn::{Cell, Layers};
use crate::builder::MAX_PRIMS;
use crate::ops::gradients::backward::{mask, vjp_of_all, zeros_like};
use crate::ops::shapes::shape::Made;
use crate::{Autocast, Builder, Call, OpDef, OpError, Outs};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    // Output, last hidden and cell states (the latter empty where none is given), reserve (empty), and `weight_buf`.
    composite!(
        "aten::_cudnn_rnn(Tensor input, Tensor[] weight, int weight_stride0, Tensor? weight_buf, Tensor hx, Tensor? cx, int mode, SymInt hidden_size, SymInt proj_size, int num_layers, bool batch_first, float dropout, bool train, bool bidirectional, SymInt[] batch_sizes, Tensor? dropout_state) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        forward
    ).autocast(Autocast::LOWER_ON_GPU),
    // Gradients of input, hidden and cell states, and of each weight (of none where they are not requested).
    composite!(
        "aten::_cudnn_rnn_backward(Tensor input, Tensor[] weight, int weight_stride0, Tensor weight_buf, Tensor hx, Tensor? cx, Tensor output, Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, int mode, SymInt hidden_size, SymInt proj_size, int num_layers, bool batch_first, float dropout, bool train, bool bidirectional, SymInt[] batch_sizes, Tensor? dropout_state, Tensor reserve, bool[4] output_mask) -> (Tensor, Tensor, Tensor, Tensor[])",
        backward
    ),
];

/// Time steps of all layers and directions of a call in training. Its backward, which may be decomposed later and in another graph,
/// must not be refused for its length where the forward was not, because the reserve of this forward is nothing that cuDNN's
/// backward could read. A time step of a projected LSTM and its gradients take up to 111 prims.
const MOST_STEPS: i64 = (MAX_PRIMS / 128) as i64;

/// What `mode` numbers, as `cudnnRNNMode_t` does.
fn cell(c: &Call<'_>) -> Result<Cell, OpError> {
    Ok(match c.int("mode")? {
        0 => Cell::Relu,
        1 => Cell::Tanh,
        2 => Cell::Lstm,
        3 => Cell::Gru,
        other => return Err(c.bad_arg("mode", format!("must be from 0 to 3, not {other}"))),
    })
}

/// The layers that a call describes.
fn layers(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Layers, OpError> {
    let cell = cell(c)?;
    let packed = Some(c.ints("batch_sizes")?).filter(|sizes| !sizes.is_empty());
    let projected = c.sym("proj_size")? != SymExpr::ZERO;
    if projected && cell != Cell::Lstm {
        return Err(c.bad_arg("proj_size", "is for LSTMs alone"));
    }
    let each = c.int("weight_stride0")?;
    let biases = match each - i64::from(projected) {
        2 => false,
        4 => true,
        _ => return Err(c.bad_arg("weight_stride0", format!("does not fit the layers: {each}"))),
    };
    let layers = Layers {
        cell,
        input: c.value("input")?,
        states: states(b, c, cell)?,
        weights: c.values("weight")?,
        biases,
        projected,
        count: c.int("num_layers")?,
        directions: 1 + usize::from(c.bool("bidirectional")?),
        batch_first: c.bool("batch_first")?,
        dropout: 0.0,
        packed,
    };
    of_one_batch(b, c, &layers)?;
    if c.bool("train")? {
        fits_training(b, c, &layers)?;
    }
    Ok(layers)
}

/// Refuses states of another number of sequences, which would be broadcast.
fn of_one_batch(b: &mut Builder<'_>, c: &Call<'_>, layers: &Layers) -> Result<(), OpError> {
    let batch = match &layers.packed {
        Some(counts) => counts[0].into(),
        None => b.sizes_of_rank(layers.input, 3..=3)?[usize::from(!layers.batch_first)].clone(),
    };
    for &state in &layers.states {
        let size = b.sizes_of_rank(state, 3..=3)?[1].clone();
        b.require_equal(&size, &batch, |graph| {
            format!(
                "{}: the states are of {} sequences, not {}",
                c.name(),
                graph.size_text(&size),
                graph.size_text(&batch)
            )
        })?;
    }
    Ok(())
}

/// Refuses what only cuDNN's reserve would carry from the forward to the backward.
fn fits_training(b: &Builder<'_>, c: &Call<'_>, layers: &Layers) -> Result<(), OpError> {
    if c.float("dropout")? != 0.0 && layers.count > 1 {
        return Err(c.unsupported(
            "dropout between layers in training, because which elements are kept would be in cuDNN's reserve, which no other \
             implementation reads; call a layer at a time with dropout between them",
        ));
    }
    let time = match &layers.packed {
        Some(counts) => Some(counts.len() as i64),
        None => {
            let sizes = b.sizes_of_rank(layers.input, 3..=3)?;
            sizes[usize::from(layers.batch_first)].as_const()
        }
    };
    let steps = time.unwrap_or(0).saturating_mul(layers.count).saturating_mul(layers.directions as i64);
    if steps > MOST_STEPS {
        let what = format!("{steps} time steps of all layers in training, which are more than {MOST_STEPS}");
        return Err(c.unsupported(what));
    }
    Ok(())
}

/// The hidden state and for an LSTM the cell state, which is zero where none is given.
fn states(b: &mut Builder<'_>, c: &Call<'_>, cell: Cell) -> Result<Vec<ValueId>, OpError> {
    let hx = c.value("hx")?;
    let sizes = b.sizes_of_rank(hx, 3..=3)?;
    match (cell, c.opt_value("cx")?) {
        (Cell::Lstm, Some(cx)) => Ok(vec![hx, cx]),
        (Cell::Lstm, None) => {
            let dtype = b.dtype(hx)?;
            let sizes = [sizes[0].clone(), sizes[1].clone(), c.sym("hidden_size")?];
            Ok(vec![hx, b.full(&sizes, 0i64, dtype)?])
        }
        (_, None) => Ok(vec![hx]),
        (_, Some(_)) => Err(c.bad_arg("cx", "is for LSTMs alone")),
    }
}

/// A tensor without elements.
fn empty(b: &mut Builder<'_>, dtype: DType) -> Result<ValueId, OpError> {
    b.full(&[SymExpr::ZERO], 0i64, dtype)
}

fn forward(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let mut outs = layers(b, c)?.build(b, c)?;
    let dtype = b.dtype(outs[0])?;
    if c.is_none("cx") {
        outs.truncate(2);
        // PyTorch's kernel and its shape function differ in the dtype of what is not there.
        let stated = b.stated_dtype(2).unwrap_or(dtype);
        outs.push(empty(b, stated)?);
    }
    outs.push(empty(b, DType::U8)?);
    outs.push(match c.opt_value("weight_buf")? {
        Some(given) => given,
        None => empty(b, dtype)?,
    });
    Ok(outs)
}

fn backward(b: &mut Builder<'_>, c: &Call<'_>) -> Result<Outs, OpError> {
    let mut layers = layers(b, c)?;
    separate(b, &mut layers)?;
    let [of_input, of_hidden, of_cell, of_weights] = mask::<4>(c);
    let of_cell = of_cell && !c.is_none("cx");
    let mut operands = vec![(layers.input, of_input), (layers.states[0], of_hidden)];
    operands.extend(layers.states.get(1).map(|&cell| (cell, of_cell)));
    operands.extend(layers.weights.iter().map(|&w| (w, of_weights)));
    let wanted: Vec<ValueId> = operands.iter().filter(|(_, wanted)| *wanted).map(|(v, _)| *v).collect();
    let grads = vjp_of_all(b, &wanted, |b| {
        let results = layers.build(b, c)?;
        let mut given = Vec::new();
        for (y, name) in results.into_iter().zip(["grad_output", "grad_hy", "grad_cy"]) {
            given.extend(c.opt_value(name)?.map(|g| (y, g)));
        }
        Ok(given)
    })?;
    let mut found = Vec::new();
    for (v, grad) in wanted.into_iter().zip(grads) {
        found.push(match grad {
            Some(grad) => grad,
            None => zeros_like(b, v)?,
        });
    }
    let mut found = found.into_iter();
    let dtype = b.dtype(layers.input)?;
    let mut outs = Outs::new();
    for wanted in [of_input, of_hidden, of_cell] {
        outs.push(match wanted.then(|| found.next()).flatten() {
            Some(grad) => grad,
            None => empty(b, dtype)?,
        });
    }
    outs.extend(found);
    Ok(outs)
}

/// Gives each operand a value of its own, because those that are one tensor in the program (both states of zeros) have a gradient each.
fn separate(b: &mut Builder<'_>, layers: &mut Layers) -> Result<(), OpError> {
    let mut seen = FxHashSet::default();
    let operands = [&mut layers.input].into_iter().chain(&mut layers.states).chain(&mut layers.weights);
    for v in operands {
        if !seen.insert(*v) {
            let sizes = b.sizes(*v)?;
            *v = b.call1("prims.reshape", vec![(*v).into(), sizes[..].into()])?;
        }
    }
    Ok(())
}
