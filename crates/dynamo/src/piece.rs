//! A piece of a program: the recorded calls that must run so that some values are there. Values that the program can still
//! reach are results of the piece, so that nothing runs twice; all others exist within fused kernels alone.

use std::sync::Arc;

use fx_ir::{Arg, Graph, Output, OutputKind};
use ir_core::DType;
use prims::OpError;
use tensor::Tensor;

use crate::key::Key;
use crate::node::Value;
use crate::walk::Walk;

/// Recorded calls that are to run.
pub struct Piece {
    walk: Walk,
    /// The calls whose results are stored.
    stored: Vec<usize>,
    key: PieceKey,
}

/// Equal keys are equal computations on equal types.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PieceKey(Key);

fn has_data(value: &Value) -> bool {
    value.call.is_computed()
}

impl Piece {
    /// What must run for these values.
    pub fn of(wanted: &[Value]) -> Piece {
        let walk = Walk::new(wanted, has_data, Value::resolved);
        let mut stored: Vec<bool> = vec![false; walk.calls.len()];
        for value in wanted {
            if let Some(place) = walk.place_of(value) {
                stored[place] = true;
            }
        }
        for (n, call) in walk.calls.iter().enumerate() {
            // One handle is the walk's own; more than those of the operands within are the program's.
            stored[n] |= Arc::strong_count(call) > walk.uses[n] + 1;
        }
        let stored: Vec<usize> = (0..stored.len()).filter(|n| stored[*n]).collect();
        let mut key = walk.key();
        stored.iter().for_each(|n| key.number(*n as u64));
        Piece { walk, stored, key: PieceKey(key) }
    }

    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.walk.calls.is_empty()
    }

    /// The key of its compiled form.
    pub fn key(&self) -> &PieceKey {
        &self.key
    }

    /// The key of its compiled form for any sizes of what it reads; with `any_float` also for any floats.
    pub fn class(&self, any_float: bool) -> PieceKey {
        let mut key = self.walk.class(any_float);
        self.stored.iter().for_each(|n| key.number(*n as u64));
        PieceKey(key)
    }

    /// The sizes of what it reads.
    pub fn sizes(&self) -> impl Iterator<Item = &[i64]> {
        self.walk.leaves.iter().map(|leaf| &leaf.meta().sizes[..])
    }

    /// The floats among the arguments of its calls.
    pub fn floats(&self) -> Vec<f64> {
        self.walk.floats()
    }

    /// The number of its calls.
    pub fn calls(&self) -> usize {
        self.walk.calls.len()
    }

    /// The tensors that it reads, in the order of the graph's placeholders.
    pub fn inputs(&self) -> Vec<Tensor> {
        self.walk.leaves.iter().filter_map(|v| v.data().cloned()).collect()
    }

    /// It as a graph of prims, in which the dimensions of inputs for which `symbolic` holds (number of the input, dimension)
    /// are symbols, and the floats that are further inputs without dimensions, with their dtypes: those of
    /// [`floats`](Piece::floats) for which `given` holds, as far as their operators take tensors there.
    ///
    /// # Errors
    /// An operator refuses a call.
    pub fn graph(
        &self,
        symbolic: &dyn Fn(usize, usize) -> bool,
        given: &dyn Fn(usize) -> bool,
    ) -> Result<(Graph, Vec<(usize, DType)>), OpError> {
        let mut made = self.walk.graph("eager", symbolic, given)?;
        let outs = self.stored.iter().flat_map(|n| made.results[*n].iter());
        let output = |v: &fx_ir::ValueId| Output { kind: OutputKind::User, arg: Arg::Value(*v) };
        made.graph.outputs = outs.map(output).collect();
        prims::scalars::eliminate_dead(&mut made.graph);
        Ok((made.graph, made.floats))
    }

    /// Stores what the graph returned.
    pub fn store(self, results: Vec<Tensor>) {
        let mut results = results.into_iter();
        for n in self.stored {
            let call = &self.walk.calls[n];
            let own: Vec<Tensor> = results.by_ref().take(call.metas.len()).collect();
            if own.len() == call.metas.len() {
                call.store(own);
            }
        }
    }
}
