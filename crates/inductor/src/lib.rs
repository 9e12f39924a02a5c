//! The compiler's middle: from a graph of prims to a kernel-ir program.
//!
//! Five stages, each a function from data to data: [`lower`](lower::lower) records a loop body for every prim;
//! [`realize`](realize::realize) decides which values get memory and how it is laid out, the others being computed where
//! they are read; [`schedule`](schedule::schedule) fuses loops into groups; [`emit`](emit::emit) turns groups into
//! kernels and buffers with a static memory plan; [`together`](together::run) groups independent small steps. Nothing here knows a device; nothing runs.
//!
//! ```
//! let text = r#"fx 1.0
//! graph "swish" {
//!   symbol s0 "n" 1..=1024
//!   %x: f32[s0] = input "x"
//!   %s: f32[s0] = aten.sigmoid.default(%x)
//!   %y: f32[s0] = aten.mul.Tensor(%x, %s)
//!   return %y
//! }
//! "#;
//! let graph = prims::decompose(&text.parse().unwrap()).unwrap();
//! let program = inductor::compile(&graph, &inductor::Options::default())?;
//! assert_eq!(program.steps.len(), 1, "one fused loop");
//! # Ok::<(), inductor::InductorError>(())
//! ```

mod affine;
mod buckets;
mod control;
mod defs;
mod emit;
mod error;
mod exchanges;
mod filters;
mod in_place;
mod inline;
mod joined;
mod kernels;
mod layout;
mod lower;
mod merge;
mod narrow;
mod orient;
mod peak;
mod realize;
mod rows;
mod schedule;
mod text;
mod together;

use fx_ir::{Graph, ValueId};
use ir_core::{Shape, SymId};
use kernel_ir::{Program, Symbols};
use rustc_hash::FxHashSet;

pub use control::ControlCall;
pub use defs::{Def, DefKind, Defs};
pub use error::{InductorError, Problem};
pub use in_place::{buffer_writes, input_writes};
pub use schedule::Group;
pub use text::loops_text;

/// The options of the lowering.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// For each output of the graph the strides that the returned tensor is to have; row-major where `None` and where the
    /// strides are not those of a dense tensor.
    pub output_strides: Vec<Option<Shape>>,
    /// For each output of the graph the placeholder in whose memory the call leaves it, in the input's strides: the program
    /// then declares that input written and has no such output. The placeholder has the output's dtype and sizes and is an
    /// input of the call; [`buffer_writes`] gives those of parameters and buffers, [`input_writes`] those of inputs too. Where no kernel may overwrite the old
    /// value, the new one is computed in a temporary and copied at the end of the call. Inputs that share memory with a
    /// written one are the caller's responsibility: they may be read before or after the write.
    pub written: Vec<Option<ValueId>>,
    /// Whether the caller answers for indices from data: then none is checked, and one that is out of bounds accesses
    /// unrelated memory.
    pub unchecked_indices: bool,
    /// Whether the program is for a device. Weights of convolutions that are row-major inputs are copied then, so that neighbouring channels
    /// lie side by side for its threads, which read these together; and products of widened 16-bit floats read these as they are.
    pub on_device: bool,
    /// Whether the caller's tensors may have gaps between their elements: an input of known sizes that the program does not change keeps its
    /// strides then, where no two elements share a place.
    pub gaps: bool,
    /// Whether no exchanges stand side by side: for ranks whose programs differ so much that each would bring others together.
    pub apart: bool,
}

/// Compiles a graph in the prim dialect. Every problem of the graph is in the error.
pub fn compile(graph: &Graph, options: &Options) -> Result<Program, InductorError> {
    let (graph, options) = (layout::of_inputs(graph, options.gaps), layout::of_outputs(graph, options));
    let mut program = compile_part(&graph, graph.symbols.clone(), &FxHashSet::default(), &options)?;
    if !options.on_device {
        orient::run(&mut program);
    }
    kernel_ir::prove_indices(&mut program);
    // Views and masks can hide ranges, so such indices are checked against the buffer itself.
    kernel_ir::guard_indices(&mut program);
    exchanges::run(&mut program, options.apart);
    together::run(&mut program);
    if options.apart {
        // Behind the groups, which move what stood between exchanges.
        exchanges::keep_apart(&mut program);
    }
    Ok(program)
}

/// Compiles a graph whose symbols are declared outside of it; those in `known` are bound there.
fn compile_part(
    graph: &Graph,
    symbols: Symbols,
    known: &FxHashSet<SymId>,
    options: &Options,
) -> Result<Program, InductorError> {
    let mut defs = lower::lower(graph, symbols, known, options)?;
    if options.on_device {
        narrow::run(&mut defs);
    }
    realize::realize(&mut defs, options.on_device);
    if options.on_device {
        filters::run(&mut defs);
    }
    in_place::narrow(&mut defs);
    joined::run(&mut defs);
    let schedule = schedule::schedule(&mut defs);
    let program = emit::emit(&defs, &schedule, graph)?;
    match defs.contradiction.into_inner() {
        None => Ok(program),
        Some(found) => Err(InductorError::Internal(found)),
    }
}

/// What [`compile`] would refuse; empty where there is nothing.
pub fn problems(graph: &Graph) -> Vec<Problem> {
    lower::lower(graph, graph.symbols.clone(), &FxHashSet::default(), &Options::default())
        .err()
        .map_or(Vec::new(), |e| e.problems().to_vec())
}

/// The loop bodies as recorded, before any fusion, as text.
pub fn lowered_text(graph: &Graph) -> Result<String, InductorError> {
    lower::lower(graph, graph.symbols.clone(), &FxHashSet::default(), &Options::default())
        .map(|defs| loops_text(&defs))
}
