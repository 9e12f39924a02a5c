//! A matrix routine of a kernel program: the implementation that the references of the prims use too.

use kernel_ir::{ExternCall, LinalgOp};
use tensor::Tensor;

use super::memory::Memory;
use super::{KernelError, sizes};
use crate::Bindings;

/// Runs a routine; where `complex`, complex numbers are pairs along a last dimension.
pub(super) fn run(
    call: &ExternCall,
    op: LinalgOp,
    complex: bool,
    bindings: &Bindings,
    memory: &mut Memory,
) -> Result<(), KernelError> {
    let inputs = call.inputs.iter().map(|o| memory.operand(&call.name, o, bindings));
    let inputs = inputs.collect::<Result<Vec<Tensor>, _>>()?;
    let outs = call.outputs.iter().map(|o| Ok((memory.dtype(o.buf), sizes(&o.sizes, bindings)?)));
    let outs = outs.collect::<Result<Vec<_>, KernelError>>()?;
    let results = prims::ops::run_linalg(op, complex, &inputs, &outs)
        .map_err(|error| KernelError::malformed(&call.name, error.to_string()))?;
    drop(inputs);
    for (operand, result) in call.outputs.iter().zip(&results) {
        memory.store_operand(&call.name, operand, result, bindings)?;
    }
    Ok(())
}
