//! Plugins that take whole graphs, as custom Dynamo backends do: who they are, which graph they are given, what connects its
//! placeholders and results with the caller, and what their refusals mean in the model. `docs/plugins.md` has the contract.
//!
//! Not here: how a plugin is written in Rust around a graph ([`crate::graph_backend`]), and plugins that take fused programs
//! ([`crate::code`]).

use fx_ir::text::TEXT_VERSION;
use fx_ir::{Arg, Graph, InputKind, NodeId, OutputKind};
use ir_core::Guard;
use plugin_host::{CompileArgs, IrVersion, KERNEL_IR, LoadedBackend, LoadedExecutable, Refusal, Value};
use tracing::info_span;

use crate::code::{Code, Weights, compiled_or_refused};
use crate::complex_boundary::ComplexBoundary;
use crate::pipeline::{self, Cx, StageId};
use crate::{Error, Options};

/// The fx-ir that graphs are written in: without guards, which are checked here before the plugin is asked.
const FX_IR: IrVersion = IrVersion::fx_ir(TEXT_VERSION.0 as u16, 0);
/// The option by which a plugin says, and a user may say, which graph is given.
const DIALECT_OPTION: &str = "dialect";

/// Whether a plugin is given graphs: of the forms that it reads, the first one that is written here is fx-ir.
pub(crate) fn takes_graphs(backend: &LoadedBackend) -> bool {
    let kernels = |own: &IrVersion| own.level == KERNEL_IR.level && own.major == KERNEL_IR.major;
    let first = backend.reads().iter().find(|own| own.reads(FX_IR) || kernels(own));
    first.is_some_and(|own| own.level == FX_IR.level)
}

/// Which graph a plugin is given.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dialect {
    /// The model's operators, without mutation.
    Functional,
    /// Prims on real numbers, after the passes: what kernels are made of.
    Prim,
}

impl Dialect {
    /// That of the option of this name, where the plugin has one.
    fn of(backend: &LoadedBackend, options: &Options) -> Result<Dialect, Error> {
        let Some(spec) = backend.options().iter().find(|o| o.name == DIALECT_OPTION) else {
            return Ok(Dialect::Prim);
        };
        let given = options.backend_options.iter().rev().find(|(name, _)| name == DIALECT_OPTION);
        match given.map_or(&*spec.default, |(_, value)| value) {
            "functional" => Ok(Dialect::Functional),
            "prim" => Ok(Dialect::Prim),
            other => Err(Error::GraphBackend {
                backend: backend.name().into(),
                message: format!(
                    "its option `{DIALECT_OPTION}` is `{other}`; graphs are `functional` or `prim`"
                ),
            }),
        }
    }
}

/// Compiles a model's functional graph; also gives what must hold of the sizes in a call.
pub(crate) fn compile(
    functional: Graph,
    backend: &LoadedBackend,
    options: &Options,
    with: (Weights<'_>, &Cx<'_>),
) -> Result<(Code, Vec<Guard>), Error> {
    compile_from(functional, StageId::Autocast, backend, options, with)
}

/// As [`compile`], for a graph from behind stage `joint`: it consists of prims whatever dialect the plugin prefers, but one
/// that prefers the model's operators is given it as it is, before complex numbers are split and passes run.
pub(crate) fn compile_prims(
    prims: Graph,
    backend: &LoadedBackend,
    options: &Options,
    with: (Weights<'_>, &Cx<'_>),
) -> Result<(Code, Vec<Guard>), Error> {
    compile_from(prims, StageId::Real, backend, options, with)
}

/// Compiles what stands before stage `next`.
fn compile_from(
    graph: Graph,
    next: StageId,
    backend: &LoadedBackend,
    options: &Options,
    (weight, cx): (Weights<'_>, &Cx<'_>),
) -> Result<(Code, Vec<Guard>), Error> {
    let complex = ComplexBoundary::of(&graph);
    let (graph, split) = match Dialect::of(backend, options)? {
        Dialect::Functional => (with_seed(graph), None),
        Dialect::Prim => (pipeline::run(graph, next..=StageId::Optimized, cx)?, Some(complex)),
    };
    let guards = graph.guards.clone();
    Ok((PluginGraph::new(graph, split, backend).compile(options, weight)?, guards))
}

/// The graph with a placeholder for the seed where it draws random numbers, which only its decomposition says.
fn with_seed(mut graph: Graph) -> Graph {
    if prims::decompose_partial(&graph).0.seed().is_some() {
        graph.require_seed();
    }
    graph
}

/// A graph on its way to a plugin, and what its placeholders are there.
struct PluginGraph<'a> {
    graph: Graph,
    backend: &'a LoadedBackend,
    /// What of the graph's results was complex, where complex numbers were taken apart.
    split: Option<ComplexBoundary>,
    /// Names of the constants.
    constants: Vec<String>,
    inputs: usize,
    /// Place of the seed among the inputs.
    seed: Option<usize>,
    outputs: usize,
}

impl<'a> PluginGraph<'a> {
    fn new(mut graph: Graph, split: Option<ComplexBoundary>, backend: &'a LoadedBackend) -> Self {
        graph.guards.clear();
        // The text gives every value a name of its own; refusals are found by it.
        graph.make_names_unique();
        let (mut constants, mut inputs, mut seed) = (Vec::new(), 0, None);
        for (v, kind, name) in graph.inputs() {
            if graph.meta(v).is_none() {
                continue;
            }
            let new = |o: &fx_ir::Output| matches!(&o.kind, OutputKind::BufferMutation(n) if n == name);
            match kind {
                InputKind::Parameter | InputKind::Buffer { .. } | InputKind::Constant
                    if !graph.outputs.iter().any(new) =>
                {
                    constants.push(name.to_owned());
                    continue;
                }
                InputKind::Seed => seed = Some(inputs),
                _ => {}
            }
            inputs += 1;
        }
        let outputs = graph.outputs.iter().filter(|o| matches!(o.arg, Arg::Value(_))).count();
        PluginGraph { graph, backend, split, constants, inputs, seed, outputs }
    }

    fn compile(self, options: &Options, weight: Weights<'_>) -> Result<Code, Error> {
        let text = fx_ir::text::print(&self.graph);
        let list = options.backend_option_list();
        let args = CompileArgs::new(FX_IR, text.as_bytes()).mode(options.mode.name()).options(&list);
        let mut code = compiled_or_refused(self.backend, &args, &|refused| self.lines(refused))?;
        self.check(&code)?;
        let mut constants: Vec<(&str, Value)> = Vec::with_capacity(self.constants.len());
        for name in &self.constants {
            let Some(value) = weight(name)? else { continue };
            let value = if self.split.is_some() { ComplexBoundary::real_value(&value)? } else { value };
            constants.push((name, value));
        }
        {
            let _span = info_span!("bind constants", count = constants.len()).entered();
            code.bind_values(&constants.iter().map(|(name, v)| (*name, v)).collect::<Vec<_>>())?;
        }
        Ok(Code::of_graph(code, self.backend, self.seed, self.split, self.outputs))
    }

    /// Refused nodes: each with its operator and the line of the model that it comes from.
    fn lines(&self, refused: &[Refusal]) -> Vec<String> {
        let line = |Refusal { node, reason }: &Refusal| match place(&self.graph, node) {
            Some(place) => format!("node `{node}`{place}: {reason}"),
            None => format!("`{node}`: {reason}"),
        };
        refused.iter().map(line).collect()
    }

    /// An error where the executable takes or gives another number of tensors than the graph.
    fn check(&self, code: &LoadedExecutable) -> Result<(), Error> {
        let given = (code.num_inputs(), code.num_outputs());
        if given == (self.inputs, self.outputs) && code.num_constants() <= self.constants.len() {
            return Ok(());
        }
        Err(Error::GraphBackend {
            backend: self.backend.name().into(),
            message: format!(
                "its executable takes {} inputs and {} constants and gives {} outputs; the graph has {}, {} and {}",
                given.0,
                code.num_constants(),
                given.1,
                self.inputs,
                self.constants.len(),
                self.outputs
            ),
        })
    }
}

/// Operator and origin of the node with this name, in the graph or in one of its subgraphs.
fn place(graph: &Graph, node: &str) -> Option<String> {
    let named = |(id, _): &(NodeId, &fx_ir::Node)| graph.node_name(*id) == node;
    let Some((id, found)) = graph.iter().find(named) else {
        return graph.subgraphs.values().find_map(|g| place(g, node));
    };
    let target = found.as_call().map_or("placeholder", |(target, _)| target);
    let origin = graph.origin(id).to_string();
    Some(if origin.is_empty() { format!(" ({target})") } else { format!(" ({target}, from {origin})") })
}
