//! The three runs of a graph that are compared: on the backend, in the interpreter, and in the interpreter in double precision.

use std::collections::BTreeMap;

use fx_ir::{Arg, Graph, InputKind, ValueId};
use plugin_host::Value;
use rustc_hash::FxHashSet;
use tensor::Tensor;

use super::double::{in_double, widened, without_counterpart};
use crate::inputs::varying;
use crate::surgery::{computed_operands, cut, cut_name, returning};
use crate::{Error, Input, Options, Program};

/// Bytes of values that are outputs of one run.
const TOGETHER: u64 = 512 << 20;
/// The size that a symbolic dimension counts as in that.
const SYMBOLIC: i64 = 64;

/// A program whose intermediate values are read.
pub(super) struct Runs {
    /// The functional graph.
    pub(super) graph: Graph,
    /// The values that the program returns.
    pub(super) returned: FxHashSet<ValueId>,
    weights: BTreeMap<String, Tensor>,
    /// The inputs of a call, without those that the program was exported for.
    inputs: Vec<Input>,
    options: Options,
    eager: Options,
    /// What is the same in double precision as in the interpreter.
    given: Vec<ValueId>,
}

impl Runs {
    pub(super) fn new(program: &Program, inputs: &[Input], options: &Options) -> Result<Runs, Error> {
        program.require_weights()?;
        let graph = program.functional()?;
        let inputs = varying(&program.inputs(), inputs).into_iter().cloned().collect();
        let mut weights = BTreeMap::new();
        for (_, kind, name) in graph.inputs() {
            if !matches!(kind, InputKind::User | InputKind::Seed)
                && let Some(Value::Host(tensor)) = program.weight_value(name, None)?
            {
                weights.insert(name.to_owned(), tensor);
            }
        }
        let returned = graph.outputs.iter().filter_map(|o| match o.arg {
            Arg::Value(v) => Some(v),
            _ => None,
        });
        let (returned, given) = (returned.collect(), without_counterpart(&graph));
        // All draw the same numbers.
        let options = options.clone().seed(options.seed.unwrap_or(0));
        let eager = Options::new().backend("eager").seed(options.seed.unwrap_or(0));
        Ok(Runs { graph, returned, weights, inputs, options, eager, given })
    }

    /// The values in groups whose memory is bounded.
    pub(super) fn groups<'v>(&self, values: &'v [ValueId]) -> Vec<&'v [ValueId]> {
        let (mut groups, mut start, mut sum) = (Vec::new(), 0, 0u64);
        for (n, &v) in values.iter().enumerate() {
            let bytes = self.bytes(v);
            if n > start && sum.saturating_add(bytes) > TOGETHER {
                groups.push(&values[start..n]);
                (start, sum) = (n, 0);
            }
            sum = sum.saturating_add(bytes);
        }
        groups.push(&values[start..]);
        groups
    }

    fn bytes(&self, v: ValueId) -> u64 {
        let Some(meta) = self.graph.meta(v) else { return 0 };
        let size = |s: &ir_core::SymExpr| {
            let hint = |a: &ir_core::Atom| match a {
                ir_core::Atom::Sym(id) => self.graph.symbols.get(*id)?.hint,
                _ => None,
            };
            s.eval(&hint).unwrap_or(SYMBOLIC).max(0) as u64
        };
        meta.sizes.iter().map(size).fold(meta.dtype.size() as u64, u64::saturating_mul)
    }

    /// The values on the backend, returned by one program.
    pub(super) fn on_backend(&self, values: &[ValueId]) -> Result<Vec<Tensor>, Error> {
        run(returning(&self.graph, values), &self.weights, &self.inputs, &self.options)
    }

    /// The values in the interpreter.
    pub(super) fn in_eager(&self, values: &[ValueId]) -> Result<Vec<Tensor>, Error> {
        run(returning(&self.graph, values), &self.weights, &self.inputs, &self.eager)
    }

    /// The values in double precision.
    pub(super) fn in_double(&self, values: &[ValueId]) -> Result<Vec<Tensor>, Error> {
        let graph = returning(&self.graph, values);
        let calls: FxHashSet<_> = graph.order.iter().copied().collect();
        let given: Vec<ValueId> =
            self.given.iter().copied().filter(|v| calls.contains(&graph.values[*v].def)).collect();
        let known = if given.is_empty() { Vec::new() } else { self.in_eager(&given)? };
        self.widely(&graph, &given, &known)
    }

    /// A graph in double precision, in which some values are inputs.
    fn widely(&self, graph: &Graph, given: &[ValueId], known: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        let graph = in_double(&cut(graph, given));
        let mut weights = BTreeMap::new();
        for (_, _, name) in graph.inputs() {
            if let Some(weight) = self.weights.get(name) {
                weights.insert(name.to_owned(), widened(weight)?);
            }
        }
        let mut inputs = Vec::with_capacity(self.inputs.len() + known.len());
        for input in &self.inputs {
            inputs.push(match input {
                Input::Tensor(Value::Host(t)) => widened(t)?.into(),
                other => other.clone(),
            });
        }
        for tensor in known {
            inputs.push(widened(tensor)?.into());
        }
        run(graph, &weights, &inputs, &self.eager)
    }

    /// The value that its call gives, in the interpreter and in double precision, for the operands that the backend
    /// computes: those that are `known` of the same run, for another run may round them otherwise. `None` where the call cannot
    /// be separated from the others.
    pub(super) fn alone(
        &self,
        v: ValueId,
        known: &dyn Fn(ValueId) -> Option<Tensor>,
    ) -> Result<Option<(Tensor, Tensor)>, Error> {
        let id = self.graph.values[v].def;
        let operands = computed_operands(&self.graph, id);
        if self.given.contains(&v) {
            let eager = self.in_eager(&[v])?.pop();
            return eager.map(|t| Ok((t.clone(), widened(&t)?))).transpose();
        }
        let known: Option<Vec<Tensor>> = operands.iter().map(|&v| known(v)).collect();
        let known = match known {
            Some(known) => known,
            None => self.on_backend(&operands)?,
        };
        let graph = returning(&self.graph, &[v]);
        let mut inputs = self.inputs.clone();
        inputs.extend(known.iter().map(Input::from));
        let eager = run(cut(&graph, &operands), &self.weights, &inputs, &self.eager);
        let truth = self.widely(&graph, &operands, &known);
        // Sizes that only data determines are no inputs' sizes: such a call is judged with what comes before it.
        let (Ok(mut eager), Ok(mut truth)) = (eager, truth) else {
            tracing::debug!(target: "graph", value = %cut_name(v), "a call cannot be run alone");
            return Ok(None);
        };
        Ok(eager.pop().zip(truth.pop()))
    }
}

fn run(
    graph: Graph,
    weights: &BTreeMap<String, Tensor>,
    inputs: &[Input],
    options: &Options,
) -> Result<Vec<Tensor>, Error> {
    Program::from_graph(graph, weights)?.compile(options)?.call_with(inputs)
}
