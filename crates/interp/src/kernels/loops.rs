//! Loop kernels: every outer point in order, at each its stages, at each of those every inner point.

use kernel_ir::{LoopKernel, Program, Stage};
use tensor::Tensor;

use super::KernelError;
use super::body::{self, Acc, Code, Point, State};
use super::memory::Memory;
use crate::Bindings;

struct Prepared {
    extents: Vec<i64>,
    code: Vec<Code>,
}

/// Runs a loop kernel.
pub(super) fn run(
    program: &Program,
    kernel: &LoopKernel,
    bindings: &Bindings,
    memory: &mut Memory,
) -> Result<(), KernelError> {
    let outer = body::extents(&kernel.outer, bindings)?;
    let prepare = |stage: &Stage| {
        let extents = body::extents(&stage.inner, bindings)?;
        Ok(Prepared { extents, code: body::compile(&kernel.name, &stage.insts, program, bindings)? })
    };
    let stages = kernel.stages.iter().map(prepare).collect::<Result<Vec<_>, KernelError>>()?;
    let fresh: Vec<Acc> = kernel.accs.iter().map(|a| Acc::new(a.op, a.dtype)).collect();
    for_each_point(&outer, &mut |point| {
        let mut accs = fresh.clone();
        for stage in &stages {
            run_stage(&kernel.name, stage, point, &mut accs, memory)?;
        }
        Ok(())
    })
}

fn run_stage(
    kernel: &str,
    stage: &Prepared,
    outer: &[i64],
    accs: &mut [Acc],
    memory: &mut Memory,
) -> Result<(), KernelError> {
    let scans = stage.code.iter().map(|_| None).collect();
    let mut state = State { memory, accs, scans, values: Vec::new() };
    let mut loops = outer.to_vec();
    for_each_point(&stage.extents, &mut |inner| {
        loops.truncate(outer.len());
        loops.extend_from_slice(inner);
        let restart = inner.last().is_none_or(|&i| i == 0);
        let point = Point { kernel, loops: &loops, restart, template: None };
        body::run(&stage.code, &point, &mut state)
    })
}

/// Runs an epilogue over a template's result, which has the sizes of `extents`.
pub(super) fn run_epilogue(
    program: &Program,
    kernel: &str,
    epilogue: &kernel_ir::Epilogue,
    result: &Tensor,
    bindings: &Bindings,
    memory: &mut Memory,
) -> Result<(), KernelError> {
    let extents = body::extents(&epilogue.ranges, bindings)?;
    if !extents.iter().zip(result.sizes()).all(|(&e, &n)| e == n as i64) || extents.len() != result.rank() {
        let what = format!("its epilogue runs over {extents:?}, the result has sizes {:?}", result.sizes());
        return Err(KernelError::malformed(kernel, what));
    }
    let code = body::compile(kernel, &epilogue.insts, program, bindings)?;
    let scans = code.iter().map(|_| None).collect();
    let mut state = State { memory, accs: &mut [], scans, values: Vec::new() };
    let mut elements = result.iter();
    for_each_point(&extents, &mut |loops| {
        let point = Point { kernel, loops, restart: true, template: elements.next() };
        body::run(&code, &point, &mut state)
    })
}

/// Every point of a domain in row-major order; once for a domain without dimensions.
fn for_each_point(
    extents: &[i64],
    visit: &mut dyn FnMut(&[i64]) -> Result<(), KernelError>,
) -> Result<(), KernelError> {
    if extents.iter().any(|&e| e <= 0) {
        return Ok(());
    }
    let mut point = vec![0; extents.len()];
    loop {
        visit(&point)?;
        let Some(d) = (0..extents.len()).rev().find(|&d| point[d] + 1 < extents[d]) else { return Ok(()) };
        point[d] += 1;
        point[d + 1..].fill(0);
    }
}
