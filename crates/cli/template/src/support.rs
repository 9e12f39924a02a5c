//! The supported programs. `query_support` and `compile` use the same function, so they cannot disagree.

use plugin_sdk::Refusal;
use plugin_sdk::ir_core::SymExpr;
use plugin_sdk::kernel_ir::{Program, Step, Storage};

/// Everything in a program that this backend does not support: all of it, not only the first.
pub(crate) fn refusals(program: &Program) -> Vec<Refusal> {
    let mut refused = Vec::new();
    let mut refuse = |node: &str, reason: String| refused.push(Refusal { node: node.to_owned(), reason });
    // Concurrent steps run in sequence here.
    let single = program.one_by_one();
    for step in single.init.iter().chain(&single.steps) {
        if !matches!(step, Step::Loop(_) | Step::Matmul(_) | Step::Conv(_)) {
            refuse(step.name(), format!("acme has no steps of kind `{}`", step.kind()));
        } else if let Some(dtype) = complex(step) {
            refuse(step.name(), format!("acme has no arithmetic for {dtype}"));
        }
    }
    for input in program.inputs.iter().filter(|i| i.written) {
        refuse(&input.name, "acme writes no inputs in place".into());
    }
    for buffer in program.buffers.values() {
        if let Storage::View(of) = buffer.storage
            && program.buffers[of].dtype != buffer.dtype
        {
            refuse(&buffer.name, "acme has no views of another dtype".into());
        }
        let placed = matches!(buffer.storage, Storage::View(_)) || buffer.offset == SymExpr::ZERO;
        if !placed {
            refuse(&buffer.name, "acme has offsets in views only".into());
        }
    }
    refused
}

fn complex(step: &Step) -> Option<plugin_sdk::DType> {
    let bodies = step.bodies();
    let dtypes = bodies.iter().flat_map(|(_, insts)| insts.iter().map(|i| i.dtype));
    dtypes.into_iter().find(|d| d.is_complex())
}
