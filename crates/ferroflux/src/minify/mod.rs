//! Makes a failing program small: a graph and its inputs are reduced as long as a test of the caller's still fails.
//!
//! ```
//! # use ferroflux::{Options, Program, Tensor, fx_ir::Graph, minify::minify};
//! # use std::collections::BTreeMap;
//! # let graph: Graph = r#"fx 1.0
//! # graph "g" {
//! #   %x: f32[4] = input "x"
//! #   %a: f32[4] = aten.exp.default(%x)
//! #   %b: f32[4] = aten.tan.default(%a)
//! #   %c: f32[4] = aten.sin.default(%b)
//! #   return %c
//! # }"#.parse()?;
//! # let program = Program::from_graph(graph, &BTreeMap::new())?;
//! # let x = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], &[4])?;
//! let case = program.case(&[x.into()])?;
//! let found = minify(&case, &mut |case| case.graph.to_string().contains("aten.tan")).expect("it fails");
//! assert_eq!(found.after, 1);
//! assert_eq!(found.case.graph.inputs().count(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! First by bisection: the shortest beginning of the program that fails, as its last call's results; then the latest place at
//! which it can be cut such that what follows still fails, with the values there, as the interpreter computes them, as inputs.
//! Then piece by piece: outputs, results that become inputs, calls replaced by an operand. Then sizes ([`sizes`]).
//!
//! [`Probe`] has the tests for backends: wrong numbers, a refusal, a crash, slowness. A [`Case`] is a text file with a
//! safetensors file of its inputs beside it, which the command runs like a model. Not here: which operator of a program is
//! wrong ([`crate::verify`]).

mod case;
mod pieces;
mod probe;
mod sizes;

pub use case::Case;
pub use probe::{Failure, Observed, Probe};

use fx_ir::{NodeId, ValueId};

use crate::surgery::{ancestors, computed, cut, drop_unused_inputs, returning};

/// A smaller case that fails.
#[derive(Clone, Debug)]
pub struct Minified {
    /// The graph and its inputs.
    pub case: Case,
    /// Number of calls before.
    pub before: usize,
    /// Number of calls now.
    pub after: usize,
    /// How often the test ran.
    pub tests: usize,
}

/// How often the caller's test may run in the search piece by piece.
const BUDGET: usize = 600;

/// The test of the caller, counted.
pub(crate) struct Search<'f> {
    fails: &'f mut dyn FnMut(&Case) -> bool,
    tests: usize,
}

impl Search<'_> {
    /// Whether the case fails; one that is not well formed does not.
    pub(crate) fn fails(&mut self, case: &Case) -> bool {
        if case.graph.outputs.is_empty() || fx_ir::well_formed(&case.graph).is_err() {
            return false;
        }
        self.tests += 1;
        (self.fails)(case)
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.tests >= BUDGET
    }
}

/// The smallest case that was found for which `fails` returns true; `None` where it does not for `case` itself.
pub fn minify(case: &Case, fails: &mut dyn FnMut(&Case) -> bool) -> Option<Minified> {
    let mut search = Search { fails, tests: 0 };
    if !search.fails(case) {
        return None;
    }
    let before = case.calls();
    let mut best = one_output(case.clone(), &mut search);
    best = beginning(best, &mut search);
    best = end(best, &mut search);
    loop {
        let calls = best.calls();
        best = pieces::reduce(best, &mut search);
        best = sizes::reduce(best, &mut search);
        best = first_wrong(best, &mut search);
        if best.calls() >= calls || search.is_spent() {
            break;
        }
    }
    let mut best = without_unused(best, &mut search).canonical();
    best.graph.name = "minified".into();
    let (after, tests) = (best.calls(), search.tests);
    Some(Minified { case: best, before, after, tests })
}

/// Without inputs that nothing reads, where that fails.
fn without_unused(case: Case, search: &mut Search<'_>) -> Case {
    let mut smaller = case.clone();
    drop_unused_inputs(&mut smaller.graph);
    let smaller = smaller.tidied();
    if search.fails(&smaller) { smaller } else { case }
}

/// One of the outputs alone, where that fails.
fn one_output(case: Case, search: &mut Search<'_>) -> Case {
    if case.graph.outputs.len() < 2 {
        return case;
    }
    for output in &case.graph.outputs {
        let mut graph = case.graph.clone();
        graph.outputs = vec![output.clone()];
        prims::scalars::eliminate_dead(&mut graph);
        let smaller = case.with(graph);
        if search.fails(&smaller) {
            return smaller;
        }
    }
    case
}

/// The tensors that a call computes.
fn results(case: &Case, of: NodeId) -> Vec<ValueId> {
    let outputs = case.graph.nodes[of].outputs.iter().copied();
    outputs.filter(|&v| case.graph.meta(v).is_some()).collect()
}

/// The shortest beginning of the program that fails.
fn beginning(case: Case, search: &mut Search<'_>) -> Case {
    let calls: Vec<NodeId> =
        case.graph.iter().filter(|(_, n)| n.as_call().is_some()).map(|(id, _)| id).collect();
    let at = |n: usize| case.with(returning(&case.graph, &results(&case, calls[n])));
    let (mut low, mut high) = (0, calls.len());
    let mut best = None;
    while low < high {
        let middle = (low + high) / 2;
        let candidate = at(middle);
        if search.fails(&candidate) {
            (high, best) = (middle, Some(candidate));
        } else {
            low = middle + 1;
        }
    }
    best.unwrap_or(case)
}

/// The case with the results of its first call whose results fail by themselves: where the graph has branches, bisection may
/// have passed it by. It looks at all calls, so it is for what is left of a graph.
fn first_wrong(case: Case, search: &mut Search<'_>) -> Case {
    let calls: Vec<NodeId> =
        case.graph.iter().filter(|(_, n)| n.as_call().is_some()).map(|(id, _)| id).collect();
    for &id in calls.iter().take(calls.len().saturating_sub(1)) {
        if search.is_spent() {
            break;
        }
        let candidate = case.with(returning(&case.graph, &results(&case, id)));
        if candidate.calls() < case.calls() && search.fails(&candidate) {
            return candidate;
        }
    }
    case
}

/// The shortest end of the program that fails, with what comes before it as inputs.
fn end(case: Case, search: &mut Search<'_>) -> Case {
    let last = case.graph.outputs.iter().find_map(|o| match o.arg {
        fx_ir::Arg::Value(v) => Some(case.graph.values[v].def),
        _ => None,
    });
    let Some(last) = last else { return case };
    let calls = ancestors(&case.graph, last);
    let (mut low, mut high, mut best) = (0, calls.len(), None);
    // Before `low` everything can be cut off, at `high` not.
    while low + 1 < high {
        let middle = (low + high) / 2;
        match cut_before(&case, &calls, middle).filter(|candidate| search.fails(candidate)) {
            Some(candidate) => (low, best) = (middle, Some(candidate)),
            None => high = middle,
        }
    }
    best.unwrap_or(case)
}

/// The case in which the first `count` of the calls are replaced by their results; `None` where these are not known.
fn cut_before(case: &Case, calls: &[NodeId], count: usize) -> Option<Case> {
    let (before, after) = calls.split_at(count);
    let mut values: Vec<ValueId> = Vec::new();
    for &id in after {
        case.graph.nodes[id].for_each_use(&mut |v| {
            if before.contains(&case.graph.values[v].def) && !values.contains(&v) {
                values.push(v);
            }
        });
    }
    replaced(case, &values)
}

/// The case in which values that calls compute are inputs; `None` where the interpreter does not give them.
fn replaced(case: &Case, values: &[ValueId]) -> Option<Case> {
    if values.iter().any(|&v| case.graph.meta(v).is_none()) {
        return None;
    }
    let known = computed(&case.graph);
    let inner: Vec<ValueId> = values.iter().copied().filter(|v| known.contains(v)).collect();
    let tensors = case.in_eager(&inner)?;
    let mut smaller = case.with(cut(&case.graph, &inner));
    smaller.give(&inner, tensors);
    drop_unused_inputs(&mut smaller.graph);
    Some(smaller.tidied())
}
