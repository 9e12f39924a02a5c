//! A case's joint graph in double precision: the same graph with every `f32` made `f64`, run by the interpreter.

use anyhow::{Context, Result, anyhow};
use ferroflux::Program;
use ferroflux::train::DiffOptions;
use fx_ir::{Arg, Graph, InputKind, Output, OutputKind, ValueId, text};
use interp::Value;
use regex::Regex;
use tensor::Tensor;

use super::{Loaded, inputs};

/// The joint graph of a case as it is, and in double precision; the same numbers of values in both.
pub(crate) struct Wide {
    /// As it is.
    pub(crate) narrow: Graph,
    /// In double precision.
    pub(crate) wide: Graph,
    /// The gradient of each parameter that has one.
    pub(crate) gradients: Vec<(String, ValueId)>,
}

impl Wide {
    /// The graphs of the gradients of a case's loss.
    ///
    /// # Errors
    /// What `Program::joint` refuses.
    pub(crate) fn of(loaded: &Loaded) -> Result<Wide> {
        let joint = Program::from(loaded.program.clone()).joint(&DiffOptions::new())?;
        let narrow = text::canonical(&joint.graph);
        let gradient = |o: &Output| match (&o.kind, &o.arg) {
            (OutputKind::ParameterGradient(name), Arg::Value(v)) => Some((name.clone(), *v)),
            _ => None,
        };
        let gradients = narrow.outputs.iter().filter_map(gradient).collect();
        let doubled = Regex::new(r"\bf32\b")?.replace_all(&text::print(&joint.graph), "f64").into_owned();
        Ok(Wide { narrow, wide: text::parse(&doubled)?, gradients })
    }

    /// Values in double precision.
    ///
    /// # Errors
    /// A missing weight or input; what the interpreter refuses.
    pub(crate) fn values(&self, loaded: &Loaded, wanted: &[ValueId]) -> Result<Vec<Tensor>> {
        let wide = returning(&self.wide, wanted);
        let users = inputs(&loaded.golden, "")?;
        let mut users = users.iter();
        let mut given = Vec::new();
        for (v, kind, name) in wide.inputs().filter(|(_, kind, _)| *kind != InputKind::Seed) {
            let tensor = match kind {
                InputKind::User => users.next().cloned(),
                _ => loaded.program.weights.get(name).and_then(|w| w.tensor.clone()),
            };
            let tensor = tensor.with_context(|| format!("no value for `{name}`"))?;
            let dtype = wide.meta(v).map_or(tensor.dtype(), |m| m.dtype);
            given.push(Value::Tensor(tensor.to_dtype(dtype)?));
        }
        let outcome = interp::execute(&wide, given)?;
        let tensor = |v: Value| v.into_tensor()?.ok_or_else(|| anyhow!("a value is no tensor"));
        outcome.outputs.into_iter().map(tensor).collect()
    }
}

/// The graph with these values as its results.
pub(crate) fn returning(graph: &Graph, values: &[ValueId]) -> Graph {
    let output = |v: &ValueId| Output { kind: OutputKind::User, arg: Arg::Value(*v) };
    Graph { outputs: values.iter().map(output).collect(), ..graph.clone() }
}
