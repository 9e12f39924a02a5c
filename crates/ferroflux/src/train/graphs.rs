//! Training at stage `joint` of the pipeline ([`crate::pipeline`]): prims → joint → two halves. The other stages are those
//! of inference.

use aot_autograd::passes::PassCx;
use aot_autograd::{JointGraph, JointOptions, MinCut, Partition, Tangents, Wrt};
use fx_ir::{Arg, Graph, InputKind, NodeKind, OriginId, OutputKind, ValueId, ValueType};
use ir_core::{DType, SymExpr, SymId, TensorMeta};
use plugin_host::LoadedBackend;
use tracing::info_span;

use super::update::Gradients;
use crate::pipeline::{self, Cx, StageId};
use crate::{Error, Options, Program};

/// What to differentiate.
#[derive(Clone, Debug, PartialEq)]
pub struct DiffOptions {
    pub(crate) wrt: Wrt,
    pub(crate) tangents: Tangents,
    pub(crate) loss: Option<usize>,
    pub(crate) autocast: Option<DType>,
    pub(crate) memory_budget: f64,
}

impl Default for DiffOptions {
    fn default() -> DiffOptions {
        DiffOptions::new()
    }
}

impl DiffOptions {
    /// The gradients of the loss with respect to the parameters.
    pub fn new() -> DiffOptions {
        let (wrt, tangents) = (Wrt::Parameters, Tangents::Loss);
        DiffOptions { wrt, tangents, loss: None, autocast: None, memory_budget: 1.0 }
    }
    /// The placeholders to differentiate with respect to.
    pub fn wrt(mut self, wrt: Wrt) -> DiffOptions {
        self.wrt = wrt;
        self
    }
    /// The caller gives a cotangent for every differentiable output, as the argument of `Saved::backward`.
    pub fn tangents(mut self) -> DiffOptions {
        self.tangents = Tangents::Placeholders;
        self
    }
    /// Which of the returned tensors is the loss; not needed where the program marks one or returns one alone.
    pub fn loss(mut self, output: usize) -> DiffOptions {
        self.loss = Some(output);
        self
    }
    /// Enables autocast to `bf16` or `f16`.
    pub fn autocast(mut self, dtype: DType) -> DiffOptions {
        self.autocast = Some(dtype);
        self
    }
    /// How much may be saved for the backward, 0 to 1; see [`MinCut`].
    pub fn memory_budget(mut self, budget: f64) -> DiffOptions {
        self.memory_budget = budget;
        self
    }
}

impl Program {
    /// The usual choice: the loss if the program returns one number, otherwise every output; with respect to the
    /// parameters, or to the inputs where there are none.
    pub fn usual_gradients(&self) -> DiffOptions {
        let graph = self.graph();
        let visible = |o: &&fx_ir::Output| matches!(o.kind, OutputKind::User | OutputKind::Loss);
        let metas: Vec<_> = graph
            .outputs
            .iter()
            .filter(visible)
            .filter_map(|o| if let Arg::Value(v) = o.arg { graph.meta(v) } else { None })
            .collect();
        let has_loss = graph.outputs.iter().any(|o| o.kind == OutputKind::Loss)
            || matches!(metas[..], [m] if m.dtype.is_float() && m.numel().as_const() == Some(1));
        let options = if has_loss { DiffOptions::new() } else { DiffOptions::new().tangents() };
        let trained = graph.inputs().any(|(v, kind, _)| {
            kind == InputKind::Parameter && graph.meta(v).is_some_and(|m| m.dtype.is_inexact())
        });
        if trained { options } else { options.wrt(Wrt::Inputs) }
    }

    /// Forward and backward in one graph of prims, as `ferroflux graph --stage joint` shows it.
    ///
    /// # Errors
    /// All calls that have no gradient where one is needed; a program without a loss.
    pub fn joint(&self, options: &DiffOptions) -> Result<JointGraph, Error> {
        joint(forward(self, options.loss, &mixed(None, options.autocast)?)?, options)
    }

    /// The forward graph, which also returns what it saves, and the backward graph.
    pub fn partition(&self, options: &DiffOptions) -> Result<Partition, Error> {
        split(&self.joint(options)?, options.memory_budget)
    }

    /// The joint graph for a drawing: a frame around each half, and the saved values named as such.
    ///
    /// # Errors
    /// As for [`joint`](Program::joint).
    pub fn joint_for_drawing(&self, options: &DiffOptions) -> Result<Graph, Error> {
        let joint = self.joint(options)?;
        let mut graph = joint.graph.clone();
        let saved = split(&joint, options.memory_budget)?.saved;
        for id in graph.order.clone() {
            let module = if joint.is_backward(id) { "backward" } else { "forward" };
            let mut origin = graph.origins[graph.nodes[id].origin].clone();
            origin.module = module.into();
            let origin: OriginId = graph.add_origin(origin);
            graph.nodes[id].origin = origin;
        }
        for s in saved {
            if let Arg::Value(v) = s.arg
                && !graph.values[v].name.ends_with("(saved)")
            {
                graph.values[v].name.push_str(" (saved)");
            }
        }
        Ok(graph)
    }
}

/// From captured to prims that are ready to be differentiated.
pub(crate) fn forward(program: &Program, loss: Option<usize>, cx: &Cx<'_>) -> Result<Graph, Error> {
    let mut prims = marked(program.through(StageId::Prim, cx)?, loss)?;
    // The passes run before differentiation; complex numbers are not split yet.
    pipeline::passes(&mut prims, StageId::Prim, &PassCx::before_joint(), cx)?;
    Ok(prims)
}

/// The context of training in mixed precision for a backend, as on a CPU without one. The dtype is the one of the training
/// options, and else that of the compilation's.
pub(crate) fn mixed<'a>(
    on: Option<(&LoadedBackend, &Options)>,
    autocast: Option<DType>,
) -> Result<Cx<'a>, Error> {
    let cx = Cx::training()?;
    let cx = match on {
        Some((backend, options)) => cx.on(backend, options),
        None => cx,
    };
    Ok(cx.autocast(autocast))
}

/// Binds size symbols that a graph's inputs determine, whichever call computed them first.
pub(crate) fn bind_sizes(graph: &mut Graph) {
    let mut bound: Vec<SymId> = Vec::new();
    for (v, _, _) in graph.inputs() {
        if let ValueType::Tensor(meta) = &graph.values[v].ty {
            bound.extend(meta.sizes.iter().filter_map(ir_core::SymExpr::as_sym));
        }
    }
    bound.into_iter().for_each(|id| graph.symbols[id].unbacked = false);
}

/// Sizes that the forward computes from data and that the backward needs as integers are saved as tensors of one number;
/// those that follow from the inputs' sizes stay integers, after them. The backward takes non-negative ones as the size of
/// an input, so that other inputs may have that size: returns the positions of those among the saved values, with the
/// sizes. It binds the others itself.
pub(crate) fn save_computed_sizes(
    partition: &mut Partition,
) -> Result<Vec<(usize, SymExpr)>, prims::OpError> {
    let Partition { forward, backward, saved, .. } = partition;
    let mut as_sizes = Vec::new();
    for saved in saved.iter_mut() {
        let Arg::Int(e) = saved.arg.clone() else { continue };
        let symbol = e.as_sym().and_then(|id| forward.symbols.get(id));
        let Some(min) = symbol.filter(|s| s.unbacked).map(|s| s.min) else { continue };
        let full = vec![Arg::List(Vec::new()), Arg::Int(e.clone()), DType::I64.into()];
        let number = prims::Builder::new(forward, "size", OriginId(0)).call1("prims.full", full)?;
        let is_this = |o: &&mut fx_ir::Output| o.kind == OutputKind::Saved && o.arg == saved.arg;
        if let Some(output) = forward.outputs.iter_mut().find(is_this) {
            output.arg = number.into();
        }
        saved.arg = number.into();
        let ty = &mut backward.values[saved.placeholder].ty;
        if min >= 0 {
            *ty = ValueType::Tensor(super::wiring::size_meta(&e));
            as_sizes.push((saved.placeholder, e));
            continue;
        }
        *ty = ValueType::Tensor(TensorMeta::contiguous(DType::I64, ir_core::Shape::new()));
        let operand = vec![saved.placeholder.into()];
        backward.call(prims::scalars::ITEM, operand, [("size", ValueType::Int(e))], OriginId(0));
        // Before the calls that read it.
        if let Some(node) = backward.order.pop() {
            let place = backward.inputs().count();
            backward.order.insert(place, node);
        }
    }
    saved.sort_by_key(|s| matches!(s.arg, Arg::Int(_)));
    let place = |v: ValueId| saved.iter().position(|s| s.placeholder == v);
    Ok(as_sizes.into_iter().filter_map(|(v, e)| Some((place(v)?, e))).collect())
}

/// The graph with this output for the user as its loss.
fn marked(mut prims: Graph, loss: Option<usize>) -> Result<Graph, Error> {
    let Some(loss) = loss else { return Ok(prims) };
    let visible = |o: &fx_ir::Output| {
        matches!(o.kind, OutputKind::User | OutputKind::Loss) && matches!(o.arg, Arg::Value(_))
    };
    let count = prims.outputs.iter().filter(|o| visible(o)).count();
    for (n, output) in prims.outputs.iter_mut().filter(|o| visible(o)).enumerate() {
        output.kind = if n == loss { OutputKind::Loss } else { OutputKind::User };
    }
    if loss >= count {
        return Err(Error::NoSuchLoss { output: loss, count });
    }
    Ok(prims)
}

/// From prims to the joint graph.
pub(crate) fn joint(prims: Graph, options: &DiffOptions) -> Result<JointGraph, Error> {
    let _span = info_span!("joint graph").entered();
    let options = JointOptions { wrt: options.wrt.clone(), tangents: options.tangents };
    let joint = aot_autograd::joint(&prims, &options).map_err(Error::Joint)?;
    pipeline::reached(StageId::Joint, &joint.graph, &Cx::training()?)?;
    Ok(joint)
}

/// From the joint graph to two halves.
pub(crate) fn split(joint: &JointGraph, memory_budget: f64) -> Result<Partition, Error> {
    let _span = info_span!("partition").entered();
    Ok(aot_autograd::partition_min_cut(joint, &MinCut { memory_budget, ..MinCut::default() })?)
}

/// Makes placeholders inputs of every call, which the compiler would otherwise treat as constants.
pub(crate) fn per_call(graph: &mut Graph, wanted: &dyn Fn(ValueId, InputKind, &str) -> bool) {
    for id in graph.order.clone() {
        let node = &mut graph.nodes[id];
        if let (NodeKind::Placeholder { kind, name }, Some(&v)) = (&mut node.kind, node.outputs.first())
            && wanted(v, *kind, name)
        {
            *kind = InputKind::User;
        }
    }
}

/// Names of the buffers and parameters that a graph gives new values.
pub(crate) fn written(graph: &Graph) -> Vec<&str> {
    let names = graph.outputs.iter().map(|o| match &o.kind {
        OutputKind::BufferMutation(name) => Some(name.as_str()),
        _ => None,
    });
    names.flatten().collect()
}

/// The joint graph of a loss; with a placeholder for the loss's cotangent where it is scaled.
pub(crate) fn joint_for_loss(
    mut prims: Graph,
    options: &DiffOptions,
    scaled: bool,
) -> Result<JointGraph, Error> {
    if !scaled {
        return joint(prims, options);
    }
    let users = |o: &fx_ir::Output| o.kind == OutputKind::User;
    let has_loss = prims.outputs.iter().any(|o| o.kind == OutputKind::Loss);
    if !has_loss && prims.outputs.iter().filter(|o| users(o)).count() != 1 {
        return Err(Error::Joint(aot_autograd::JointError::NoLoss));
    }
    // Outputs that are not returned to the caller have no cotangent: meanwhile only the loss is returned.
    let kinds: Vec<OutputKind> = prims.outputs.iter().map(|o| o.kind.clone()).collect();
    if has_loss {
        prims
            .outputs
            .iter_mut()
            .filter(|o| o.kind == OutputKind::User)
            .for_each(|o| o.kind = OutputKind::Saved);
    }
    let mut made = joint(prims, &DiffOptions { tangents: Tangents::Placeholders, ..options.clone() })?;
    made.graph.outputs.iter_mut().zip(kinds).for_each(|(o, kind)| o.kind = kind);
    Ok(made)
}

/// Bytes up to which a step saves the results of slow operators: half of a core's cache of the second level.
const CACHED: i64 = 1 << 20;

/// Forward and backward in one graph, where the backward reads what is worth saving and computes the rest again.
pub(crate) fn merged(joint: &JointGraph, memory_budget: f64) -> Result<Gradients, Error> {
    let options = MinCut { memory_budget, cached: CACHED };
    let graph = aot_autograd::partition_min_cut(joint, &options)?.merge()?;
    // The cotangent of the loss, where it is given, is the only one.
    let tangent = joint.tangents.iter().flatten().next();
    let placeholder = tangent.and_then(|v| joint.graph.inputs().find(|(input, _, _)| input == v));
    let scale = placeholder.and_then(|(_, kind, name)| {
        graph.inputs().find(|(_, k, n)| *k == kind && *n == name).map(|(own, _, _)| own)
    });
    Ok(Gradients { graph, forward_outputs: joint.forward_outputs, scale })
}
