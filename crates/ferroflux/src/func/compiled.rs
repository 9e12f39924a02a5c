//! A compiled function: code of its graph by whichever backend.

use aot_autograd::passes::{PassCx, optimize};
use fx_ir::{Graph, InputKind, Symbol};
use ir_core::{Arena, SymId};
use tensor::Tensor;

use crate::code::Code;
use crate::seeds::Seeds;
use crate::{Error, InputInfo, Options, check};

/// A function ready to be called, from any thread.
pub struct CompiledFunc {
    graph: Graph,
    inputs: Vec<InputInfo>,
    symbols: Arena<SymId, Symbol>,
    code: Code,
    seeds: Seeds,
}

impl CompiledFunc {
    pub(super) fn new(mut graph: Graph, options: &Options) -> Result<CompiledFunc, Error> {
        optimize(&mut graph, &PassCx::training());
        let users = graph.inputs().filter(|(_, kind, _)| *kind != InputKind::Seed);
        let inputs = users
            .filter_map(|(v, _, name)| Some(InputInfo { name: name.into(), meta: graph.meta(v)?.clone() }))
            .collect();
        let (code, _) = Code::of_prims(&graph, &|_| Ok(None), options, false)?;
        let symbols = graph.symbols.clone();
        Ok(CompiledFunc { graph, inputs, symbols, code, seeds: Seeds::new(options.seed) })
    }

    /// Runs it; gives its results in order.
    ///
    /// # Errors
    /// Tensors that do not fit the types it was compiled for, and whatever the backend runs into.
    pub fn call(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let inputs = check::conform(&self.inputs, &self.symbols, inputs)?;
        self.code.run(&inputs.iter().collect::<Vec<_>>(), self.seeds.next())
    }

    /// The graph of prims that was compiled.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The tensors that it takes, in order.
    pub fn inputs(&self) -> &[InputInfo] {
        &self.inputs
    }
}
