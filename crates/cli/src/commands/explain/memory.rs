//! Memory of a call as the plan predicts it, at the sizes of capture where sizes are symbolic. What a backend needs beside the
//! plan (packed weights, workspaces of libraries) is not in it.

use std::io::Write;

use anyhow::Result;
use ferroflux::Program;
use ferroflux::ir_core::{Atom, SymExpr};
use ferroflux::kernel_ir::{self, LiveRange, Storage};

use crate::inputs::at_hints;
use crate::show;

/// Memory of a call in bytes.
pub(super) struct Memory {
    /// Constants, and the state that a training step writes.
    pub(super) weights: u64,
    pub(super) temporaries: u64,
    pub(super) outputs: u64,
}

/// Bytes of a buffer.
fn bytes(program: &Program, buffer: &kernel_ir::Buffer) -> Option<u64> {
    let symbols = &program.graph().symbols;
    let value = |a: &Atom| match a {
        Atom::Sym(_) => at_hints(&SymExpr::atom(a.clone()), symbols),
        _ => None,
    };
    let elements = u64::try_from(buffer.span().eval(&value)?).unwrap_or(0);
    elements.checked_mul(buffer.dtype.size() as u64)
}

impl Memory {
    /// `None` where a size is known only during the call.
    pub(super) fn of(program: &Program, kernels: &kernel_ir::Program) -> Option<Memory> {
        let mut written = kernels.inputs.iter().filter(|i| i.written).map(|i| &kernels.buffers[i.buf]);
        let state = written.try_fold(0u64, |sum, buffer| sum.checked_add(bytes(program, buffer)?))?;
        let sum = |wanted: &dyn Fn(&Storage) -> bool| {
            let buffers = kernels.buffers.values().filter(|b| wanted(&b.storage));
            buffers.map(|b| bytes(program, b)).try_fold(0u64, |sum, bytes| sum.checked_add(bytes?))
        };
        let symbol = |id| at_hints(&SymExpr::sym(id), &program.graph().symbols);
        Some(Memory {
            weights: sum(&|s| matches!(s, Storage::Constant(_) | Storage::Persistent))?.checked_add(state)?,
            temporaries: kernels.plan.place(kernels, &symbol).ok()?.1,
            outputs: sum(&|s| *s == Storage::Output)?,
        })
    }
}

/// The temporaries that are alive at the step that needs most memory, the largest first.
pub(super) fn print_peak(program: &Program, kernels: &kernel_ir::Program, out: &mut dyn Write) -> Result<()> {
    let size = |live: &LiveRange| bytes(program, &kernels.buffers[live.buf]).unwrap_or(0);
    let alive = |n: u32| kernels.plan.lives.iter().filter(move |l| l.first <= n && n <= l.last);
    let steps = 0..u32::try_from(kernels.steps.len()).unwrap_or(u32::MAX);
    let Some((most, peak)) = steps.map(|n| (alive(n).map(size).sum::<u64>(), n)).max() else { return Ok(()) };
    let mut buffers: Vec<&LiveRange> = alive(peak).collect();
    buffers.sort_by_key(|l| (std::cmp::Reverse(size(l)), l.buf));
    writeln!(out, "\nmost temporaries are alive at step {peak}: {} in {}", show::bytes(most), buffers.len())?;
    for live in buffers {
        let buffer = &kernels.buffers[live.buf];
        let sizes: Vec<String> = buffer.sizes.iter().map(ToString::to_string).collect();
        writeln!(
            out,
            "{:>12}  steps {} to {}: {} {}[{}]",
            show::bytes(size(live)),
            live.first,
            live.last,
            buffer.name,
            buffer.dtype,
            sizes.join(", ")
        )?;
    }
    Ok(())
}
