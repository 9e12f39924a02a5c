//! Captured dialect → functional dialect.
//!
//! Every tensor is a view of a storage ([`state`]). An in-place call becomes its out-of-place counterpart
//! ([`inplace`]), whose result is written through the chain of views to the storage's new value; a later read through
//! any other view replays that view on the new value. The new value of a written input is an extra output. How a view is
//! replayed and inverted is in [`views`]. Numbers that the caller passes become tensors first ([`number_inputs`]), those
//! that the program returns become tensors afterwards ([`numbers`]).
//!
//! Assumed, as in PyTorch's export: two inputs never share memory. Dead replays are left to later passes.

mod inplace;
mod norms;
mod number_inputs;
mod numbers;
mod state;
mod strides;
mod subgraphs;
mod views;

pub use views::{ViewInverse, ViewRule, view_rule};

use fx_ir::{Arg, Dialect, Graph, InputKind, Legality, Node, NodeId, NodeKind, OriginId, Output, OutputKind};
use fx_ir::{ValueId, ValueType};
use ir_core::{Arena, Origin, TensorMeta};
use thiserror::Error;

use state::{Storages, View, ViewRef};
use subgraphs::Body;

/// A call that could not be made functional.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("node `{node}` ({target}{}): {problem}", place(origin))]
pub struct FunctionalizeError {
    /// Name of the node.
    pub node: String,
    /// Its operator.
    pub target: String,
    /// Where it comes from.
    pub origin: Box<Origin>,
    /// Why.
    pub problem: FunctionalizeProblem,
}

fn place(origin: &Origin) -> String {
    let text = origin.to_string();
    if text.is_empty() { text } else { format!(", from {text}") }
}

/// Why a call could not be made functional.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FunctionalizeProblem {
    /// The view cannot be written through.
    #[error("writes through a view that {0}; clone the tensor before writing to it")]
    View(&'static str),
    /// The program writes a parameter or constant, for which there is no output.
    #[error(
        "writes {what} `{name}`: only buffers and inputs may change; register it as a buffer, or clone it first"
    )]
    Fixed {
        /// `parameter` or `constant`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// An in-place operator gives its operand other sizes.
    #[error(
        "makes the tensor it writes larger, so that new elements have no value: allocate the full size first"
    )]
    Resized,
    /// An `out=` variant.
    #[error("`out=` variants are not supported: call the operator without `out` and copy its result")]
    OutVariant,
    /// The operand that an in-place operator writes is not a tensor of the graph.
    #[error("the operand to write is not a tensor")]
    NoOperand,
    /// A subgraph writes an operand of a control-flow operator for which that is not defined.
    #[error(
        "its subgraph writes to an operand; only `cond` supports that: return the new value from the subgraph"
    )]
    Subgraph,
    /// An integer argument is an expression of several unknown symbols.
    #[error(
        "is `{expr}` by the program's symbols, and no input tells each of them: give the model one integer for each symbol"
    )]
    Undetermined {
        /// The expression.
        expr: String,
    },
    /// A node reads a value that does not exist, because the call that defines it was refused.
    #[error("reads a value that no node before it gives")]
    Undefined,
}

/// The same program without mutation: in-place calls are out-of-place, every read through a view sees all writes
/// through other views, and new values of buffers and inputs are outputs of kind [`OutputKind::BufferMutation`] and
/// [`OutputKind::InputMutation`], appended unless the graph returns them already. Subgraphs likewise; what a branch of
/// `cond` writes to its operands comes back as extra results of the call.
///
/// Integers, floats and truth values among the inputs become tensors without dimensions (`i64`, `f64`, `bool`).
///
/// Operators that the table does not know pass through (`prims::decompose` reports them all together).
///
/// # Errors
/// Every call that has no functional form, in execution order.
pub fn functionalize(graph: &Graph) -> Result<Graph, Vec<FunctionalizeError>> {
    let mut errors = Vec::new();
    let given = number_inputs::to_tensors(graph).map_err(|error| vec![error])?;
    let mut body = run(given.as_ref().unwrap_or(graph), false, &mut errors);
    numbers::to_tensors(&mut body.graph);
    // Random numbers depend on the names of the calls that draw them, so names are made unique first.
    body.graph.make_names_unique();
    if errors.is_empty() { Ok(body.graph) } else { Err(errors) }
}

/// The predicate of the functional dialect for [`fx_ir::verify()`]: no operator that writes an operand.
pub fn functional_legality() -> impl Legality {
    (Dialect::Functional, |target: &str, args: &[Arg]| {
        match inplace::mutates(target) || norms::mutates(target, args) {
            true => Err("it writes to an operand: run `functionalize` first".to_string()),
            false => Ok(()),
        }
    })
}

/// The new graph's counterpart of an old value.
#[derive(Clone, Copy)]
enum Binding {
    /// A tensor.
    View(ViewRef),
    /// An integer, float or truth value.
    Plain(ValueId),
}

/// One graph under way.
struct Pass<'a> {
    old: &'a Graph,
    out: Graph,
    storages: Storages,
    bindings: Arena<ValueId, Option<Binding>>,
    /// Subgraphs, functional, as they are before a call adds results to them.
    bodies: Vec<Body>,
    /// Whether a subgraph of `out` has been given to a call.
    taken: Vec<bool>,
    /// Whether this is a subgraph, whose inputs are all its caller's.
    nested: bool,
}

/// A result of type `Result<_, Problem>`; the driver adds the node.
type Step<T> = Result<T, FunctionalizeProblem>;

fn run(old: &Graph, nested: bool, errors: &mut Vec<FunctionalizeError>) -> Body {
    let bodies: Vec<Body> = old.subgraphs.values().map(|g| run(g, true, errors)).collect();
    let mut out = Graph::new(old.name.clone());
    out.share_symbols(old);
    out.origins = old.origins.clone();
    out.subgraphs = bodies.iter().map(|b| b.graph.clone()).collect();
    let bindings = old.values.ids().map(|_| None).collect();
    let taken = vec![false; bodies.len()];
    let mut pass = Pass { old, out, storages: Storages::default(), bindings, bodies, taken, nested };
    for (id, node) in old.iter() {
        if let Err(problem) = pass.node(id, node) {
            let refused_before = problem == FunctionalizeProblem::Undefined && !errors.is_empty();
            if !refused_before {
                let target = node.as_call().map_or("placeholder", |(target, _)| target).to_string();
                let (node, origin) = (old.node_name(id).to_string(), Box::new(old.origin(id).clone()));
                errors.push(FunctionalizeError { node, target, origin, problem });
            }
        }
    }
    pass.outputs(errors);
    pass.finish()
}

impl Pass<'_> {
    fn node(&mut self, id: NodeId, node: &Node) -> Step<()> {
        match &node.kind {
            NodeKind::Placeholder { kind, name } => {
                self.placeholder(node, *kind, name);
                Ok(())
            }
            NodeKind::Call { target, args } => {
                if args.iter().any(|a| matches!(a, Arg::Graph(_))) {
                    return self.higher_order(node, target, args);
                }
                if norms::is_norm(target) && norms::mutates(target, args) {
                    return self.batch_norm(node, target, args);
                }
                if let Some(form) = inplace::returning_form(target) {
                    return self.returning(node, form, args);
                }
                match inplace::counterpart(target) {
                    Some(_) if inplace::is_out_variant(target) => Err(FunctionalizeProblem::OutVariant),
                    Some(functional) => self.in_place(id, node, &functional, args),
                    None => self.pure(node, target, args),
                }
            }
        }
    }

    fn placeholder(&mut self, node: &Node, kind: InputKind, name: &str) {
        for &v in &node.outputs {
            let value = &self.old.values[v];
            let new = self.out.placeholder(kind, name, &value.name, value.ty.clone());
            self.bindings[v] = Some(match &value.ty {
                ValueType::Tensor(meta) => {
                    let input = Some((kind, name.to_string()));
                    Binding::View(self.storages.add(new, meta.clone(), &value.name, input))
                }
                _ => Binding::Plain(new),
            });
        }
    }

    /// A call that writes nothing: its results are new storages, or views of its first operand.
    fn pure(&mut self, node: &Node, target: &str, args: &[Arg]) -> Step<()> {
        let new_args = self.read_args(args)?;
        let metas: Vec<&TensorMeta> = node.outputs.iter().filter_map(|&v| self.old.meta(v)).collect();
        let mut rules: Vec<Option<views::ViewRule>> = vec![None; node.outputs.len()];
        let source = self.viewed(args);
        // Operators that share memory return only tensors.
        if let Some(source) = source.filter(|_| metas.len() == node.outputs.len()) {
            let input = &self.storages.view(source).meta;
            for (n, rule) in rules.iter_mut().enumerate() {
                *rule = views::view_rule(target, &new_args, input, &metas, n);
            }
        }
        // A view that addresses the storage is computed from the storage, never from the operand's functional value.
        if let (Some(source), [Some(rule)]) = (source, &mut rules[..])
            && rule.of_storage
        {
            let (old, rule) = (node.outputs[0], rule.clone());
            let view =
                self.derive(source, rule, None, metas[0], (&self.old.values[old].name, node.origin))?;
            self.bindings[old] = Some(Binding::View(view));
            return Ok(());
        }
        let types =
            node.outputs.iter().map(|&v| (self.old.values[v].name.as_str(), self.old.values[v].ty.clone()));
        let outs = self.out.call(target, new_args, types, node.origin);
        for ((&old, &new), rule) in node.outputs.iter().zip(&outs).zip(rules) {
            let name = &self.old.values[old].name;
            self.bindings[old] = Some(match (self.old.meta(old), source, rule) {
                (None, ..) => Binding::Plain(new),
                (Some(meta), Some(s), Some(rule)) => {
                    Binding::View(self.derive(s, rule, Some(new), meta, (name, node.origin))?)
                }
                (Some(meta), ..) => Binding::View(self.storages.add(new, meta.clone(), name, None)),
            });
        }
        Ok(())
    }

    /// A new view of `source`, whose present value is `new` where that is known. A view that addresses the storage is attached
    /// to the storage's root, in the order of its elements in memory.
    fn derive(
        &mut self,
        source: ViewRef,
        rule: views::ViewRule,
        new: Option<ValueId>,
        meta: &TensorMeta,
        (name, origin): (&str, OriginId),
    ) -> Step<ViewRef> {
        let mut parent = source;
        if rule.of_storage {
            parent = self.storages.root_of(source);
            let root = &self.storages.view(parent).meta;
            if let Some((rule, meta)) = views::in_memory_order(root).map_err(FunctionalizeProblem::View)? {
                parent = self.storages.push(View::derived(parent, rule, meta, name, origin), None);
            }
        }
        Ok(self.storages.push(View::derived(parent, rule, meta.clone(), name, origin), new))
    }

    /// The view that the first operand is, where it is a tensor.
    fn viewed(&self, args: &[Arg]) -> Option<ViewRef> {
        match args.first()? {
            Arg::Value(v) => match self.bindings.get(*v)? {
                Some(Binding::View(view)) => Some(*view),
                _ => None,
            },
            _ => None,
        }
    }

    /// The arguments with every tensor's present value.
    fn read_args(&mut self, args: &[Arg]) -> Step<Vec<Arg>> {
        args.iter().map(|a| self.read_arg(a)).collect()
    }

    fn read_arg(&mut self, arg: &Arg) -> Step<Arg> {
        Ok(match arg {
            Arg::Value(v) => Arg::Value(self.read(*v)?),
            Arg::List(items) => Arg::List(self.read_args(items)?),
            other => other.clone(),
        })
    }

    fn read(&mut self, old: ValueId) -> Step<ValueId> {
        match self.bindings.get(old) {
            Some(Some(Binding::View(view))) => Ok(self.storages.read(&mut self.out, *view)),
            Some(Some(Binding::Plain(value))) => Ok(*value),
            _ => Err(FunctionalizeProblem::Undefined),
        }
    }

    /// Gives a tensor its new value, through all views of its storage.
    fn write(&mut self, view: ViewRef, new: ValueId, origin: OriginId) -> Step<()> {
        let input = self.storages.input_of(view);
        let fixed =
            |what: &'static str, name: &str| Err(FunctionalizeProblem::Fixed { what, name: name.into() });
        match input {
            Some((InputKind::Parameter, name)) if !self.nested => return fixed("parameter", name),
            Some((InputKind::Constant, name)) if !self.nested => return fixed("constant", name),
            _ => {}
        }
        self.storages.write(&mut self.out, view, new, origin).map_err(FunctionalizeProblem::View)
    }

    fn outputs(&mut self, errors: &mut Vec<FunctionalizeError>) {
        for output in &self.old.outputs {
            match self.read_arg(&output.arg) {
                Ok(arg) => self.out.outputs.push(Output { kind: output.kind.clone(), arg }),
                Err(_) if !errors.is_empty() => {}
                Err(problem) => errors.push(FunctionalizeError {
                    node: "return".into(),
                    target: "return".into(),
                    origin: Box::default(),
                    problem,
                }),
            }
        }
    }

    /// Appends the new values of inputs as outputs, or, for a subgraph, returns them to the caller.
    fn finish(mut self) -> Body {
        let inputs = self.storages.inputs();
        if !self.nested {
            for input in inputs.iter().filter(|i| i.written) {
                let kind = match input.kind {
                    InputKind::Buffer { .. } => OutputKind::BufferMutation(input.name.clone()),
                    _ => OutputKind::InputMutation(input.name.clone()),
                };
                if !self.out.outputs.iter().any(|o| o.kind == kind) {
                    self.out.outputs.push(Output { kind, arg: Arg::Value(input.value) });
                }
            }
        }
        // Inputs by position; one that is not a tensor is never written.
        let values = self.old.inputs().map(|(v, _, _)| match self.bindings[v] {
            Some(Binding::View(view)) => self.storages.present(view),
            Some(Binding::Plain(value)) => (value, false),
            None => (v, false),
        });
        let values = values.collect();
        Body { graph: self.out, inputs: values }
    }
}
