//! The text form of graphs, `.fx`: printer, parser and the canonical form that a round trip produces.
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
//! - `guard expression, zero|nonzero|nonnegative "message" [from module[:function[:"source"]]]` (1.1), after the symbols.
//! - `subgraph g<n> "name" { body }`, numbered from 0; an argument names it `&g0`.
//! - `%value: type = input|parameter|buffer|buffer transient|constant "outside name"`.
//! - `[%value: type, …] = target(argument, …) [from module[:function[:["source"][:["operator"][:"precision"]]]]]`; no value,
//!   no `=`. The operator (1.1) is the one of the user's program that the call is a part of, where errors must name it; the
//!   precision (1.2) names the regions of mixed precision around it, as [`ir_core::Precisions`] prints them.
//! - `return [kind] argument`: kinds are `loss`, `saved`, and with `"name" =`: `buffer`, `input`,
//!   `parameter_gradient`, `input_gradient`.
//!
//! Types are `f32[2, s0]{strides}+offset@device` (as [`ir_core::TensorMeta`] prints), `int(s0 + 1)`, `float`, `bool`,
//! `none`. Arguments are `none`, `%value`, size expressions, `0.5`, `true`, `complex(1.0, -2.0)`, `"text"`, dtypes
//! (`f32`), `@device`, `strided`/`sparse`/`other_layout`, `contiguous`/`preserve`/`channels_last`/`channels_last_3d`,
//! lists `[…]`. A name that is not letters, digits, `_` and `.` is in quotes.
//!
//! The text form omits what is unreachable: nodes that are not in `order`, their values, and unused origins. Loop variables
//! and kernel values (`i0`, `v0`) are not sizes of a graph and do not read back.

mod canonical;
mod names;
mod parse;
mod print;
mod words;

use std::fmt;
use std::str::FromStr;

pub use ir_core::text::{TextError, TextProblem};
use ir_core::{Origin, TensorMeta};

use crate::Graph;

pub(crate) use names::Names;
pub(crate) use print::{arg_text, type_text};

/// Version of the text form. A reader accepts the same major and no newer minor; [`print()`] writes the oldest minor that
/// can express everything the graph uses.
pub const TEXT_VERSION: (u32, u32) = (1, 2);

/// The minor version that introduced guards and the operator of an origin.
const GUARDS: u32 = 1;

/// The minor version that introduced regions of mixed precision.
const PRECISIONS: u32 = 2;

/// Deepest nesting of lists and subgraphs that the parser follows; more than any real graph has.
pub const MAX_DEPTH: usize = 64;

/// Longest text that the parser takes, in bytes; the largest known model prints to some 3 MB.
pub const MAX_BYTES: usize = 1 << 28;

/// Whether the origin of a node, in subgraphs too, is such.
fn any_origin(graph: &Graph, is: fn(&Origin) -> bool) -> bool {
    let such = |node: &crate::Node| graph.origins.get(node.origin).is_some_and(is);
    graph.iter().any(|(_, node)| such(node)) || graph.subgraphs.values().any(|g| any_origin(g, is))
}

/// The oldest minor version that can express everything that a graph uses.
fn minor(graph: &Graph) -> u32 {
    if any_origin(graph, |origin| !origin.precisions.is_empty()) {
        return PRECISIONS;
    }
    let named = !graph.guards.is_empty() || any_origin(graph, |origin| !origin.operator.is_empty());
    if named { GUARDS } else { 0 }
}

/// The text form of `graph`, with the version header. Names of values are made unique.
pub fn print(graph: &Graph) -> String {
    let mut out = format!("fx {}.{}\n\n", TEXT_VERSION.0, minor(graph));
    print::graph(graph, &mut out);
    out
}

/// Reads a graph from its text form. Checks the grammar and that names are defined; run
/// [`verify`](crate::verify()) for the rest.
///
/// # Errors
/// Reports the first place that violates the grammar, with line and column.
pub fn parse(text: &str) -> Result<Graph, TextError> {
    parse::document(text)
}

/// Reads what [`TensorMeta`]'s `Display` prints: `f32[2, s0]{1, 2}+4@cuda:0`.
///
/// # Errors
/// Reports the first place that violates the grammar, with line and column.
pub fn parse_meta(text: &str) -> Result<TensorMeta, TextError> {
    parse::single_meta(text)
}

/// The graph as a round trip through text returns it: nodes and values renumbered in execution order, unreachable ones
/// removed, names unique, equal origins merged.
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
