//! Sorts of which only the first elements of each row are read (`topk`, `kthvalue`, a slice behind `sort`): their results get room
//! for those alone. An output of such a sort has, along the sorted dimension, as many elements as are wanted, or none where nothing
//! reads it; where rows are shorter than that, it has the whole row.
//!
//! Not here: kernels that find the first elements without sorting the rest (`selection`), and copies of the results (`copies`).

use ir_core::{Shape, SymExpr};
use kernel_ir::{
    ArenaPlan, BufId, ExternCall, ExternOp, Inst, InstKind, LoopBounds, Operand, Program, Step, Storage,
};

use super::copies::write_through;
use crate::library::pack::for_each_step;

/// Narrows the results of sorts to what is read of them, and lets sorts write to where they are copied.
pub fn narrow_sorts(program: &mut Program) {
    let narrowed = narrow_results(program);
    if write_through(program) || narrowed {
        program.plan = ArenaPlan::of(program);
    }
}

/// Returns whether there are any; the memory plan is then another one.
fn narrow_results(program: &mut Program) -> bool {
    let mut narrowed: Vec<(BufId, Shape)> = Vec::new();
    for_each_step(&program.steps, &mut |step| {
        if let Step::Extern(k) = step {
            narrowed.extend(narrow(program, k).unwrap_or_default());
        }
    });
    for (buf, sizes) in &narrowed {
        let buffer = &mut program.buffers[*buf];
        buffer.strides = ir_core::contiguous_strides(sizes);
        buffer.sizes.clone_from(sizes);
    }
    let mut steps = std::mem::take(&mut program.steps);
    for_each_extern(&mut steps, &mut |k| {
        for operand in k.outputs.iter_mut().filter(|o| narrowed.iter().any(|(buf, _)| *buf == o.buf)) {
            let buffer = &program.buffers[operand.buf];
            operand.sizes.clone_from(&buffer.sizes);
            operand.strides.clone_from(&buffer.strides);
        }
    });
    program.steps = steps;
    !narrowed.is_empty()
}

fn for_each_extern(steps: &mut [Step], visit: &mut dyn FnMut(&mut ExternCall)) {
    for step in steps {
        if let Step::Extern(k) = step {
            visit(k);
        }
        step.nested_mut().into_iter().for_each(|list| for_each_extern(list, visit));
    }
}

/// The results of a sort that become smaller, with their new sizes. Both keep equally many elements of a row, so that a kernel counts
/// one number; `None` where whole rows are read.
fn narrow(program: &Program, k: &ExternCall) -> Option<Vec<(BufId, Shape)>> {
    let (ExternOp::Sort { dim, .. }, [input], outputs) = (&k.op, &k.inputs[..], &k.outputs[..]) else {
        return None;
    };
    let dim = *dim as usize;
    let length = input.sizes.get(dim)?.range(program.bounds()).1.unwrap_or(i64::MAX);
    let read: Vec<Option<i64>> = outputs.iter().map(|o| read_of(program, o, dim)).collect();
    // An output that is read otherwise needs the whole row.
    let most = read.iter().map(|n| n.unwrap_or(i64::MAX)).max().filter(|n| *n > 0)?;
    let all = outputs.iter().zip(read).filter_map(|(operand, read)| {
        let count = if read? == 0 { 0 } else { most };
        let mut sizes = operand.sizes.clone();
        sizes[dim] = SymExpr::from_i64(count);
        (count < length).then_some((operand.buf, sizes))
    });
    Some(all.collect())
}

/// How many of the first elements along `dim` the program reads of a sort's result; `None` where that is not known, or where
/// something but this sort determines what the memory looks like.
fn read_of(program: &Program, result: &Operand, dim: usize) -> Option<i64> {
    let buffer = &program.buffers[result.buf];
    let whole = result.sizes == buffer.sizes
        && result.strides == buffer.strides
        && result.strides == ir_core::contiguous_strides(&result.sizes)
        && result.offset == SymExpr::ZERO;
    let seen = program.buffers.iter().any(|(_, b)| b.storage == Storage::View(result.buf))
        || program.outputs.iter().any(|o| o.buf == result.buf);
    if !whole || seen || buffer.storage != Storage::Arena || program.is_dynamic(result.buf) {
        return None;
    }
    let (mut most, mut writers, mut known) = (0, 0, true);
    let mut look = |step: &Step| {
        writers += step.results().iter().filter(|o| o.buf == result.buf).count();
        known &= step.operands().iter().all(|o| o.buf != result.buf);
        for (extents, insts) in step.bodies() {
            let bounds = LoopBounds { extents: &extents, symbols: program.bounds() };
            for inst in insts {
                match last_index(inst, result.buf, dim, &bounds) {
                    Some(last) => most = most.max(last.saturating_add(1)),
                    None => known = false,
                }
            }
        }
    };
    for_each_step(&program.init, &mut look);
    for_each_step(&program.steps, &mut look);
    (known && writers == 1).then_some(most)
}

/// The last index along `dim` at which an instruction may read the buffer, -1 where it does not; `None` where there is no limit or
/// where it writes there.
fn last_index(inst: &Inst, buf: BufId, dim: usize, bounds: &LoopBounds<'_>) -> Option<i64> {
    match &inst.kind {
        InstKind::Load { buf: of, index, .. } if *of == buf => index.get(dim)?.range(bounds).1,
        InstKind::Store { buf: to, .. } if *to == buf => None,
        _ => Some(-1),
    }
}
