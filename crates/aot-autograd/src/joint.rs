//! The joint graph: a graph of prims with its backward pass appended (reverse mode, over the gradient rules of the
//! operator table).
//!
//! Cotangents are accumulated in one fixed order (readers from last to first, their arguments from first to last), so that
//! the same program always rounds alike; those of slices that share no element (`slices`) come behind the others. Integers and truth
//! values carry no gradient. Not here: what is computed in which half ([`crate::partition()`]) and the rules of single operators (`prims`).
//! Control flow is in `control`.

mod control;
mod slices;

use fx_ir::{Arg, Graph, InputKind, NodeId, NodeKind, OriginId, Output, OutputKind, ValueId, ValueType};
use ir_core::{Arena, EntityId, Origin, Scalar, TensorMeta};
use prims::{Builder, Call, Grad, GradCall, Kind, OpError, lookup};
use rustc_hash::FxHashMap;
use thiserror::Error;

use self::slices::Slice;

/// With respect to which placeholders to differentiate. Only floating-point and complex tensors among them count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrt {
    /// The parameters.
    Parameters,
    /// The inputs that the caller gives.
    Inputs,
    /// Parameters and the caller's inputs.
    ParametersAndInputs,
    /// These placeholders.
    Values(Vec<ValueId>),
}

/// Where the cotangents of the forward outputs come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tangents {
    /// The loss, which has one element, has the cotangent 1; no other output has one. The loss is the output of kind
    /// `Loss`, or else the only output for the user.
    Loss,
    /// One more placeholder for each differentiable output that the caller sees, of its type.
    Placeholders,
}

/// What [`joint`] differentiates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JointOptions {
    /// The placeholders to differentiate with respect to.
    pub wrt: Wrt,
    /// The cotangents of the outputs.
    pub tangents: Tangents,
}

/// A forward graph and its backward pass in one graph.
#[derive(Clone, Debug)]
pub struct JointGraph {
    /// The forward's placeholders, then the tangents'; the forward's outputs, then one for each gradient.
    pub graph: Graph,
    /// Number of outputs that the forward graph had; those after are gradients.
    pub forward_outputs: usize,
    /// For each forward output its tangent's placeholder, where it has one.
    pub tangents: Vec<Option<ValueId>>,
    /// Each placeholder that was asked for, and its gradient; none where no output depends on it differentiably.
    pub gradients: Vec<(ValueId, Option<ValueId>)>,
    /// Nodes from this number on belong to the backward pass.
    pub(crate) backward_from: usize,
    /// The cotangent 1 of the loss, with [`Tangents::Loss`].
    pub(crate) seed: Option<ValueId>,
}

impl JointGraph {
    /// Whether a node belongs to the backward pass (the tangents' placeholders do).
    pub fn is_backward(&self, node: NodeId) -> bool {
        node.index() >= self.backward_from
    }

    /// For every node whether it depends on a tangent (or is one): only the backward can compute it. The rest of the
    /// backward pass, such as the cosine for the gradient of a sine, depends on values of the forward alone.
    pub fn tangent_dependent(&self) -> Arena<NodeId, bool> {
        let graph = &self.graph;
        let mut dependent: Arena<NodeId, bool> = graph.nodes.ids().map(|_| false).collect();
        let roots = self.tangents.iter().copied().chain([self.seed]).flatten();
        roots.for_each(|v| dependent[graph.values[v].def] = true);
        for (id, node) in graph.iter() {
            let mut any = false;
            node.for_each_use(&mut |v| any |= dependent[graph.values[v].def]);
            if any {
                dependent[id] = true;
            }
        }
        dependent
    }
}

/// Why a graph has no joint graph.
#[derive(Clone, Debug, Error)]
pub enum JointError {
    /// All calls without a gradient on a path that needs one.
    #[error("{}", list(.0))]
    Calls(Vec<GradError>),
    /// There is no loss.
    #[error(
        "the graph has no loss to differentiate: mark one output as the loss, return one tensor alone, or give tangents"
    )]
    NoLoss,
    /// The loss is not one number.
    #[error(
        "the loss is {0}; it must be a floating-point tensor with one element: reduce it by `mean` or `sum`"
    )]
    NotScalar(String),
    /// A value to differentiate with respect to is not a placeholder of the graph.
    #[error("value {0} is not a placeholder: gradients are of placeholders")]
    NotPlaceholder(ValueId),
}

/// A call that has no gradient where one is needed.
#[derive(Clone, Debug, Error)]
#[error("node `{node}` ({target}{}): {problem}", at(origin))]
pub struct GradError {
    /// Name of the node.
    pub node: String,
    /// Its operator.
    pub target: String,
    /// Where it comes from.
    pub origin: Origin,
    /// Why.
    #[source]
    pub problem: GradProblem,
}

/// Why a call has no gradient.
#[derive(Clone, Debug, Error)]
pub enum GradProblem {
    /// It is not a prim.
    #[error("is not a prim: decompose the graph first")]
    NotPrim,
    /// Control flow that has no gradient.
    #[error("{0}")]
    Control(&'static str),
    /// A body of control flow cannot be differentiated.
    #[error("within its body: {0}")]
    Within(Box<JointError>),
    /// The table has no rule yet.
    #[error("has no gradient rule yet: detach its operands, or leave it out of what is differentiated")]
    Unwritten,
    /// The rule refuses the call.
    #[error(transparent)]
    Rule(#[from] OpError),
    /// The rule returned a gradient of another type than its operand.
    #[error("bug in its gradient rule: argument {arg} is {expected}, its gradient {got}")]
    Type {
        /// Number of the tensor argument.
        arg: usize,
        /// Type of the operand.
        expected: String,
        /// Type of the gradient.
        got: String,
    },
}

fn at(origin: &Origin) -> String {
    let text = origin.to_string();
    if text.is_empty() { text } else { format!(", from {text}") }
}

fn list(errors: &[GradError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    format!("{} calls cannot be differentiated: {}", errors.len(), lines.join("; "))
}

/// Appends the backward pass to a graph of prims (see `prims::decompose`).
///
/// An output for a gradient is of kind `ParameterGradient` or `InputGradient`; a placeholder that no differentiated
/// output depends on has none. Steps (`floor`, comparisons, …) and `detach` pass nothing on.
///
/// # Errors
/// All calls without a gradient, in one report; a graph without a loss.
pub fn joint(graph: &Graph, options: &JointOptions) -> Result<JointGraph, JointError> {
    let wrt = placeholders(graph, &options.wrt)?;
    let needs = needed(graph, &wrt);
    let forward_outputs = graph.outputs.len();
    let mut pass = Pass {
        backward_from: graph.nodes.len(),
        graph: graph.clone(),
        cotangents: Vec::new(),
        slices: FxHashMap::default(),
        needs,
        errors: Vec::new(),
        seed: None,
    };
    let tangents = match options.tangents {
        Tangents::Loss => pass.seed_loss()?,
        Tangents::Placeholders => pass.seed_outputs(),
    };
    for &id in graph.order.iter().rev() {
        if let Err(problem) = pass.node(graph, id) {
            pass.report(graph, id, problem);
        }
    }
    if !pass.errors.is_empty() {
        pass.errors.reverse();
        return Err(JointError::Calls(pass.errors));
    }
    let mut gradients = Vec::with_capacity(wrt.len());
    for &v in &wrt {
        let def = graph.values[v].def;
        match pass.cotangent(v, &format!("{}_grad", graph.node_name(def)), graph.nodes[def].origin) {
            Ok(g) => gradients.push((v, g)),
            Err(problem) => pass.report(graph, def, problem.into()),
        }
    }
    if !pass.errors.is_empty() {
        return Err(JointError::Calls(pass.errors));
    }
    let Pass { mut graph, backward_from, seed, .. } = pass;
    append_outputs(&mut graph, &gradients);
    prims::scalars::eliminate_dead(&mut graph);
    Ok(JointGraph { graph, forward_outputs, tangents, gradients, backward_from, seed })
}

/// The placeholders to differentiate with respect to, in the graph's order.
fn placeholders(graph: &Graph, wrt: &Wrt) -> Result<Vec<ValueId>, JointError> {
    let differentiable = |v: &ValueId| graph.meta(*v).is_some_and(|m| m.dtype.is_inexact());
    let of = |kinds: &[InputKind]| -> Vec<ValueId> {
        let inputs = graph.inputs().filter(|(_, kind, _)| kinds.contains(kind));
        inputs.map(|(v, _, _)| v).filter(differentiable).collect()
    };
    Ok(match wrt {
        Wrt::Parameters => of(&[InputKind::Parameter]),
        Wrt::Inputs => of(&[InputKind::User]),
        Wrt::ParametersAndInputs => of(&[InputKind::Parameter, InputKind::User]),
        Wrt::Values(values) => {
            let is_placeholder = |v: &ValueId| graph.inputs().any(|(input, _, _)| input == *v);
            if let Some(&v) = values.iter().find(|v| !is_placeholder(v)) {
                return Err(JointError::NotPlaceholder(v));
            }
            values.iter().copied().filter(differentiable).collect()
        }
    })
}

/// The rule of a call; `None` where no gradient flows.
fn rule(target: &str) -> Result<Option<GradRule>, GradProblem> {
    let op =
        lookup(target).filter(|op| matches!(op.def.kind, Kind::Prim { .. })).ok_or(GradProblem::NotPrim)?;
    match op.def.grad {
        Grad::NotDifferentiable(_) => Ok(None),
        Grad::Rule(rule) => Ok(Some((op, rule))),
        Grad::Unwritten | Grad::ByDecomposition => Err(GradProblem::Unwritten),
    }
}

type GradRule =
    (&'static prims::Op, fn(&mut Builder<'_>, &GradCall<'_>) -> Result<Vec<Option<ValueId>>, OpError>);

/// For every value whether it depends differentiably on one of `wrt`.
fn needed(graph: &Graph, wrt: &[ValueId]) -> Arena<ValueId, bool> {
    let mut needs: Arena<ValueId, bool> = graph.values.ids().map(|_| false).collect();
    wrt.iter().for_each(|&v| needs[v] = true);
    for (_, node) in graph.iter() {
        let NodeKind::Call { target, .. } = &node.kind else { continue };
        let mut any = false;
        node.for_each_use(&mut |v| any |= needs[v]);
        if any && !matches!(rule(target), Ok(None)) {
            for &v in &node.outputs {
                needs[v] = graph.meta(v).is_some_and(|m| m.dtype.is_inexact());
            }
        }
    }
    needs
}

/// The state of the backward walk.
struct Pass {
    graph: Graph,
    /// Indexed by value.
    cotangents: Vec<Option<ValueId>>,
    /// The gradients of slices of values, which are not in `cotangents` yet.
    slices: FxHashMap<ValueId, Vec<Slice>>,
    needs: Arena<ValueId, bool>,
    backward_from: usize,
    errors: Vec<GradError>,
    /// The cotangent of the loss.
    seed: Option<ValueId>,
}

impl Pass {
    /// The cotangent of a value whose readers have all been visited.
    fn cotangent(&mut self, v: ValueId, name: &str, origin: OriginId) -> Result<Option<ValueId>, OpError> {
        if let Some(slices) = self.slices.remove(&v) {
            for term in slices::terms(&mut self.graph, (name, origin), slices)? {
                self.add_term(v, term, name, origin)?;
            }
        }
        Ok(self.cotangents.get(v.index()).copied().flatten())
    }

    /// Whether gradients with respect to a value of the forward graph are wanted.
    fn wants(&self, v: ValueId) -> bool {
        self.needs.get(v).copied().unwrap_or(false)
    }

    /// Whether gradients with respect to any value of an argument are wanted.
    fn wants_any(&self, arg: &Arg) -> bool {
        match arg {
            Arg::Value(v) => self.wants(*v),
            Arg::List(items) => items.iter().any(|item| self.wants_any(item)),
            _ => false,
        }
    }

    /// Adds to the cotangent of `v`.
    fn add(&mut self, v: ValueId, g: ValueId, name: &str, origin: OriginId) -> Result<(), OpError> {
        match Slice::of(&self.graph, g) {
            Some(slice) => self.slices.entry(v).or_default().push(slice),
            None => self.add_term(v, g, name, origin)?,
        }
        Ok(())
    }

    fn add_term(&mut self, v: ValueId, g: ValueId, name: &str, origin: OriginId) -> Result<(), OpError> {
        if self.cotangents.len() <= v.index() {
            self.cotangents.resize(v.index() + 1, None);
        }
        let sum = match self.cotangents[v.index()] {
            None => g,
            Some(old) => Builder::new(&mut self.graph, name, origin).add(old, g)?,
        };
        self.cotangents[v.index()] = Some(sum);
        Ok(())
    }

    /// The loss has the cotangent 1.
    fn seed_loss(&mut self) -> Result<Vec<Option<ValueId>>, JointError> {
        let outputs = &self.graph.outputs;
        let of = |kind: &OutputKind| -> Vec<ValueId> {
            let wanted = outputs.iter().filter(|o| o.kind == *kind);
            wanted.filter_map(|o| if let Arg::Value(v) = o.arg { Some(v) } else { None }).collect()
        };
        let (losses, mut users) = (of(&OutputKind::Loss), of(&OutputKind::User));
        // Counts and indices that are returned next to it are not losses.
        if users.len() > 1 {
            users.retain(|&v| self.graph.meta(v).is_some_and(|m| m.dtype.is_inexact()));
        }
        let loss = match (&losses[..], &users[..]) {
            ([loss], _) => *loss,
            ([], [only]) => *only,
            _ => return Err(JointError::NoLoss),
        };
        let none = vec![None; outputs.len()];
        let Some(meta) = self.graph.meta(loss).cloned() else { return Err(JointError::NoLoss) };
        if !meta.dtype.is_float() || meta.numel().as_const().is_some_and(|n| n != 1) {
            return Err(JointError::NotScalar(meta.to_string()));
        }
        let mut b = Builder::new(&mut self.graph, "tangent", OriginId(0));
        let one = b.full(&meta.sizes, Scalar::Float(1.0), meta.dtype);
        let seeded = one.and_then(|one| {
            self.seed = Some(one);
            self.add(loss, one, "tangent", OriginId(0))
        });
        seeded.map_err(|_| JointError::NotScalar(meta.to_string()))?;
        Ok(none)
    }

    /// A placeholder for the cotangent of every differentiable output that the caller sees.
    fn seed_outputs(&mut self) -> Vec<Option<ValueId>> {
        let mut place = self.graph.inputs().count();
        let mut tangents = Vec::new();
        for (n, output) in self.graph.outputs.clone().iter().enumerate() {
            let visible = matches!(output.kind, OutputKind::User | OutputKind::Loss);
            let value = match output.arg {
                Arg::Value(v) if visible && self.wants(v) => v,
                _ => {
                    tangents.push(None);
                    continue;
                }
            };
            let Some(meta) = self.graph.meta(value) else { continue };
            let ty = ValueType::Tensor(TensorMeta::contiguous(meta.dtype, meta.sizes.iter().cloned()));
            let name = format!("tangents_{n}");
            let tangent = self.graph.placeholder(InputKind::User, name.clone(), &name, ty);
            // Placeholders stand first.
            if let Some(node) = self.graph.order.pop() {
                self.graph.order.insert(place, node);
                place += 1;
            }
            // Two floats of one type: the sum of two tangents of one value is always legal.
            let added = self.add(value, tangent, &name, OriginId(0));
            debug_assert!(added.is_ok(), "{added:?}");
            tangents.push(Some(tangent));
        }
        tangents
    }

    /// Passes the cotangents of a node's results on to its operands.
    fn node(&mut self, forward: &Graph, id: NodeId) -> Result<(), GradProblem> {
        let node = &forward.nodes[id];
        let NodeKind::Call { target, args } = &node.kind else { return Ok(()) };
        let name = format!("{}_grad", forward.node_name(id));
        let mut cotangents: Vec<Option<ValueId>> = Vec::with_capacity(node.outputs.len());
        for &v in &node.outputs {
            let wanted = self.wants(v);
            cotangents.push(if wanted { self.cotangent(v, &name, node.origin)? } else { None });
        }
        if cotangents.iter().all(Option::is_none) {
            return Ok(());
        }
        if control::is_control(target) {
            return self.control(forward, id, &cotangents);
        }
        let Some((op, rule)) = rule(target)? else { return Ok(()) };
        let call = Call { op, args };
        let wanted: Vec<bool> = args.iter().map(|arg| self.wants_any(arg)).collect();
        let grads = {
            let mut b = Builder::new(&mut self.graph, name.clone(), node.origin);
            rule(
                &mut b,
                &GradCall { call: &call, outs: &node.outputs, cotangents: &cotangents, wanted: &wanted },
            )?
        };
        for (n, (operand, grad)) in operands(args).into_iter().zip(grads).enumerate() {
            let (Some(v), Some(g)) = (operand, grad) else { continue };
            if !self.wants(v) {
                continue;
            }
            self.check(n, v, g, &name, node.origin)?;
            self.add(v, g, &name, node.origin)?;
        }
        Ok(())
    }

    /// A gradient has the dtype and the sizes of its operand.
    fn check(
        &mut self,
        arg: usize,
        v: ValueId,
        g: ValueId,
        name: &str,
        origin: OriginId,
    ) -> Result<(), GradProblem> {
        let (Some(expected), Some(got)) = (self.graph.meta(v).cloned(), self.graph.meta(g).cloned()) else {
            return Ok(());
        };
        if expected.dtype == got.dtype && expected.rank() == got.rank() {
            let mut b = Builder::new(&mut self.graph, name, origin);
            let mut pairs = expected.sizes.iter().zip(&got.sizes);
            let what = || format!("an operand is {expected}, its gradient {got}");
            if pairs.all(|(have, want)| b.require_equal(have, want, |_| what()).is_ok()) {
                return Ok(());
            }
        }
        Err(GradProblem::Type { arg, expected: expected.to_string(), got: got.to_string() })
    }

    fn report(&mut self, forward: &Graph, id: NodeId, problem: GradProblem) {
        let target = forward.nodes[id].as_call().map_or("placeholder", |(target, _)| target).to_owned();
        let (node, origin) = (forward.node_name(id).to_owned(), forward.origin(id).clone());
        self.errors.push(GradError { node, target, origin, problem });
    }
}

/// The arguments in the form that a gradient rule answers: one entry per argument, one per item of a list of tensors.
fn operands(args: &[Arg]) -> Vec<Option<ValueId>> {
    let one = |arg: &Arg| if let Arg::Value(v) = arg { Some(*v) } else { None };
    let mut list = Vec::with_capacity(args.len());
    for arg in args {
        match arg {
            Arg::List(items) if items.iter().any(|i| matches!(i, Arg::Value(_))) => {
                list.extend(items.iter().map(one))
            }
            arg => list.push(one(arg)),
        }
    }
    list
}

fn append_outputs(graph: &mut Graph, gradients: &[(ValueId, Option<ValueId>)]) {
    let names: Vec<(ValueId, InputKind, String)> =
        graph.inputs().map(|(v, kind, name)| (v, kind, name.to_owned())).collect();
    for &(v, gradient) in gradients {
        let (Some(g), Some((_, kind, name))) = (gradient, names.iter().find(|(input, _, _)| *input == v))
        else {
            continue;
        };
        let kind = match kind {
            InputKind::Parameter => OutputKind::ParameterGradient(name.clone()),
            _ => OutputKind::InputGradient(name.clone()),
        };
        graph.outputs.push(Output { kind, arg: Arg::Value(g) });
    }
}
