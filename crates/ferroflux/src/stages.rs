//! The pipeline as a list: captured → functional → prim → real → optimized → kernels.

use aot_autograd::passes::PassCx;
use fx_ir::{Arg, Graph};
use kernel_ir::Program;
use tracing::info_span;

use crate::Error;

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

/// The same with less: passes on a graph whose weights stay as they are. `FERROFLUX_SKIP_PASSES` names passes to leave
/// out, with commas between them.
pub(crate) fn optimized(mut prims: Graph) -> Graph {
    let _span = info_span!("passes").entered();
    let skip = std::env::var("FERROFLUX_SKIP_PASSES").unwrap_or_default();
    let skip = skip.split(',').map(str::to_owned).collect();
    aot_autograd::passes::optimize(&mut prims, &PassCx { skip, ..PassCx::inference() });
    prims
}

/// Captured to kernels.
pub(crate) fn kernels(captured: &Graph) -> Result<Program, Error> {
    compile(&functional(captured)?)
}

/// Functional to kernels.
pub(crate) fn compile(functional: &Graph) -> Result<Program, Error> {
    let real = optimized(real(&prims(functional)?)?);
    let _span = info_span!("inductor").entered();
    let strides = |o: &fx_ir::Output| match o.arg {
        Arg::Value(v) => functional.meta(v).map(|m| prims::split_complex::boundary_meta(m).strides),
        _ => None,
    };
    let options = inductor::Options { output_strides: functional.outputs.iter().map(strides).collect() };
    Ok(inductor::compile(&real, &options)?)
}
