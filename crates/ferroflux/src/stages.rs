//! The pipeline as a list: captured (verified) → functional → prim → real → optimized → kernels.

use aot_autograd::passes::PassCx;
use fx_ir::{Arg, Graph};
use kernel_ir::Program;
use tracing::info_span;

use crate::Error;

/// Whether a graph from outside is well formed and says of its values what they are.
///
/// # Errors
/// Every violation of the first kind, or every value of the second.
pub(crate) fn verify(captured: &Graph) -> Result<(), Error> {
    let _span = info_span!("verify").entered();
    fx_ir::well_formed(captured).map_err(Error::Graph)?;
    prims::check_values(captured).map_err(Error::Misstated)
}

/// Captured to functional.
pub(crate) fn functional(captured: &Graph) -> Result<Graph, Error> {
    let _span = info_span!("functionalize").entered();
    aot_autograd::functionalize(captured).map_err(Error::Functionalize)
}

/// Functional to prims.
pub(crate) fn prims(functional: &Graph) -> Result<Graph, Error> {
    let _span = info_span!("decompose").entered();
    prims::decompose(functional).map_err(Error::Unsupported)
}

/// Prims without complex numbers, which kernels have none of: a complex value is two real ones.
pub(crate) fn real(prims: &Graph) -> Result<Graph, Error> {
    let _span = info_span!("split complex").entered();
    prims::split_complex::split_complex(prims).map_err(Error::Unsupported)
}

/// Names of passes to leave out: `FERROFLUX_SKIP_PASSES`, with commas between them.
pub(crate) fn skipped() -> Vec<String> {
    let text = std::env::var("FERROFLUX_SKIP_PASSES").unwrap_or_default();
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The same with less: passes on a graph whose weights stay as they are, but for those of `FERROFLUX_SKIP_PASSES`.
pub(crate) fn optimized(mut prims: Graph) -> Graph {
    let _span = info_span!("passes").entered();
    let skip = skipped();
    aot_autograd::passes::optimize(&mut prims, &PassCx { skip, ..PassCx::inference() });
    prims
}

/// Captured to kernels, as a backend gets them that writes buffers in place.
pub(crate) fn kernels(captured: &Graph) -> Result<Program, Error> {
    verify(captured)?;
    Ok(compile_for(&functional(captured)?, true, false)?.program)
}

/// Functional to kernels; new values of buffers are outputs.
pub(crate) fn compile(functional: &Graph) -> Result<Program, Error> {
    Ok(compile_for(functional, false, false)?.program)
}

/// A program and what it does with new values of parameters and buffers.
pub(crate) struct Kernels {
    pub(crate) program: Program,
    /// For each result that is a value whether the call leaves it in the input that it is the new value of, instead of
    /// returning it.
    pub(crate) in_place: Vec<bool>,
}

/// Graph of prims without complex numbers to kernels. New values are outputs too where `FERROFLUX_SKIP_PASSES` has
/// `in_place`. With `unchecked_indices` nobody checks indices from data.
pub(crate) fn lowered(
    real: &Graph,
    output_strides: Vec<Option<ir_core::Shape>>,
    in_place: bool,
    unchecked_indices: bool,
) -> Result<Kernels, Error> {
    let _span = info_span!("inductor").entered();
    let in_place = in_place && !skipped().iter().any(|name| name == "in_place");
    let written = if in_place { inductor::buffer_writes(real) } else { Vec::new() };
    let stays = |n: usize| written.get(n).is_some_and(Option::is_some);
    let values = real.outputs.iter().enumerate().filter(|(_, o)| matches!(o.arg, Arg::Value(_)));
    let in_place = values.map(|(n, _)| stays(n)).collect();
    let options = inductor::Options { output_strides, written, unchecked_indices };
    let program = inductor::compile(real, &options)?;
    Ok(Kernels { program, in_place })
}

/// Functional to kernels, which write new values of buffers in place where that is wanted.
pub(crate) fn compile_for(
    functional: &Graph,
    in_place: bool,
    unchecked_indices: bool,
) -> Result<Kernels, Error> {
    let real = optimized(real(&prims(functional)?)?);
    let strides = |o: &fx_ir::Output| match o.arg {
        Arg::Value(v) => functional.meta(v).map(|m| prims::split_complex::boundary_meta(m).strides),
        _ => None,
    };
    lowered(&real, functional.outputs.iter().map(strides).collect(), in_place, unchecked_indices)
}
