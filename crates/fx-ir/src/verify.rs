//! The verifier: checks that a graph is well-formed and that every call belongs to the requested dialect.
//!
//! Invariants, each checked for the graph and for its subgraphs:
//!
//! 1. Every id in `order`, in arguments, in outputs and in `origin` is in range.
//! 2. No node is in `order` twice.
//! 3. Placeholders are before every call and give exactly one value.
//! 4. A value is defined by exactly one node, and its `def` is that node.
//! 5. A value is read only after the node that defines it.
//! 6. A returned value is defined by a node of the graph.
//! 7. Outside names of inputs are unique within their kind; a `BufferMutation` names a buffer, or a parameter
//!    (which a training step updates), an `InputMutation` a user input, neither twice.
//! 8. Symbols in sizes are of the outermost graph's table; `min <= max`; a hint lies in the range; a subgraph has no
//!    symbols of its own.
//! 9. A size expression has no leaf but symbols (loop variables and kernel values are kernel-ir's).
//! 10. A tensor's meta has as many strides as sizes; no size or stride that is a number is negative; the sizes that are
//!     numbers make no more bytes than memory has addresses.
//! 11. Integers are [`Arg::Int`], never `Arg::Scalar(Scalar::Int)`.
//! 12. Guards use symbols of the graph that inputs bind; a subgraph has none.
//! 13. Every call is legal in the dialect, as the caller's predicate says.
//!
//! Whether an operator gets the operands it accepts, and a higher-order operator's subgraph the inputs it has, is knowledge
//! of `prims`, and the predicate checks it.

use std::fmt;

use ir_core::{Atom, Scalar, SymExpr, SymId, TensorMeta};
use rustc_hash::FxHashSet;
use thiserror::Error;

use crate::{Arg, Graph, InputKind, NodeId, NodeKind, OutputKind, Symbols, ValueId, ValueType};

/// The stages of a graph, from capture to lowering; each is a predicate over one graph type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dialect {
    /// As captured: mutation and composites are allowed.
    Captured,
    /// No mutation: what the program writes is an extra output.
    Functional,
    /// Only the closed set of primitive operators.
    Prim,
}

impl Dialect {
    /// Every dialect, in the order of the pipeline.
    pub const ALL: [Dialect; 3] = [Dialect::Captured, Dialect::Functional, Dialect::Prim];
    /// `captured`, `functional`, `prim`.
    pub const fn name(self) -> &'static str {
        match self {
            Dialect::Captured => "captured",
            Dialect::Functional => "functional",
            Dialect::Prim => "prim",
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The predicate of a dialect. fx-ir knows no operator, so the crate that does (`prims`) supplies it.
pub trait Legality {
    /// The dialect, for messages.
    fn dialect(&self) -> Dialect;
    /// Whether a call may be in the dialect.
    ///
    /// # Errors
    /// Why the call is not allowed, and what to do.
    fn is_legal(&self, target: &str, args: &[Arg]) -> Result<(), String>;
}

impl<F: Fn(&str, &[Arg]) -> Result<(), String>> Legality for (Dialect, F) {
    fn dialect(&self) -> Dialect {
        self.0
    }
    fn is_legal(&self, target: &str, args: &[Arg]) -> Result<(), String> {
        self.1(target, args)
    }
}

/// One violation: in which graph, at which node, and what.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("graph `{graph}`{}: {problem}", place(node, origin))]
pub struct VerifyError {
    /// Name of the graph or subgraph.
    pub graph: String,
    /// Name of the node, where the violation is at one.
    pub node: Option<String>,
    /// Where the node comes from; empty where that is not known.
    pub origin: String,
    /// What is wrong.
    pub problem: Problem,
}

fn place(node: &Option<String>, origin: &str) -> String {
    match (node, origin) {
        (None, _) => String::new(),
        (Some(node), "") => format!(", node `{node}`"),
        (Some(node), origin) => format!(", node `{node}` ({origin})"),
    }
}

/// The kinds of violation; the numbers are those of the list in the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)] // the message of each says what it is
pub enum Problem {
    #[error("{what} {id} does not exist")]
    OutOfRange { what: &'static str, id: String },
    #[error("the node stands in the order twice")]
    NodeTwice,
    #[error("a placeholder stands after a call: move it to the front")]
    PlaceholderAfterCall,
    #[error("a placeholder gives {0} values: it must give one")]
    PlaceholderValues(usize),
    #[error("value `{value}` is given by a second node")]
    DefinedTwice { value: String },
    #[error("value `{value}` names {def} as the node that gives it, which is not this node")]
    WrongDef { value: String, def: NodeId },
    #[error("value `{value}` is read before, or without, a node that gives it")]
    NotDefined { value: String },
    #[error("two inputs of one kind are named `{0}`")]
    InputTwice(String),
    #[error("an output writes {what} `{name}`, but no such input exists")]
    UnknownTarget { what: &'static str, name: String },
    #[error("two outputs write `{0}`")]
    WrittenTwice(String),
    #[error("symbol {0} has no value: its smallest is above its largest, or its hint is outside")]
    EmptyRange(SymId),
    #[error("a subgraph has symbols of its own: it uses its parent's by number")]
    SubgraphSymbols,
    #[error("guard `{0}` uses something that is not bound by inputs, or stands in a subgraph")]
    Guard(String),
    #[error("size expression `{0}` has a leaf that is no symbol of the graph")]
    ForeignLeaf(String),
    #[error("{sizes} sizes but {strides} strides")]
    RankMismatch { sizes: usize, strides: usize },
    #[error("meta `{0}` says more bytes than memory has addresses: correct its sizes")]
    TooLarge(String),
    #[error("meta `{0}` has a negative size or stride")]
    Negative(String),
    #[error("an integer stands as a scalar: use `Arg::Int`")]
    IntAsScalar,
    #[error("`{target}` is not legal in the {dialect} dialect: {why}")]
    Illegal { target: String, dialect: Dialect, why: String },
}

/// Checks the invariants listed in the module's documentation. `legality` judges the calls; a graph of any dialect passes with
/// [`well_formed`].
///
/// # Errors
/// Every violation, in execution order, subgraphs first.
pub fn verify(graph: &Graph, legality: &dyn Legality) -> Result<(), Vec<VerifyError>> {
    let mut errors = Vec::new();
    symbols(graph, &mut errors);
    guards(graph, &mut errors);
    Checker { symbols: &graph.symbols, legality }.graph(graph, &mut errors);
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Checks everything but the dialect.
///
/// # Errors
/// Every violation, in execution order, subgraphs first.
pub fn well_formed(graph: &Graph) -> Result<(), Vec<VerifyError>> {
    verify(graph, &(Dialect::Captured, |_: &str, _: &[Arg]| Ok(())))
}

fn error(graph: &Graph, node: Option<NodeId>, problem: Problem) -> VerifyError {
    let known = node.and_then(|id| graph.nodes.get(id).map(|n| (id, n)));
    let name = known.map(|(id, n)| match n.outputs.first().and_then(|&v| graph.values.get(v)) {
        Some(value) => value.name.clone(),
        None => n.as_call().map_or_else(|| id.to_string(), |(target, _)| target.to_string()),
    });
    let origin =
        known.and_then(|(_, n)| graph.origins.get(n.origin)).map(ToString::to_string).unwrap_or_default();
    VerifyError { graph: graph.name.clone(), node: name, origin, problem }
}

fn symbols(graph: &Graph, errors: &mut Vec<VerifyError>) {
    for (id, s) in graph.symbols.iter() {
        if !s.contains(s.min) || s.hint.is_some_and(|h| !s.contains(h)) {
            errors.push(error(graph, None, Problem::EmptyRange(id)));
        }
    }
}

fn guards(graph: &Graph, errors: &mut Vec<VerifyError>) {
    let given = |a: &Atom| matches!(a, Atom::Sym(id) if graph.symbols.get(*id).is_some_and(|s| !s.unbacked));
    for guard in &graph.guards {
        if guard.expression.any_leaf(|a| !given(a)) {
            errors.push(error(graph, None, Problem::Guard(guard.message.clone())));
        }
    }
}

/// More than any machine addresses, and few enough that sums of sizes and strides fit 64 bits.
const MAX_BYTES: i64 = 1 << 56;

struct Checker<'a> {
    symbols: &'a Symbols,
    legality: &'a dyn Legality,
}

impl Checker<'_> {
    fn graph(&self, graph: &Graph, errors: &mut Vec<VerifyError>) {
        for sub in graph.subgraphs.values() {
            if !sub.symbols.is_empty() {
                errors.push(error(sub, None, Problem::SubgraphSymbols));
            }
            for guard in &sub.guards {
                errors.push(error(sub, None, Problem::Guard(guard.message.clone())));
            }
            self.graph(sub, errors);
        }
        let mut state = State::default();
        for &id in &graph.order {
            let mut problems = Vec::new();
            self.node(graph, id, &mut state, &mut problems);
            errors.extend(problems.into_iter().map(|p| error(graph, Some(id), p)));
        }
        let mut problems = Vec::new();
        self.outputs(graph, &state, &mut problems);
        inputs(graph, &mut problems);
        errors.extend(problems.into_iter().map(|p| error(graph, None, p)));
    }

    fn node(&self, graph: &Graph, id: NodeId, state: &mut State, problems: &mut Vec<Problem>) {
        let Some(node) = graph.nodes.get(id) else {
            return problems.push(Problem::OutOfRange { what: "node", id: id.to_string() });
        };
        if !state.seen.insert(id) {
            return problems.push(Problem::NodeTwice);
        }
        if graph.origins.get(node.origin).is_none() {
            problems.push(Problem::OutOfRange { what: "origin", id: node.origin.to_string() });
        }
        match &node.kind {
            NodeKind::Placeholder { .. } => {
                if state.in_calls {
                    problems.push(Problem::PlaceholderAfterCall);
                }
                if node.outputs.len() != 1 {
                    problems.push(Problem::PlaceholderValues(node.outputs.len()));
                }
            }
            NodeKind::Call { target, args } => {
                state.in_calls = true;
                args.iter().for_each(|a| self.arg(graph, a, state, problems));
                if let Err(why) = self.legality.is_legal(target, args) {
                    let dialect = self.legality.dialect();
                    problems.push(Problem::Illegal { target: target.clone(), dialect, why });
                }
            }
        }
        for &value in &node.outputs {
            self.definition(graph, id, value, state, problems);
        }
    }

    fn definition(
        &self,
        graph: &Graph,
        id: NodeId,
        v: ValueId,
        state: &mut State,
        problems: &mut Vec<Problem>,
    ) {
        let Some(value) = graph.values.get(v) else {
            return problems.push(Problem::OutOfRange { what: "value", id: v.to_string() });
        };
        if !state.defined.insert(v) {
            problems.push(Problem::DefinedTwice { value: value.name.clone() });
        }
        if value.def != id {
            problems.push(Problem::WrongDef { value: value.name.clone(), def: value.def });
        }
        match &value.ty {
            ValueType::Tensor(meta) => self.meta(meta, problems),
            ValueType::Int(expr) => self.expr(expr, problems),
            ValueType::Float | ValueType::Bool | ValueType::None => {}
        }
    }

    fn outputs(&self, graph: &Graph, state: &State, problems: &mut Vec<Problem>) {
        let mut written = FxHashSet::default();
        for output in &graph.outputs {
            self.arg(graph, &output.arg, state, problems);
            let (what, name) = match &output.kind {
                OutputKind::BufferMutation(name) => ("buffer", name),
                OutputKind::InputMutation(name) => ("input", name),
                _ => continue,
            };
            let is_target = |kind| match what {
                "buffer" => matches!(kind, InputKind::Buffer { .. } | InputKind::Parameter),
                _ => kind == InputKind::User,
            };
            if !placeholders(graph).any(|(kind, n)| n == name && is_target(kind)) {
                problems.push(Problem::UnknownTarget { what, name: name.clone() });
            }
            if !written.insert((what, name)) {
                problems.push(Problem::WrittenTwice(name.clone()));
            }
        }
    }

    fn arg(&self, graph: &Graph, arg: &Arg, state: &State, problems: &mut Vec<Problem>) {
        match arg {
            Arg::Value(v) if graph.values.get(*v).is_none() => {
                problems.push(Problem::OutOfRange { what: "value", id: v.to_string() });
            }
            Arg::Value(v) if !state.defined.contains(v) => {
                problems.push(Problem::NotDefined { value: graph.values[*v].name.clone() });
            }
            Arg::Graph(g) if graph.subgraphs.get(*g).is_none() => {
                problems.push(Problem::OutOfRange { what: "subgraph", id: g.to_string() });
            }
            Arg::Int(expr) => self.expr(expr, problems),
            Arg::Scalar(Scalar::Int(_)) => problems.push(Problem::IntAsScalar),
            Arg::List(items) => items.iter().for_each(|a| self.arg(graph, a, state, problems)),
            _ => {}
        }
    }

    fn meta(&self, meta: &TensorMeta, problems: &mut Vec<Problem>) {
        if meta.sizes.len() != meta.strides.len() {
            let (sizes, strides) = (meta.sizes.len(), meta.strides.len());
            problems.push(Problem::RankMismatch { sizes, strides });
        }
        let all = || meta.sizes.iter().chain(&meta.strides).chain([&meta.offset]);
        all().for_each(|e| self.expr(e, problems));
        if all().any(|e| e.as_const().is_some_and(|c| c < 0)) {
            problems.push(Problem::Negative(meta.to_string()));
        }
        let known = meta.sizes.iter().filter_map(SymExpr::as_const);
        let mut factors = known.chain([meta.dtype.size() as i64]);
        let bytes = factors.try_fold(1i64, |n, size| n.checked_mul(size));
        if bytes.is_none_or(|bytes| bytes > MAX_BYTES) && !meta.sizes.contains(&SymExpr::ZERO) {
            problems.push(Problem::TooLarge(meta.to_string()));
        }
    }

    fn expr(&self, expr: &SymExpr, problems: &mut Vec<Problem>) {
        let foreign = |leaf: &Atom| match leaf {
            Atom::Sym(id) => self.symbols.get(*id).is_none(),
            _ => true,
        };
        if expr.any_leaf(foreign) {
            problems.push(Problem::ForeignLeaf(expr.to_string()));
        }
    }
}

#[derive(Default)]
struct State {
    seen: FxHashSet<NodeId>,
    defined: FxHashSet<ValueId>,
    in_calls: bool,
}

/// Kind and outside name of every placeholder, whether or not it is well-formed.
fn placeholders(graph: &Graph) -> impl Iterator<Item = (InputKind, &str)> {
    graph.order.iter().filter_map(|&id| match &graph.nodes.get(id)?.kind {
        NodeKind::Placeholder { kind, name } => Some((*kind, name.as_str())),
        NodeKind::Call { .. } => None,
    })
}

fn inputs(graph: &Graph, problems: &mut Vec<Problem>) {
    let mut names = FxHashSet::default();
    for (kind, name) in placeholders(graph) {
        if !names.insert((std::mem::discriminant(&kind), name)) {
            problems.push(Problem::InputTwice(name.to_string()));
        }
    }
}
