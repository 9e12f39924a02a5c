//! The graph itself: nodes, values, placeholders, outputs, subgraphs.
//!
//! Nodes are appended and never moved; `order` is the execution order and the only statement of what is in the graph
//! (a node that is not in `order` is erased). Passes either edit `order` or build a new graph.

use ir_core::{Arena, DType, Guard, Origin, SymExpr, SymId, TensorMeta};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{Arg, Symbol, Symbols};

ir_core::define_id! {
    /// A node of a graph.
    pub struct NodeId, "n"
}
ir_core::define_id! {
    /// A value: an output of a node.
    pub struct ValueId, "%"
}
ir_core::define_id! {
    /// An entry of a graph's origin table.
    pub struct OriginId, "o"
}
ir_core::define_id! {
    /// A subgraph of a graph.
    pub struct SubgraphId, "g"
}

/// Name of the placeholder of kind [`InputKind::Seed`].
pub const SEED: &str = "ferroflux.seed";

/// A graph's name.
pub type GraphName = String;

/// A graph of operator calls. Subgraphs share the symbols of the outermost graph by number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// Name, for messages.
    pub name: GraphName,
    /// Size symbols; empty in a subgraph, which uses its parent's.
    pub symbols: Symbols,
    /// Conditions that tracing assumed about the symbols. Every pass keeps them, and a call that breaks one is refused.
    /// Empty in a subgraph, which uses its parent's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<Guard>,
    /// All nodes ever made.
    pub nodes: Arena<NodeId, Node>,
    /// Execution order. Placeholders stand first.
    pub order: Vec<NodeId>,
    /// All values ever made.
    pub values: Arena<ValueId, Value>,
    /// What the graph returns, in order.
    pub outputs: Vec<Output>,
    /// Where nodes come from; entry 0 is the empty origin.
    pub origins: Arena<OriginId, Origin>,
    /// Bodies of higher-order operators.
    pub subgraphs: Arena<SubgraphId, Graph>,
}

/// A node: its kind, its results and its origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// Whether this is a placeholder or a call.
    pub kind: NodeKind,
    /// The values that it defines: one for a placeholder, any number for a call (list results are flattened).
    pub outputs: SmallVec<[ValueId; 1]>,
    /// Where it comes from.
    pub origin: OriginId,
}

/// The two kinds of node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum NodeKind {
    /// An input of the graph.
    Placeholder {
        /// What the input is.
        kind: InputKind,
        /// Its name outside the graph: the parameter's (`layer1.0.conv1.weight`) or the argument's.
        name: String,
    },
    /// A call of an operator.
    Call {
        /// Full name with overload: `aten.add.Tensor`, `prims.add`, `higher_order.cond`.
        target: String,
        /// Positional arguments, complete.
        args: Vec<Arg>,
    },
}

/// What an input of a graph is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InputKind {
    /// Given by the caller at every call.
    User,
    /// A trained weight.
    Parameter,
    /// State that is not trained.
    Buffer {
        /// Whether it is part of a checkpoint.
        persistent: bool,
    },
    /// A tensor constant lifted out of the program.
    Constant,
    /// The seed of a call's random numbers: an `i64` without dimensions that the executor of the graph supplies.
    Seed,
}

/// One result of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// What the result is for.
    pub kind: OutputKind,
    /// A value, or a constant that the program returns (`None`, a number).
    pub arg: Arg,
}

/// What a result of a graph is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OutputKind {
    /// Returned to the caller.
    User,
    /// The loss of a training graph, also returned to the caller.
    Loss,
    /// New value of the buffer with this name; in a training step also of a parameter.
    BufferMutation(String),
    /// New value of the user input with this name.
    InputMutation(String),
    /// Gradient of the parameter with this name.
    ParameterGradient(String),
    /// Gradient of the user input with this name.
    InputGradient(String),
    /// Kept by a forward graph for its backward graph.
    Saved,
}

/// A value: its name, type and definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// `conv2d_1`. Text forms add a number where two values have one name.
    pub name: String,
    /// What it is.
    pub ty: ValueType,
    /// The node that defines it.
    pub def: NodeId,
}

/// Type of a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ValueType {
    /// A tensor.
    Tensor(TensorMeta),
    /// An integer with this value (an unbacked symbol where the program computes it).
    Int(SymExpr),
    /// A float that the program computes (`item`).
    Float,
    /// A truth value that the program computes.
    Bool,
    /// An optional output that the operator does not produce.
    None,
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Graph {
        let mut graph = Graph { name: name.into(), ..Graph::default() };
        graph.origins.push(Origin::default());
        graph
    }
    /// Adds an origin and returns its id; the last one is reused where it is equal.
    pub fn add_origin(&mut self, origin: Origin) -> OriginId {
        let last = self.origins.iter().next_back().filter(|(_, last)| **last == origin).map(|(id, _)| id);
        last.unwrap_or_else(|| self.origins.push(origin))
    }
    /// Appends an input and returns its value.
    pub fn placeholder(
        &mut self,
        kind: InputKind,
        name: impl Into<String>,
        value_name: &str,
        ty: ValueType,
    ) -> ValueId {
        let kind = NodeKind::Placeholder { kind, name: name.into() };
        self.push_node(kind, [(value_name, ty)], OriginId(0))[0]
    }
    /// Appends a call; `outputs` are names (printers make them unique) and types. Returns its values.
    pub fn call<'n>(
        &mut self,
        target: impl Into<String>,
        args: Vec<Arg>,
        outputs: impl IntoIterator<Item = (&'n str, ValueType)>,
        origin: OriginId,
    ) -> SmallVec<[ValueId; 1]> {
        self.push_node(NodeKind::Call { target: target.into(), args }, outputs, origin)
    }
    fn push_node<'n>(
        &mut self,
        kind: NodeKind,
        outputs: impl IntoIterator<Item = (&'n str, ValueType)>,
        origin: OriginId,
    ) -> SmallVec<[ValueId; 1]> {
        let def = self.nodes.next_id();
        let mut ids = SmallVec::new();
        for (name, ty) in outputs {
            ids.push(self.values.push(Value { name: name.to_string(), ty, def }));
        }
        self.nodes.push(Node { kind, outputs: ids.clone(), origin });
        self.order.push(def);
        ids
    }
    /// Gives every value a name of its own: the second `x` becomes `x_1`. Random numbers depend on the names of the
    /// calls that draw them.
    pub fn make_names_unique(&mut self) {
        let mut taken = FxHashSet::default();
        for id in self.order.clone() {
            for &v in &self.nodes[id].outputs {
                let name = &mut self.values[v].name;
                let base = name.clone();
                let mut number = 0;
                while !taken.insert(name.clone()) {
                    number += 1;
                    *name = format!("{base}_{number}");
                }
            }
        }
    }
    /// The seed's placeholder, where the graph draws random numbers; [`InputKind::Seed`].
    pub fn seed(&self) -> Option<ValueId> {
        self.inputs().find(|(_, kind, _)| *kind == InputKind::Seed).map(|(v, _, _)| v)
    }
    /// The seed's placeholder, added after the others where the graph has none.
    pub fn require_seed(&mut self) -> ValueId {
        if let Some(seed) = self.seed() {
            return seed;
        }
        let meta = TensorMeta::contiguous(DType::I64, []);
        let seed = self.placeholder(InputKind::Seed, SEED, "seed", ValueType::Tensor(meta));
        // Placeholders stand first.
        let node = self.order.pop();
        let is_call = |id: &NodeId| matches!(self.nodes[*id].kind, NodeKind::Call { .. });
        let at = self.order.iter().position(is_call).unwrap_or(self.order.len());
        node.into_iter().for_each(|node| self.order.insert(at, node));
        seed
    }
    /// The meta of a tensor value; `None` for a value of another type.
    pub fn meta(&self, value: ValueId) -> Option<&TensorMeta> {
        match &self.values.get(value)?.ty {
            ValueType::Tensor(meta) => Some(meta),
            _ => None,
        }
    }
    /// Whether a node or an output reads the value.
    pub fn is_read(&self, value: ValueId) -> bool {
        let mut read = false;
        self.iter().for_each(|(_, node)| node.for_each_use(&mut |used| read |= used == value));
        self.outputs.iter().for_each(|o| o.arg.for_each_value(&mut |used| read |= used == value));
        read
    }
    /// Nodes in execution order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        // An id that is out of range is the verifier's to report; walking a graph never panics.
        self.order.iter().filter_map(|&id| Some((id, self.nodes.get(id)?)))
    }
    /// Inputs in order: value, kind, outside name.
    pub fn inputs(&self) -> impl Iterator<Item = (ValueId, InputKind, &str)> {
        self.iter().filter_map(|(_, node)| match &node.kind {
            NodeKind::Placeholder { kind, name } => Some((*node.outputs.first()?, *kind, name.as_str())),
            NodeKind::Call { .. } => None,
        })
    }
    /// What a message calls this node: its first value's name, or its target where it has no value.
    pub fn node_name(&self, id: NodeId) -> &str {
        let node = &self.nodes[id];
        match (node.outputs.first(), &node.kind) {
            (Some(&v), _) => &self.values[v].name,
            (None, NodeKind::Call { target, .. }) => target,
            (None, NodeKind::Placeholder { name, .. }) => name,
        }
    }
    /// Origin of a node.
    pub fn origin(&self, id: NodeId) -> &Origin {
        &self.origins[self.nodes[id].origin]
    }
    /// Records a guard, once.
    pub fn add_guard(&mut self, guard: Guard) {
        let same = |g: &Guard| g.expression == guard.expression && g.relation == guard.relation;
        if !self.guards.iter().any(same) {
            self.guards.push(guard);
        }
    }
    /// Makes the graph use the symbols of another graph: copies what is known of them, guards included. Code that builds a
    /// new graph from an old one calls this first.
    pub fn share_symbols(&mut self, of: &Graph) {
        self.symbols = of.symbols.clone();
        self.guards = of.guards.clone();
    }
    /// Copies what is known of the symbols, guards included, to a subgraph that is being built, or back to the graph around it.
    pub fn move_symbols(&mut self, to: &mut Graph) {
        to.symbols = std::mem::take(&mut self.symbols);
        to.guards = std::mem::take(&mut self.guards);
    }
    /// A size with the names that its symbols have in the user's program, for messages.
    pub fn size_text(&self, size: &SymExpr) -> String {
        size.text_with(&|id| self.symbols.get(id).map(|s| s.name.as_str()).filter(|n| !n.is_empty()))
    }
    /// Sizes as a list in brackets, by [`size_text`](Graph::size_text).
    pub fn sizes_text(&self, sizes: &[SymExpr]) -> String {
        let list: Vec<String> = sizes.iter().map(|s| self.size_text(s)).collect();
        format!("[{}]", list.join(", "))
    }
    /// Adds a symbol and returns its id.
    pub fn add_symbol(&mut self, symbol: Symbol) -> SymId {
        self.symbols.push(symbol)
    }
}

impl Node {
    /// Target and arguments of a call.
    pub fn as_call(&self) -> Option<(&str, &[Arg])> {
        match &self.kind {
            NodeKind::Call { target, args } => Some((target, args)),
            NodeKind::Placeholder { .. } => None,
        }
    }
    /// Calls `visit` for every value that the node reads.
    pub fn for_each_use(&self, visit: &mut dyn FnMut(ValueId)) {
        if let NodeKind::Call { args, .. } = &self.kind {
            args.iter().for_each(|a| a.for_each_value(visit));
        }
    }
}

impl ValueType {
    /// The tensor's meta.
    pub fn as_tensor(&self) -> Option<&TensorMeta> {
        match self {
            ValueType::Tensor(meta) => Some(meta),
            _ => None,
        }
    }
}
