//! A compiled function: the code of its graph on any backend.

use fx_ir::{Graph, InputKind};
use smallvec::SmallVec;
use tensor::Tensor;

use crate::check::{CallTensor, Signature};
use crate::code::{Code, CompiledCode, Weights};
use crate::inputs::{self, TensorInfo};
use crate::seeds::Seeds;
use crate::{Error, Options};

/// A function ready to be called, from any thread.
pub struct CompiledFunc {
    graph: Graph,
    inputs: Vec<TensorInfo>,
    signature: Signature,
    code: Code,
    seeds: Seeds,
}

impl CompiledFunc {
    pub(crate) fn new(graph: Graph, options: &Options) -> Result<CompiledFunc, Error> {
        CompiledFunc::with_constants(graph, &|_| Ok(None), options)
    }

    /// As [`new`](CompiledFunc::new), where parameters and constants of the graph are given now and not at every call.
    pub(crate) fn with_constants(
        graph: Graph,
        weights: Weights<'_>,
        options: &Options,
    ) -> Result<CompiledFunc, Error> {
        let constant =
            |name: &str| graph.inputs().any(|(_, kind, n)| n == name && kind == InputKind::Parameter);
        let inputs: Vec<TensorInfo> =
            inputs::of_graph(&graph).into_iter().filter(|info| !constant(&info.name)).collect();
        let CompiledCode { code, guards, .. } = Code::of_prims(graph.clone(), weights, options)?;
        let signature = Signature::of(&inputs, &graph.symbols, &guards)?;
        Ok(CompiledFunc { graph, inputs, signature, code, seeds: Seeds::new(options.seed) })
    }

    /// Runs it; returns its results in order.
    ///
    /// # Errors
    /// Tensors that do not fit the types it was compiled for, sizes that violate one of its guards, and errors of the
    /// backend.
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let inputs = self.signature.conform(inputs)?;
        let inputs: SmallVec<[&Tensor; 16]> = inputs.iter().collect();
        self.code.run(&inputs, self.seed())
    }

    /// Whether a call with these tensors fits.
    ///
    /// # Errors
    /// Why it does not.
    pub(crate) fn fits<T: CallTensor>(&self, inputs: &[T]) -> Result<(), Error> {
        self.signature.check(inputs)
    }

    /// As [`call`](CompiledFunc::call), for tensors that fit.
    /// Also gives the seed of the call.
    pub(crate) fn call_fitting(&self, inputs: &[Tensor]) -> Result<(Vec<Tensor>, u64), Error> {
        let inputs = self.signature.laid_out(inputs)?;
        let seed = self.seed();
        let inputs: SmallVec<[&Tensor; 16]> = inputs.iter().collect();
        Ok((self.code.run(&inputs, seed)?, seed))
    }

    /// The seed of the next call. Calls that draw nothing do not count: counting would be a write that threads share.
    fn seed(&self) -> u64 {
        if self.code.draws() { self.seeds.next() } else { 0 }
    }

    /// The graph of prims that was compiled, before the passes.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The tensors that it takes, in order.
    pub fn inputs(&self) -> &[TensorInfo] {
        &self.inputs
    }
}
