//! The time of each step of a call, measured on the device, and the bytes that it moves.

use std::collections::BTreeMap;
use std::fmt::Write;

use ir_core::{Atom, SymExpr};
use kernel_ir::runtime::Sizes;
use kernel_ir::{BufId, InstKind, Operand, Program, Step};

use crate::plan::DeviceStep;

/// One access of memory by a step.
pub(crate) struct Traffic {
    /// How often, at most.
    points: SymExpr,
    /// Elements that there are.
    elements: SymExpr,
    width: u64,
}

/// What a step reads and writes: of each buffer as many elements as there are, or as many as the step touches where those
/// are fewer (a row of a table).
pub(crate) fn traffic(program: &Program, step: &Step) -> Vec<Traffic> {
    let product = |es: &[SymExpr]| es.iter().fold(SymExpr::ONE, |n, e| n * e);
    let mut all: BTreeMap<(BufId, bool), Traffic> = BTreeMap::new();
    let mut access = |buf: BufId, store: bool, points: SymExpr| {
        let buffer = &program.buffers[buf];
        let elements = real_elements(&buffer.sizes, &buffer.strides);
        let width = buffer.dtype.size() as u64;
        all.entry((buf, store)).or_insert(Traffic { points, elements, width });
    };
    for (extents, insts) in step.bodies() {
        for inst in insts {
            match &inst.kind {
                InstKind::Load { buf, index, .. } => access(*buf, false, points(&extents, index)),
                InstKind::Store { buf, index, .. } => access(*buf, true, points(&extents, index)),
                _ => {}
            }
        }
    }
    let mut operand = |o: &Operand, store: bool| {
        let elements = real_elements(&o.sizes, &o.strides);
        access(o.buf, store, if elements == SymExpr::ONE { product(&[]) } else { elements });
    };
    step.operands().into_iter().for_each(|o| operand(o, false));
    step.results().into_iter().for_each(|o| operand(o, true));
    all.into_values().collect()
}

/// Elements without those that a stride of 0 repeats.
fn real_elements(sizes: &[SymExpr], strides: &[SymExpr]) -> SymExpr {
    let real = sizes.iter().zip(strides).filter(|(_, stride)| **stride != SymExpr::ZERO);
    real.fold(SymExpr::ONE, |n, (size, _)| n * size)
}

/// Points of a loop nest that an index tells apart: all of them where the index depends on data.
fn points(extents: &[SymExpr], index: &[SymExpr]) -> SymExpr {
    let known = index.iter().all(|e| !e.any_leaf(|a| !matches!(a, Atom::Sym(_) | Atom::Loop(_))));
    let mentioned = |d: usize| {
        let own = |a: &Atom| matches!(a, Atom::Loop(n) if *n as usize == d);
        !known || index.iter().any(|e| e.any_leaf(own))
    };
    extents.iter().enumerate().filter(|(d, _)| mentioned(*d)).fold(SymExpr::ONE, |n, (_, e)| n * e)
}

/// Bytes that a step moves at these sizes.
pub(crate) fn bytes(step: &DeviceStep, sizes: &Sizes) -> u64 {
    let number = |e: &SymExpr| sizes.eval(e).unwrap_or(0).max(0) as u64;
    step.traffic.iter().map(|t| number(&t.points).min(number(&t.elements)) * t.width).sum()
}

/// The mean time of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTime {
    /// Name of the step.
    pub name: String,
    /// The way that is taken.
    pub implementation: String,
    /// Seconds on the device.
    pub seconds: f64,
    /// Bytes that it reads and writes at least.
    pub bytes: u64,
}

/// Times as a table, the longest first.
pub(crate) fn table(mut times: Vec<StepTime>) -> String {
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let total: f64 = times.iter().map(|t| t.seconds).sum();
    let mut text = format!("{} steps, {:.1} µs\n", times.len(), 1e6 * total);
    let _ = writeln!(text, "{:>10} {:>7} {:>9}  {:<28} step", "µs", "%", "GB/s", "implementation");
    for t in times {
        let share = if total > 0.0 { 100.0 * t.seconds / total } else { 0.0 };
        let rate = if t.seconds > 0.0 { t.bytes as f64 / t.seconds / 1e9 } else { 0.0 };
        let _ = writeln!(
            text,
            "{:>10.2} {share:>7.2} {rate:>9.1}  {:<28} {}",
            1e6 * t.seconds,
            t.implementation,
            t.name
        );
    }
    text
}
