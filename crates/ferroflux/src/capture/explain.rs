//! What capture makes of a function: graphs, breaks with reasons and lines, guards.

use std::collections::BTreeMap;
use std::fmt;

use dynamo::frame::{self, Break, Outcome};

use super::entry::CallArgs;
use super::{Arguments, CompiledFn, Results};
use crate::Error;

/// A place at which a function needs values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakInfo {
    /// `file.rs:12:34`.
    pub at: String,
    /// Why.
    pub reason: String,
}

impl BreakInfo {
    pub(super) fn of(at: &Break) -> BreakInfo {
        BreakInfo { at: at.at.to_string(), reason: at.reason.clone() }
    }
}

/// What capture makes of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explained {
    /// Number of graphs: what the function computes before the first break, between two, and after the last, as far as that is
    /// anything.
    pub graphs: usize,
    /// Every place at which the function needs values, in the order in which it comes to them.
    pub breaks: Vec<BreakInfo>,
    /// The operators that the function calls in each of these parts, with the number of calls: one list more than there are
    /// breaks.
    pub parts: Vec<BTreeMap<String, usize>>,
    /// Each prim of the graph of the whole function with the number of its calls; none where it has breaks.
    pub prims: BTreeMap<String, usize>,
    /// The inputs of that graph with their types.
    pub inputs: Vec<String>,
    /// Conditions on sizes.
    pub guards: Vec<String>,
    /// Tensors from outside that the function writes.
    pub writes: usize,
}

impl<A: Arguments, R: Results> CompiledFn<A, R> {
    /// Captures the function for these arguments, and says what came of it. Where capture ends, the function runs on, so that
    /// every break is found, with `fullgraph` too. No form of the function is compiled or kept, but what it does outside of
    /// tensors happens.
    ///
    /// # Errors
    /// Refused calls of operators, and what the function returns.
    pub fn explain(&self, args: A) -> Result<Explained, Error> {
        let _modes = self.modes();
        let mut call = CallArgs::default();
        self.read(&args, &mut call)?;
        let (traced, seen) = frame::observed(|| self.traced(&args, &call, false));
        let (value, _, outcome) = traced?;
        let breaks: Vec<BreakInfo> = seen.breaks.iter().map(BreakInfo::of).collect();
        let graphs = seen.calls.iter().filter(|calls| !calls.is_empty()).count();
        let owned =
            |calls: BTreeMap<&str, usize>| calls.into_iter().map(|(op, n)| (op.to_owned(), n)).collect();
        let parts = seen.calls.into_iter().map(owned).collect();
        let mut explained = Explained { graphs, breaks, parts, ..Explained::default() };
        match outcome {
            Outcome::Failed(error) => return Err(error.into()),
            Outcome::Broken(_) => drop(value?),
            Outcome::Whole(capture) => {
                drop(value?);
                let graph = &capture.graph;
                for (target, _) in graph.iter().filter_map(|(_, node)| node.as_call()) {
                    *explained.prims.entry(target.to_owned()).or_insert(0) += 1;
                }
                let input = |(v, _, name)| Some(format!("{name}: {}", graph.meta(v)?));
                explained.inputs = graph.inputs().filter_map(input).collect();
                explained.guards = graph.guards.iter().map(|g| g.message.clone()).collect();
                explained.writes = capture.writes.len();
            }
        }
        Ok(explained)
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "graphs: {}, graph breaks: {}", self.graphs, self.breaks.len())?;
        for (n, calls) in self.parts.iter().enumerate() {
            let calls: Vec<String> = calls.iter().map(|(op, n)| format!("{n} {op}")).collect();
            writeln!(f, "  {}", if calls.is_empty() { "nothing".to_owned() } else { calls.join(", ") })?;
            if let Some(at) = self.breaks.get(n) {
                writeln!(f, "  break {}: {} at {}", n + 1, at.reason, at.at)?;
            }
        }
        let list = |f: &mut fmt::Formatter<'_>, name: &str, items: &[String]| {
            if items.is_empty() { Ok(()) } else { writeln!(f, "{name}:\n  {}", items.join("\n  ")) }
        };
        list(f, "inputs", &self.inputs)?;
        list(f, "guards", &self.guards)?;
        let prims: Vec<String> = self.prims.iter().map(|(name, n)| format!("{n:4}  {name}")).collect();
        list(f, "prims", &prims)?;
        if self.writes > 0 {
            writeln!(f, "tensors from outside that are written: {}", self.writes)?;
        }
        Ok(())
    }
}
