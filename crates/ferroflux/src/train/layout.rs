//! How the state of a training step lies in memory: weights of convolutions channels-last, and with them all that the
//! optimizer keeps for them. So libraries and tiles read them as they lie, gradients to them are computed in the same
//! order, and the update walks over all of them side by side; row-major weights would be laid out anew at every call, once
//! for each convolution that reads them.
//!
//! Only the program and the kept tensors know of it: graphs name elements by index, and what leaves the state is
//! row-major as ever. Not here: the layouts of computed values (`inductor`) and of weights that no call changes (the backend's).

use std::collections::BTreeMap;

use fx_ir::{Arg, Graph, InputKind, NodeKind, Output, OutputKind, ValueId, ValueType};
use ir_core::{DType, SymExpr, TensorMeta};
use prims::Call;
use serde::{Deserialize, Serialize};
use tensor::{Strides, Tensor};

use super::graphs::written;
use super::update::Slot;
use crate::Error;

/// Tensors of the state that lie otherwise than the caller knows them, by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Layouts(BTreeMap<String, Strides>);

impl Layouts {
    /// Where it is `wanted`, gives the trained weights of the graph's convolutions, and what the optimizer keeps for them,
    /// channels-last strides; elsewhere placeholders stay as they are.
    pub(crate) fn of(graph: &mut Graph, slots: &[Slot], wanted: bool) -> Layouts {
        let mut layouts = BTreeMap::new();
        let weights = if wanted { weights(graph) } else { Vec::new() };
        for weight in weights {
            let Some(of) = name_of(graph, weight) else { continue };
            let kept: Vec<&str> =
                slots.iter().filter(|s| s.parameter == of).map(|s| s.name.as_str()).collect();
            let all: Vec<(ValueId, String)> = graph
                .inputs()
                .filter(|(v, _, name)| *v == weight || kept.contains(name))
                .map(|(v, _, name)| (v, name.to_owned()))
                .collect();
            for (v, name) in all {
                let ValueType::Tensor(meta) = &mut graph.values[v].ty else { continue };
                let Some(strides) = channels_last(meta) else { continue };
                meta.strides = strides.iter().map(|s| SymExpr::from_i64(*s as i64)).collect();
                layouts.insert(name, strides);
            }
        }
        Layouts(layouts)
    }

    /// A tensor of the state as the program reads it.
    pub(crate) fn laid_out(&self, name: &str, tensor: Tensor) -> Result<Tensor, Error> {
        match self.0.get(name) {
            Some(strides) => restrided(&tensor, strides),
            None => Ok(tensor),
        }
    }

    /// Zeros as the program reads them.
    pub(crate) fn zeros(&self, name: &str, dtype: DType, sizes: &[usize]) -> Result<Tensor, Error> {
        Ok(match self.0.get(name) {
            Some(strides) => Tensor::empty_strided(dtype, sizes, strides)?,
            None => Tensor::zeros(dtype, sizes)?,
        })
    }

    /// A copy of a tensor of the state as the caller knows it.
    pub(crate) fn restored(&self, name: &str, tensor: Tensor) -> Result<Tensor, Error> {
        if self.0.contains_key(name) { Ok(tensor.contiguous()?) } else { Ok(tensor) }
    }
}

/// The same elements with other strides.
pub(crate) fn restrided(tensor: &Tensor, strides: &[isize]) -> Result<Tensor, Error> {
    if tensor.strides() == strides {
        return Ok(tensor.clone());
    }
    // Dense strides are a row-major copy of the dimensions in another order.
    let mut order: Vec<usize> = (0..tensor.rank()).collect();
    order.sort_by_key(|&d| (std::cmp::Reverse(strides[d]), d));
    let dense = tensor.permute(&order)?.copied()?;
    let same = |(n, &d): (usize, &usize)| tensor.sizes()[d] <= 1 || dense.strides()[n] == strides[d];
    if order.iter().enumerate().all(same) {
        return Ok(dense.as_strided(tensor.sizes(), strides, 0)?);
    }
    let place = Tensor::empty_strided(tensor.dtype(), tensor.sizes(), strides)?;
    let storage = place.storage_with(tensor)?;
    Ok(place.with_storage(storage)?)
}

/// The placeholders that convolutions read as weights, as they are or converted to another dtype, that the graph gives new
/// values and that it does not return to the caller.
fn weights(graph: &Graph) -> Vec<ValueId> {
    let changed = written(graph);
    let mut found: Vec<ValueId> = Vec::new();
    for (_, node) in graph.iter() {
        let called = node.as_call().and_then(|(target, args)| call(target, args));
        let Some(conv) = called.filter(|c| c.op.target == "prims.conv") else { continue };
        let Ok(mut weight) = conv.value("weight") else { continue };
        while let Some(from) = converted(graph, weight) {
            weight = from;
        }
        let kept = |o: &Output| matches!(o.kind, OutputKind::BufferMutation(_));
        let returned = graph.outputs.iter().any(|o| o.arg == Arg::Value(weight) && !kept(o));
        let trained = name_of(graph, weight).is_some_and(|name| changed.contains(&name));
        if trained && !returned && !found.contains(&weight) {
            found.push(weight);
        }
    }
    found
}

fn call<'g>(target: &str, args: &'g [Arg]) -> Option<Call<'g>> {
    prims::lookup(target).map(|op| Call { op, args })
}

/// What a value is a conversion of.
fn converted(graph: &Graph, v: ValueId) -> Option<ValueId> {
    let (target, args) = graph.nodes[graph.values[v].def].as_call()?;
    let call = call(target, args).filter(|call| call.op.target == "prims.convert")?;
    call.value("a").ok()
}

/// The name of a parameter.
fn name_of(graph: &Graph, v: ValueId) -> Option<&str> {
    match &graph.nodes[graph.values[v].def].kind {
        NodeKind::Placeholder { kind: InputKind::Parameter, name } => Some(name),
        _ => None,
    }
}

/// Dense strides with the channels innermost, for a tensor that is row-major; `None` where the two are the same order, and
/// where a size is symbolic.
fn channels_last(meta: &TensorMeta) -> Option<Strides> {
    let rank = meta.sizes.len();
    let number = |e: &SymExpr| e.as_const().and_then(|n| isize::try_from(n).ok());
    let sizes: Vec<isize> = meta.sizes.iter().map(number).collect::<Option<_>>()?;
    let own: Vec<isize> = meta.strides.iter().map(number).collect::<Option<_>>()?;
    if rank < 3 || own.len() != rank || !meta.dtype.is_float() {
        return None;
    }
    let dense = |order: &mut dyn Iterator<Item = usize>| {
        let (mut strides, mut step): (Strides, isize) = (sizes.iter().map(|_| 1).collect(), 1);
        for d in order {
            strides[d] = step;
            step = step.checked_mul(sizes[d].max(1))?;
        }
        Some(strides)
    };
    let same = |a: &[isize], b: &[isize]| (0..rank).all(|d| sizes[d] == 1 || a[d] == b[d]);
    let last = dense(&mut [1].into_iter().chain((2..rank).rev()).chain([0]))?;
    (same(&own, &dense(&mut (0..rank).rev())?) && !same(&own, &last)).then_some(last)
}
