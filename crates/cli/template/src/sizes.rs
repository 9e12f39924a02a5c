//! Size symbols: one compiled program serves every size in range, so sizes are known at a call only. `Binder` finds them; here
//! is what the caller is told of inputs that do not fit.

use plugin_sdk::kernel_ir::Program;
use plugin_sdk::kernel_ir::runtime::{Binder, Mismatch, SizeSource, Sizes};
use plugin_sdk::{PluginError, TensorView};

/// Reads the symbols off the inputs' sizes, and checks what the program states of its inputs.
pub(crate) fn bind(
    program: &Program,
    binder: &Binder,
    inputs: &[TensorView<'_>],
) -> Result<Sizes, PluginError> {
    for (spec, input) in program.inputs.iter().zip(inputs) {
        let buffer = &program.buffers[spec.buf];
        if input.dtype() != buffer.dtype || input.sizes().len() != buffer.sizes.len() {
            let (got, rank) = (input.dtype(), input.sizes().len());
            let (dtype, wanted) = (buffer.dtype, buffer.sizes.len());
            let text = format!("is {got} with {rank} dimensions, but must be {dtype} with {wanted}");
            return Err(PluginError::invalid(text).at(&spec.name));
        }
    }
    let size = |input: usize, dim: usize| inputs.get(input)?.sizes().get(dim).copied();
    binder.sizes(program, size).map_err(|(misfit, sizes)| {
        let (Mismatch::Missing(n) | Mismatch::Equation(n) | Mismatch::Range(n, _)) = misfit else {
            return PluginError::invalid("the sizes break a guard");
        };
        let SizeSource::Dim(input, dim) = binder.equation(n).place else {
            return PluginError::invalid("an input is not known by its value");
        };
        let problem = binder.problem(misfit, size(input, dim).unwrap_or_default(), sizes.values());
        PluginError::invalid(problem).at(&program.inputs[input].name)
    })
}
