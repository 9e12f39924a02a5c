//! Memory of a call as the plan predicts it, at the sizes of capture where sizes are symbolic. What a backend needs beside the
//! plan (packed weights, workspaces of libraries) is not in it.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::Result;
use ferroflux::Program;
use ferroflux::ir_core::{Atom, SymExpr};
use ferroflux::kernel_ir::{self, BufId, LiveRange, Storage};

use crate::inputs::at_hints;
use crate::show;

/// Memory of a call in bytes.
pub(super) struct Memory {
    /// Constants that a call reads, what was computed of constants once, and the state that a training step writes. Constants
    /// that only serve to compute others are not there any more when calls run.
    pub(super) weights: u64,
    pub(super) temporaries: u64,
    pub(super) inputs: u64,
    pub(super) outputs: u64,
}

impl Memory {
    /// All of it.
    pub(super) fn peak(&self) -> u64 {
        self.weights + self.temporaries + self.inputs + self.outputs
    }
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
        let given = |written: bool| {
            let inputs = kernels.inputs.iter().filter(|i| i.written == written);
            inputs.map(|i| &kernels.buffers[i.buf]).try_fold(0u64, |n, b| n.checked_add(bytes(program, b)?))
        };
        let kept = kept(kernels);
        let sum = |wanted: &dyn Fn(BufId, &Storage) -> bool| {
            let buffers = kernels.buffers.iter().filter(|(id, b)| wanted(*id, &b.storage));
            buffers.map(|(_, b)| bytes(program, b)).try_fold(0u64, |sum, bytes| sum.checked_add(bytes?))
        };
        let is_weight = |id: BufId, s: &Storage| {
            matches!(s, Storage::Constant(_) | Storage::Persistent) && kept.contains(&id)
        };
        let symbol = |id| at_hints(&SymExpr::sym(id), &program.graph().symbols);
        Some(Memory {
            weights: sum(&is_weight)?.checked_add(given(true)?)?,
            temporaries: kernels.plan.place(kernels, &symbol).ok()?.1,
            inputs: given(false)?,
            outputs: sum(&|_, s| *s == Storage::Output)?,
        })
    }
}

/// The memory that calls use.
fn kept(kernels: &kernel_ir::Program) -> BTreeSet<BufId> {
    let touched = kernels.steps.iter().flat_map(|step| {
        let (reads, writes) = step.accesses();
        reads.into_iter().chain(writes)
    });
    touched.chain(kernels.outputs.iter().map(|o| o.buf)).map(|buf| kernels.root(buf)).collect()
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
