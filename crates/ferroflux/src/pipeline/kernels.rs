//! The lowering after the last stage: a graph of prims on real numbers becomes a fused program. Inference, functions,
//! training and listings all use it.

use fx_ir::{Arg, Graph, OutputKind};
use ir_core::Shape;
use kernel_ir::{Program, Step};
use tracing::info_span;

use super::observe::IN_PLACE;
use super::{Cx, Error};
use crate::profiler::{Category, span};

/// A program, and where it stores new values of parameters and buffers.
pub(crate) struct Kernels {
    pub(crate) program: Program,
    /// For each result that is a value whether the call stores it in the input that it is the new value of, instead of
    /// returning it.
    pub(crate) in_place: Vec<bool>,
}

/// The options of the lowering.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelOptions {
    /// For each output the strides of the returned tensor; row-major where there are none.
    pub(crate) output_strides: Vec<Option<Shape>>,
    /// Whether new values of state are written in place of the old ones; they are outputs nevertheless where
    /// `FERROFLUX_SKIP_PASSES` has `in_place`.
    pub(crate) in_place: bool,
    /// Whether inputs that the program mutates are written in place too: the caller lends them for that.
    pub(crate) inputs_in_place: bool,
    /// For each result that is a value whether its caller gives the memory for it, where that can be.
    pub(crate) lent_results: Vec<bool>,
    /// Whether indices from data are not checked.
    pub(crate) unchecked_indices: bool,
    /// Whether the program is for a device.
    pub(crate) on_device: bool,
    /// Whether the caller's tensors may have gaps.
    pub(crate) gaps: bool,
    /// Whether exchanges between ranks stay apart.
    pub(crate) apart: bool,
}

impl KernelOptions {
    /// Results with the strides that a model's functional graph states.
    pub(crate) fn of_model(functional: &Graph) -> KernelOptions {
        let strides = |o: &fx_ir::Output| match o.arg {
            Arg::Value(v) => functional.meta(v).map(|m| prims::split_complex::boundary_meta(m).strides),
            _ => None,
        };
        KernelOptions {
            output_strides: functional.outputs.iter().map(strides).collect(),
            ..KernelOptions::default()
        }
    }

    /// Results with the strides that a graph of the last stage states; new values of state with those of the old ones.
    pub(crate) fn of_optimized(graph: &Graph) -> KernelOptions {
        let strides = |o: &fx_ir::Output| {
            let Arg::Value(v) = o.arg else { return None };
            let replaced = match &o.kind {
                OutputKind::BufferMutation(name) => {
                    graph.inputs().find(|(_, _, other)| other == name).map(|(v, _, _)| v)
                }
                _ => None,
            };
            graph.meta(replaced.unwrap_or(v)).map(|m| m.strides.clone())
        };
        KernelOptions {
            output_strides: graph.outputs.iter().map(strides).collect(),
            ..KernelOptions::default()
        }
    }
}

/// Lowers the result of the last stage.
///
/// # Errors
/// Errors of the lowering.
pub(crate) fn lower(optimized: &Graph, options: &KernelOptions, cx: &Cx<'_>) -> Result<Kernels, Error> {
    let _span = info_span!("inductor").entered();
    let _range = span(Category::Compile, || "inductor".to_owned());
    let in_place = options.in_place && !cx.passes.skip.iter().any(|name| name == IN_PLACE);
    let written = match (in_place, options.inputs_in_place) {
        (true, true) => inductor::input_writes(optimized),
        (true, false) => inductor::buffer_writes(optimized),
        (false, _) => Vec::new(),
    };
    let stays = |n: usize| written.get(n).is_some_and(Option::is_some);
    let values = optimized.outputs.iter().enumerate().filter(|(_, o)| matches!(o.arg, Arg::Value(_)));
    let in_place = values.map(|(n, _)| stays(n)).collect();
    let options = inductor::Options {
        output_strides: options.output_strides.clone(),
        written,
        unchecked_indices: options.unchecked_indices,
        on_device: options.on_device,
        gaps: options.gaps,
        apart: options.apart,
    };
    let program = inductor::compile(optimized, &options)?;
    cx.observer.kernels(&program)?;
    if tracing::enabled!(target: "fusion", tracing::Level::DEBUG) {
        log_fusion(optimized, &program);
    }
    Ok(Kernels { program, in_place })
}

/// Writes to the log which nodes became one kernel, with the lines of the user's program that they come from.
fn log_fusion(graph: &Graph, program: &Program) {
    let line = |name: &String| {
        let node = graph.order.iter().find(|id| graph.node_name(**id) == name);
        node.and_then(|id| graph.origin(*id).source.clone())
    };
    for step in program.init.iter().chain(&program.steps) {
        let members = match step {
            Step::Together(group) => &group.steps[..],
            alone => std::slice::from_ref(alone),
        };
        for member in members {
            let (nodes, mut lines) = (member.origins(), Vec::new());
            for found in nodes.iter().filter_map(line) {
                if !lines.contains(&found) {
                    lines.push(found);
                }
            }
            let (kind, nodes, lines) = (member.kind(), nodes.join(", "), lines.join(", "));
            tracing::debug!(target: "fusion", "{} ({kind}) is {nodes}, at {lines}", member.name());
        }
    }
}
