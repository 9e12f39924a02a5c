//! Optimization passes on graphs of prims. Each is `run(&mut Graph, &PassCx) -> Stats`; [`PASSES`]
//! lists them in order, [`optimize`] runs them, and [`optimize_watched`] shows the graph after each.
//!
//! They run on inference graphs, on forward graphs before the joint graph is built, on both halves of a partition and on
//! the merged graph. A pass names prims where its pattern is specific to them; properties of many prims (identities,
//! commuting operands, work) come from `prims::facts`. Passes never fail: what a rule cannot build stays as it was.

mod arithmetic;
mod attention;
mod clamps;
mod contractions;
mod conv;
mod cse;
mod dead;
mod fast_math;
mod fold;
mod heads;
mod integers;
mod masks;
pub(crate) mod matching;
mod patches;
mod quotients;
mod rewrite;
mod scalars;
mod siblings;
mod sums;
mod views;
mod weights;

use fx_ir::{Graph, ValueId};

/// What passes may assume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassCx {
    /// Parameters, constants and buffers that the graph does not write are the same in every call, so that what
    /// depends on them alone is computed once. Never in training.
    pub frozen: bool,
    /// The graph is still to be differentiated: `detach` has a meaning.
    pub to_be_differentiated: bool,
    /// Layers that read one value are one product, of which each is a slice: for devices, which several small products do not fill.
    pub side_by_side: bool,
    /// Results may round differently, and `NaN` and infinity need not be kept: `sin² + cos²` is 1.
    pub fast_math: bool,
    /// Opaque values: the cotangent of a loss, so that the values that depend on it keep doing so.
    pub opaque: Vec<ValueId>,
    /// Names of passes to skip, to find a faulty one.
    pub skip: Vec<String>,
}

impl PassCx {
    /// For a graph that computes results from frozen weights.
    pub fn inference() -> PassCx {
        PassCx { frozen: true, ..PassCx::default() }
    }
    /// For a forward graph from which a joint graph will be built.
    pub fn before_joint() -> PassCx {
        PassCx { to_be_differentiated: true, ..PassCx::default() }
    }
    /// For a training step: joint, split or merged.
    pub fn training() -> PassCx {
        PassCx::default()
    }
    /// The same with results that may round differently.
    pub fn fast_math(self, fast_math: bool) -> PassCx {
        PassCx { fast_math, ..self }
    }
}

/// The statistics of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls replaced or erased.
    pub changed: usize,
}

/// A pass.
pub struct Pass {
    /// Name, for dumps.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(&mut Graph, &PassCx) -> Stats,
}

/// Every pass, in the order in which they run. The simplifications run again after the patterns, which leave views.
pub const PASSES: &[Pass] = &[
    Pass { name: "fold", run: fold::run },
    Pass { name: "views", run: views::run },
    Pass { name: "arithmetic", run: arithmetic::run },
    Pass { name: "cse", run: cse::run },
    Pass { name: "integers", run: integers::run },
    Pass { name: "weights", run: weights::run },
    Pass { name: "fast-math", run: fast_math::run },
    Pass { name: "contractions", run: contractions::run },
    Pass { name: "attention", run: attention::run },
    Pass { name: "heads", run: heads::run },
    Pass { name: "masks", run: masks::run },
    Pass { name: "siblings", run: siblings::run },
    Pass { name: "conv", run: conv::run },
    Pass { name: "patches", run: patches::run },
    Pass { name: "sums", run: sums::run },
    Pass { name: "quotients", run: quotients::run },
    Pass { name: "clamps", run: clamps::run },
    Pass { name: "views-again", run: views::run },
    Pass { name: "cse-again", run: cse::run },
    Pass { name: "dead", run: dead::run },
];

/// Runs every pass once. Returns the statistics of each.
pub fn optimize(graph: &mut Graph, cx: &PassCx) -> Vec<(&'static str, Stats)> {
    optimize_watched(graph, cx, &mut |_, _| {})
}

/// As [`optimize`]; `after` is called with the name of each pass and the resulting graph.
pub fn optimize_watched(
    graph: &mut Graph,
    cx: &PassCx,
    after: &mut dyn FnMut(&str, &Graph),
) -> Vec<(&'static str, Stats)> {
    let mut done = Vec::with_capacity(PASSES.len());
    for pass in PASSES.iter().filter(|p| !cx.skip.iter().any(|name| name == p.name)) {
        let stats = run_pass(pass, graph, cx);
        tracing::debug!(target: "ferroflux::aot", pass = pass.name, changed = stats.changed);
        after(pass.name, graph);
        done.push((pass.name, stats));
    }
    done
}

/// Runs one pass on the subgraphs and then on the graph, so that the whole graph is in one state after each pass.
pub fn run_pass(pass: &Pass, graph: &mut Graph, cx: &PassCx) -> Stats {
    // The operands of a branch or loop body differ from call to call.
    let inner = PassCx { frozen: false, opaque: Vec::new(), ..cx.clone() };
    let mut changed = 0;
    for id in graph.subgraphs.ids() {
        let mut subgraph = std::mem::take(&mut graph.subgraphs[id]);
        graph.move_symbols(&mut subgraph);
        changed += run_pass(pass, &mut subgraph, &inner).changed;
        subgraph.move_symbols(graph);
        graph.subgraphs[id] = subgraph;
    }
    Stats { changed: changed + (pass.run)(graph, cx).changed }
}

#[cfg(test)]
pub(crate) mod testing;
