//! Inputs of a call whose rows are not whole vectors, such as the gradient to scores over a vocabulary of 50,257 where the loss was
//! computed elsewhere: they are copied into rows with a gap before the first product that gains by it, and all products read the copy.
//!
//! Not here: values that the program computes, which get such rows at once, and weights, which are copied when they are bound
//! (`rows`).

use ir_core::{Shape, SymExpr};
use kernel_ir::{BufId, Buffer, Matmul, Operand, Program, Step, Storage};

use super::pack::copy_kernel;
use super::rows::{for_each_product, is_half, moved, uneven};

/// Multiplications for each element of an input from which copying it pays: about four bytes are moved for what a product of
/// uneven rows takes two more of its own times for.
const WORTH: i64 = 256;

/// Copies the inputs for which it pays. Whether there were any: then the program wants another plan of its memory.
pub(super) fn copy_inputs(program: &mut Program) -> bool {
    let mut steps = std::mem::take(&mut program.steps);
    // Each input with its copy and the step that makes it.
    let mut copies: Vec<(BufId, BufId, usize)> = Vec::new();
    let mut at = 0;
    while at < steps.len() {
        for input in wanted(program, &steps[at..=at]) {
            if copies.iter().all(|(from, ..)| *from != input) {
                let Some((copy, step)) = copied(program, input) else { continue };
                copies.push((input, copy, at));
                steps.insert(at, step);
                at += 1;
            }
        }
        at += 1;
    }
    for &(input, copy, at) in &copies {
        read_copy(program, &mut steps[at + 1..], input, copy);
    }
    program.steps = steps;
    !copies.is_empty()
}

/// Has products read the copy of an input, in steps behind the one that makes it.
fn read_copy(program: &Program, steps: &mut [Step], input: BufId, copy: BufId) {
    for_each_product(steps, &mut |k| {
        for operand in [&mut k.a, &mut k.b] {
            if program.root(operand.buf) != input {
                continue;
            }
            if let Some(other) = in_rows(program, input, operand, copy) {
                *operand = other;
            }
        }
    });
}

/// The inputs that products among these steps should read from a copy.
fn wanted(program: &Program, steps: &[Step]) -> Vec<BufId> {
    let mut found = Vec::new();
    let mut look = |k: &Matmul| {
        let [rows, columns] = [&k.a, &k.b].map(|o| o.sizes.len());
        let sizes = (k.a.sizes.get(rows.wrapping_sub(2)), k.b.sizes.get(columns.wrapping_sub(1)));
        let (Some(m), Some(n)) = sizes else { return };
        for (operand, other) in [(&k.a, n), (&k.b, m)] {
            let root = program.root(operand.buf);
            let worth = other.as_const().is_some_and(|other| other >= WORTH);
            if worth && row_of(program, root).is_some() && in_rows(program, root, operand, root).is_some() {
                found.push(root);
            }
        }
    };
    visit_products(steps, &mut look);
    found
}

fn visit_products(steps: &[Step], visit: &mut dyn FnMut(&Matmul)) {
    for step in steps {
        if let Step::Matmul(k) = step {
            visit(k);
        }
        step.nested().into_iter().for_each(|list| visit_products(list, visit));
    }
}

/// The length of an input's rows, where they are uneven, all sizes are numbers, and no step writes to it.
fn row_of(program: &Program, input: BufId) -> Option<i64> {
    let buffer = &program.buffers[input];
    let given = matches!(buffer.storage, Storage::Input(_)) && program.written_input(input).is_none();
    let fixed = buffer.sizes.iter().all(|e| e.as_const().is_some());
    let dense =
        buffer.strides == ir_core::contiguous_strides(&buffer.sizes) && buffer.offset == SymExpr::ZERO;
    let row = buffer.sizes.last().and_then(uneven)?;
    (given && fixed && dense && is_half(program, input)).then_some(row)
}

/// An operand that reads an input, as one that reads the copy; `None` where it does not go by the input's rows.
fn in_rows(program: &Program, input: BufId, operand: &Operand, copy: BufId) -> Option<Operand> {
    let row = row_of(program, input)?;
    let (strides, offset) = moved(&operand.sizes, &operand.strides, &operand.offset, row)?;
    Some(Operand { buf: copy, sizes: operand.sizes.clone(), strides, offset })
}

/// A buffer in the arena for an input's copy, and the step that writes it.
fn copied(program: &mut Program, input: BufId) -> Option<(BufId, Step)> {
    let row = row_of(program, input)?;
    let (name, dtype, sizes) = {
        let b = &program.buffers[input];
        (b.name.clone(), b.dtype, b.sizes.clone())
    };
    let (strides, offset): (Shape, SymExpr) =
        moved(&sizes, &program.buffers[input].strides, &SymExpr::ZERO, row)?;
    let copy = Buffer {
        name: format!("{name}_in_rows"),
        dtype,
        sizes: sizes.clone(),
        strides,
        offset,
        storage: Storage::Arena,
    };
    let copy = program.buffers.push(copy);
    let kernel = copy_kernel(format!("rows_of_{name}"), input, copy, dtype, &sizes);
    Some((copy, Step::Loop(kernel)))
}
