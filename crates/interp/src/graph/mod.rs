//! Runs a graph: binds the inputs, walks the nodes in order, frees every value after its last use.

mod alias;
mod call;
mod control;
mod inputs;
mod scalar_loop;
mod symbolic;

use fx_ir::{Arg, Graph, NodeId, NodeKind, ValueId, ValueType};
use ir_core::{EntityId, SymExpr};
use prims::OpError;
use tensor::{Tensor, TensorError};

use self::alias::Aliases;
use crate::{Bindings, InterpError, Location, Value};

/// Nested calls of graphs (control flow, decompositions) deeper than any real program has.
const MAX_DEPTH: u32 = 64;

/// What a run gives.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// One value an output of the graph, in order.
    pub outputs: Vec<Value>,
    /// Inputs that the program wrote in place: position of the placeholder and its new value.
    pub mutated: Vec<(usize, Tensor)>,
}

/// Runs `graph` on tensors for all its placeholders in order (parameters and buffers among them); an integer input is
/// a tensor with one element. Returns the outputs in order: numbers as tensors without dimensions, `None` left out.
///
/// # Errors
/// Inputs that do not fit, operators that are unknown or refuse their operands; see [`InterpError`].
pub fn run(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, InterpError> {
    let values: Vec<Value> = inputs.iter().cloned().map(Value::Tensor).collect();
    let outcome = execute(graph, values)?;
    let at = || Location { node: "output".into(), target: "output".into(), ..Location::default() };
    let tensors = outcome.outputs.into_iter().map(Value::into_tensor);
    tensors
        .filter_map(Result::transpose)
        .collect::<Result<_, _>>()
        .map_err(|error| InterpError::Tensor { at: Box::new(at()), error })
}

/// As [`run`], with values in and out, and what the program wrote into its inputs.
pub fn execute(graph: &Graph, inputs: Vec<Value>) -> Result<Outcome, InterpError> {
    execute_seeded(graph, inputs, 0)
}

/// As [`execute`] with the seed of this run's random numbers. It also stands for a placeholder of kind
/// [`InputKind::Seed`](fx_ir::InputKind::Seed) that `inputs` leaves out (by being one shorter, or with `Value::None`).
pub fn execute_seeded(graph: &Graph, inputs: Vec<Value>, seed: u64) -> Result<Outcome, InterpError> {
    let mut bindings = Bindings::new();
    let inputs = inputs::bind(graph, inputs::with_seed(graph, inputs, seed), &mut bindings)?;
    let mut frame = Frame::new(graph, &mut bindings, 0, seed);
    frame.set_inputs(inputs);
    frame.run()?;
    frame.finish()
}

/// A graph being run.
struct Frame<'g, 'b> {
    graph: &'g Graph,
    bindings: &'b mut Bindings,
    env: Vec<Option<Value>>,
    /// For every value the position in the order after which nobody reads it; `usize::MAX` for outputs.
    last_use: Vec<usize>,
    aliases: Option<Aliases>,
    depth: u32,
    /// Seed of the random numbers.
    seed: u64,
}

impl<'g, 'b> Frame<'g, 'b> {
    fn new(graph: &'g Graph, bindings: &'b mut Bindings, depth: u32, seed: u64) -> Frame<'g, 'b> {
        let env = graph.values.ids().map(|_| None).collect();
        let aliases = Aliases::of(graph);
        Frame { graph, bindings, env, last_use: last_uses(graph), aliases, depth, seed }
    }

    /// Gives the placeholders their values, in order.
    fn set_inputs(&mut self, inputs: Vec<Value>) {
        let ids: Vec<ValueId> = self.graph.inputs().map(|(v, _, _)| v).collect();
        for (n, (v, value)) in ids.into_iter().zip(inputs).enumerate() {
            if let (Some(aliases), Value::Tensor(t)) = (&mut self.aliases, &value) {
                aliases.fresh(v, t, Some(n));
            }
            self.env[v.index()] = Some(value);
        }
    }

    fn run(&mut self) -> Result<(), InterpError> {
        let graph = self.graph;
        for (position, &id) in graph.order.iter().enumerate() {
            if let NodeKind::Call { target, args } = &graph.nodes[id].kind {
                self.node(id, target, args)?;
                self.free(id, position);
            }
        }
        Ok(())
    }

    /// Computes one call, checks its results and stores them.
    fn node(&mut self, id: NodeId, target: &str, args: &[Arg]) -> Result<(), InterpError> {
        let mut results = self.call(id, target, args)?;
        if self.aliases.is_some() {
            alias::settle(self, id, target, args, &mut results)?;
        }
        let outputs = &self.graph.nodes[id].outputs;
        // Fewer elements split into fewer parts than they did at the capture; nobody may read those that are missing.
        let missing = outputs.get(results.len()..).unwrap_or_default();
        if missing.iter().any(|&v| self.is_read(id, v)) {
            let what = format!("gives {} values, the graph wants {}", results.len(), outputs.len());
            return Err(InterpError::Graph { at: self.at(id), what });
        }
        for (&v, result) in outputs.iter().zip(&results) {
            match self.check(id, v, result) {
                // Archives state wrong sizes for states of recurrent layers.
                Err(_) if !self.is_read(id, v) => {}
                Err(_) if ["aten.lstm", "aten.gru", "aten.rnn_"].iter().any(|p| target.starts_with(p)) => {}
                checked => checked?,
            }
        }
        if self.aliases.is_some() {
            return alias::record(self, id, target, args, results);
        }
        for (&v, result) in outputs.iter().zip(results) {
            self.env[v.index()] = Some(result);
        }
        Ok(())
    }

    /// Whether a later node or the caller reads the result `v` of node `id`.
    fn is_read(&self, id: NodeId, v: ValueId) -> bool {
        let position = self.graph.order.iter().position(|&n| n == id);
        self.last_use.get(v.index()).copied() > position
    }

    /// Binds unbacked symbols from a result, and compares it with what the graph says of it.
    fn check(&mut self, id: NodeId, v: ValueId, result: &Value) -> Result<(), InterpError> {
        let graph = self.graph;
        let differs = |frame: &Self, got: String, expected: String| {
            Err(InterpError::Result { at: frame.at(id), got, expected })
        };
        match (&graph.values[v].ty, result) {
            (ValueType::Tensor(meta), Value::Tensor(t)) => {
                let fits = meta.dtype == t.dtype()
                    && meta.rank() == t.rank()
                    && meta.sizes.iter().zip(t.sizes()).all(|(e, &n)| self.size_is(e, n as i64));
                if fits {
                    return self
                        .in_range(id, meta.sizes.iter().cloned().zip(t.sizes().iter().map(|&n| n as i64)));
                }
                let expected = meta.sizes.iter().map(|e| self.bindings.subst(e).to_string());
                let expected = format!("{}[{}]", meta.dtype, expected.collect::<Vec<_>>().join(", "));
                differs(self, format!("{}{:?}", t.dtype(), t.sizes()), expected)
            }
            (ValueType::Int(expr), Value::Scalar(s)) => match self.bindings.unify(expr, s.as_i64()) {
                Ok(_) => self.in_range(id, [(expr.clone(), s.as_i64())]),
                Err(conflict) => differs(self, s.to_string(), conflict.to_string()),
            },
            (ValueType::Tensor(_), _) => differs(self, "no tensor".into(), "a tensor".into()),
            (ValueType::Int(_), _) => differs(self, "no number".into(), "an integer".into()),
            (ValueType::Float | ValueType::Bool | ValueType::None, _) => Ok(()),
        }
    }

    /// Whether the sizes that results alone tell lie in their ranges.
    fn in_range(
        &self,
        id: NodeId,
        told: impl IntoIterator<Item = (SymExpr, i64)>,
    ) -> Result<(), InterpError> {
        let mut symbols = self.graph.symbols.iter().filter(|(_, s)| s.unbacked).peekable();
        if symbols.peek().is_none() {
            return Ok(());
        }
        let symbols = symbols.map(|(id, s)| (id, s.name.as_str(), s.min, s.max));
        match self.bindings.out_of_range(symbols, &told.into_iter().collect::<Vec<_>>()) {
            None => Ok(()),
            Some((_, conflict)) => Err(InterpError::Result {
                at: self.at(id),
                got: "a size".into(),
                expected: conflict.to_string(),
            }),
        }
    }

    /// Whether a size expression has this value, binding it where it is one unknown symbol.
    fn size_is(&mut self, expr: &SymExpr, value: i64) -> bool {
        self.bindings.unify(expr, value).is_ok()
    }

    fn free(&mut self, id: NodeId, position: usize) {
        let graph = self.graph;
        let node = &graph.nodes[id];
        let mut dead = Vec::new();
        node.for_each_use(&mut |v| dead.push(v));
        dead.extend(node.outputs.iter().copied());
        for v in dead {
            if self.last_use.get(v.index()).is_some_and(|&last| last <= position) {
                self.env[v.index()] = None;
                if let Some(aliases) = &mut self.aliases {
                    aliases.release(v);
                }
            }
        }
    }

    fn finish(self) -> Result<Outcome, InterpError> {
        let outputs = self.graph.outputs.iter().map(|o| self.output(&o.arg)).collect::<Result<_, _>>()?;
        Ok(Outcome { outputs, mutated: self.aliases.map(Aliases::mutated_inputs).unwrap_or_default() })
    }

    fn output(&self, arg: &Arg) -> Result<Value, InterpError> {
        let at =
            || Box::new(Location { node: "output".into(), target: "output".into(), ..Location::default() });
        match arg {
            Arg::Value(v) => self.env[v.index()].clone().ok_or_else(|| InterpError::Graph {
                at: at(),
                what: format!("returns `{}`, which has no value", self.graph.values[*v].name),
            }),
            Arg::Int(expr) => {
                let value = self.bindings.eval(expr);
                let value = value.ok_or_else(|| InterpError::Unbound { at: at(), expr: expr.to_string() })?;
                Ok(Value::Scalar(value.into()))
            }
            Arg::Scalar(s) => Ok(Value::Scalar(*s)),
            _ => Ok(Value::None),
        }
    }

    /// The value, which must have been computed.
    fn value(&self, id: NodeId, v: ValueId) -> Result<&Value, InterpError> {
        self.env.get(v.index()).and_then(Option::as_ref).ok_or_else(|| InterpError::Graph {
            at: self.at(id),
            what: format!("reads value {v}, which is not there"),
        })
    }

    fn at(&self, id: NodeId) -> Box<Location> {
        let target = self.graph.nodes[id].as_call().map_or("placeholder", |(target, _)| target);
        Box::new(Location {
            node: self.graph.node_name(id).into(),
            target: target.into(),
            origin: self.graph.origin(id).clone(),
        })
    }
    fn refused(&self, id: NodeId, error: OpError) -> InterpError {
        match error {
            OpError::Index { site, index, size } => {
                let site = Box::new(prims::site(self.graph, id, site.dim as usize));
                InterpError::Index { site, index, size }
            }
            error => InterpError::Node { at: self.at(id), error },
        }
    }
    fn tensor_error(&self, id: NodeId, error: TensorError) -> InterpError {
        InterpError::Tensor { at: self.at(id), error }
    }
}

/// For every value the position in the order of its last reader, or of its own node.
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last = vec![0; graph.values.len()];
    for (position, (_, node)) in graph.iter().enumerate() {
        node.outputs.iter().for_each(|v| last[v.index()] = position);
        node.for_each_use(&mut |v| last[v.index()] = position);
    }
    for output in &graph.outputs {
        output.arg.for_each_value(&mut |v| last[v.index()] = usize::MAX);
    }
    last
}
