//! The text form of graphs, `.fx`: printer, parser and the canonical form that a round trip gives.
//!
//! ```text
//! fx 1.0
//!
//! graph "net" {
//!   symbol s0 "batch" 2..=64 hint 8
//!   %x: f32[s0, 3] = input "x"
//!   %w: f32[3, 4] = parameter "fc.weight"
//!
//!   %mm: f32[s0, 4] = aten.mm.default(%x, %w) from fc:linear:"net.py:12"
//!   %max: f32[s0], %argmax: i64[s0] = aten.max.dim(%mm, 1, false)
//!   return %max
//!   return buffer "peak" = %mm
//! }
//! ```
//!
//! Line ends are white space, `#` starts a comment. The grammar, in the order of a graph's body:
//!
//! - `symbol s<n> "name" <min>..[=<max>] [hint <n>] [unbacked]`, numbered from 0.
//! - `guard expression, zero|nonzero|nonnegative "message" [from module[:function[:"source"]]]` (1.1), behind the symbols.
//! - `subgraph g<n> "name" { body }`, numbered from 0; an argument names it `&g0`.
//! - `%value: type = input|parameter|buffer|buffer transient|constant "outside name"`.
//! - `[%value: type, …] = target(argument, …) [from module[:function[:["source"][:"operator"]]]]`; no value, no `=`. The
//!   operator (1.1) is the one of the user's program that the call is a part of, where errors must name it.
//! - `return [kind] argument`: kinds are `loss`, `saved`, and with `"name" =`: `buffer`, `input`,
//!   `parameter_gradient`, `input_gradient`.
//!
//! Types are `f32[2, s0]{strides}+offset@device` (as [`ir_core::TensorMeta`] prints), `int(s0 + 1)`, `float`, `bool`,
//! `none`. Arguments are `none`, `%value`, size expressions, `0.5`, `true`, `complex(1.0, -2.0)`, `"text"`, dtypes
//! (`f32`), `@device`, `strided`/`sparse`/`other_layout`, `contiguous`/`preserve`/`channels_last`/`channels_last_3d`,
//! lists `[…]`. A name that is not letters, digits, `_` and `.` stands in quotes.
//!
//! What the form does not hold is what nothing reaches: nodes that are not in `order`, their values, unused origins.
//! Loop variables and kernel values (`i0`, `v0`) are no sizes of a graph and do not read back.

mod canonical;
mod names;
mod parse;
mod print;
mod words;

use std::fmt;
use std::str::FromStr;

use ir_core::TensorMeta;
pub use ir_core::text::{TextError, TextProblem};

use crate::Graph;

pub(crate) use names::Names;
pub(crate) use print::{arg_text, type_text};

/// Version of the text form. A reader takes the same major and no newer minor; [`print()`] writes the oldest minor that
/// has all that the graph uses.
pub const TEXT_VERSION: (u32, u32) = (1, 1);

/// The minor that guards, and operators of origins, came with.
const GUARDS: u32 = 1;

/// Deepest nesting of lists and subgraphs that the parser follows; more than any real graph has.
pub const MAX_DEPTH: usize = 64;

/// Longest text that the parser takes, in bytes; the largest known model prints to some 3 MB.
pub const MAX_BYTES: usize = 1 << 28;

/// Whether the origin of a node, in subgraphs too, names an operator.
fn names_operators(graph: &Graph) -> bool {
    let named = |node: &crate::Node| graph.origins.get(node.origin).is_some_and(|o| !o.operator.is_empty());
    graph.iter().any(|(_, node)| named(node)) || graph.subgraphs.values().any(names_operators)
}

/// The text form of `graph`, with the version header. Names of values are made unique.
pub fn print(graph: &Graph) -> String {
    let minor = if graph.guards.is_empty() && !names_operators(graph) { 0 } else { GUARDS };
    let mut out = format!("fx {}.{minor}\n\n", TEXT_VERSION.0);
    print::graph(graph, &mut out);
    out
}

/// Reads a graph from its text form. Checks the grammar and that names are defined; run
/// [`verify`](crate::verify()) for the rest.
///
/// # Errors
/// The first place that is not the grammar's, with line and column.
pub fn parse(text: &str) -> Result<Graph, TextError> {
    parse::document(text)
}

/// Reads what [`TensorMeta`]'s `Display` prints: `f32[2, s0]{1, 2}+4@cuda:0`.
///
/// # Errors
/// The first place that is not the grammar's, with line and column.
pub fn parse_meta(text: &str) -> Result<TensorMeta, TextError> {
    parse::single_meta(text)
}

/// The graph as a round trip through text gives it: nodes and values renumbered in execution order, unreachable ones
/// gone, names unique, equal origins merged.
pub fn canonical(graph: &Graph) -> Graph {
    canonical::graph(graph)
}

impl fmt::Display for Graph {
    /// The text form, see [`crate::text`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self))
    }
}

impl FromStr for Graph {
    type Err = TextError;
    fn from_str(text: &str) -> Result<Graph, TextError> {
        parse(text)
    }
}
