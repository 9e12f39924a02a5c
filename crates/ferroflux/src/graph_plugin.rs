//! Plugins that take whole graphs, as custom Dynamo backends do: how they are recognised, which graph they receive, how its
//! placeholders and results relate to the caller, and how their refusals map to the model. `docs/plugins.md` has the
//! contract.
//!
//! Not here: building a plugin in Rust around a graph ([`crate::graph_backend`]), and plugins that take fused programs
//! ([`crate::code`]).

use fx_ir::text::TEXT_VERSION;
use fx_ir::{Arg, Graph, InputKind, NodeId, OutputKind};
use ir_core::Guard;
use plugin_host::{CompileArgs, IrVersion, KERNEL_IR, LoadedBackend, LoadedExecutable, Refusal, Value};
use tracing::info_span;

use crate::boundary::Boundary;
use crate::code::{Code, Weights, compiled_or_refused};
use crate::pipeline::{self, Cx, StageId};
use crate::{Error, Options};

/// The fx-ir version of the graphs: without guards, which are checked here before the plugin is called.
const FX_IR: IrVersion = IrVersion::fx_ir(TEXT_VERSION.0 as u16, 0);
/// The option with which a plugin declares, and a user may select, the dialect of the graph.
const DIALECT_OPTION: &str = "dialect";

/// Whether a plugin receives graphs: fx-ir is the first form that it declares among those that are written here.
pub(crate) fn takes_graphs(backend: &LoadedBackend) -> bool {
    let kernels = |own: &IrVersion| own.level == KERNEL_IR.level && own.major == KERNEL_IR.major;
    let first = backend.reads().iter().find(|own| own.reads(FX_IR) || kernels(own));
    first.is_some_and(|own| own.level == FX_IR.level)
}

/// The dialect of the graph that a plugin receives.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Dialect {
    /// The model's operators, without mutation.
    Functional,
    /// Prims on real numbers, after the passes: the input of the lowering.
    Prim,
}

impl Dialect {
    /// The value of the option of this name, if the plugin has one.
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

/// Compiles a model's functional graph; also returns the conditions on the sizes of a call.
pub(crate) fn compile(
    functional: Graph,
    backend: &LoadedBackend,
    options: &Options,
    with: (Weights<'_>, &Cx<'_>),
) -> Result<(Code, Vec<Guard>), Error> {
    compile_from(functional, StageId::Autocast, backend, options, with)
}

/// As [`compile`], for a graph after stage `joint`: it consists of prims whichever dialect the plugin prefers, but a plugin
/// that prefers the model's operators receives it before complex numbers are split and passes run.
pub(crate) fn compile_prims(
    prims: Graph,
    backend: &LoadedBackend,
    options: &Options,
    with: (Weights<'_>, &Cx<'_>),
) -> Result<(Code, Vec<Guard>), Error> {
    compile_from(prims, StageId::Real, backend, options, with)
}

/// Compiles the graph before stage `next`.
fn compile_from(
    graph: Graph,
    next: StageId,
    backend: &LoadedBackend,
    options: &Options,
    (weight, cx): (Weights<'_>, &Cx<'_>),
) -> Result<(Code, Vec<Guard>), Error> {
    let boundary = Boundary::of(&graph);
    let (graph, split) = match Dialect::of(backend, options)? {
        Dialect::Functional if next <= StageId::Autocast => {
            (with_seed(pipeline::run(graph, StageId::Autocast..=StageId::Grouped, cx)?), None)
        }
        Dialect::Functional => (with_seed(graph), None),
        Dialect::Prim => (pipeline::run(graph, next..=StageId::Optimized, cx)?, Some(boundary)),
    };
    let guards = graph.guards.clone();
    Ok((PluginGraph::new(graph, split, backend).compile(options, weight)?, guards))
}

/// Adds a placeholder for the seed if the graph draws random numbers, which only its decomposition shows.
fn with_seed(mut graph: Graph) -> Graph {
    if prims::decompose_partial(&graph).0.seed().is_some() {
        graph.require_seed();
    }
    graph
}

/// A graph for a plugin, and the meaning of its placeholders.
struct PluginGraph<'a> {
    graph: Graph,
    backend: &'a LoadedBackend,
    /// The dtypes of the graph's results, where it was taken to the numbers that kernels have.
    split: Option<Boundary>,
    /// Names of the constants.
    constants: Vec<String>,
    inputs: usize,
    /// Position of the seed among the inputs.
    seed: Option<usize>,
    outputs: usize,
}

impl<'a> PluginGraph<'a> {
    fn new(mut graph: Graph, split: Option<Boundary>, backend: &'a LoadedBackend) -> Self {
        graph.guards.clear();
        // The text gives every value a unique name, by which refusals are resolved.
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
            let value = if self.split.is_some() { Boundary::inner_value(&value)? } else { value };
            constants.push((name, value));
        }
        {
            let _span = info_span!("bind constants", count = constants.len()).entered();
            code.bind_values(&constants.iter().map(|(name, v)| (*name, v)).collect::<Vec<_>>())?;
        }
        Ok(Code::of_graph(code, self.backend, self.seed, self.split, self.outputs))
    }

    /// Formats the refused nodes: each with its operator and its line of the model.
    fn lines(&self, refused: &[Refusal]) -> Vec<String> {
        let line = |Refusal { node, reason }: &Refusal| match place(&self.graph, node) {
            Some(place) => format!("node `{node}`{place}: {reason}"),
            None => format!("`{node}`: {reason}"),
        };
        refused.iter().map(line).collect()
    }

    /// Fails where the executable has another number of inputs or outputs than the graph.
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
