//! Which operand of a product gives the rows of its result. Where what is fused behind a product reads and writes memory along the
//! result's columns, as layers do that mix the positions of an image (a linear layer between two transpositions), the transposed product
//! `bᵀ · aᵀ` is computed: its epilogue then has neighbours in memory at neighbouring points, which a host's vectors need. It maps a program
//! to a program; every sum has the same terms in the same order.
//!
//! Not here: integers, quantized weights and 16-bit floats, whose kernels want the constant operand on the right, and devices, whose
//! tiles reach either order in pieces.

use ir_core::{Atom, DType, SymExpr};
use kernel_ir::runtime::Sizes;
use kernel_ir::{Epilogue, InstKind, Matmul, Operand, Program, Step};

/// Fewest rows of a product that is turned: they become columns, of which a kernel takes one or two vectors at once.
const MIN_ROWS: i64 = 64;
/// Fewest columns, which become rows.
const MIN_COLUMNS: i64 = 16;

/// Turns the products of a program where that pays.
pub(crate) fn run(program: &mut Program) {
    let hints = Sizes::hints(program);
    let (mut init, mut steps) = (std::mem::take(&mut program.init), std::mem::take(&mut program.steps));
    visit(&mut init, &mut |m| orient(program, &hints, m));
    visit(&mut steps, &mut |m| orient(program, &hints, m));
    (program.init, program.steps) = (init, steps);
}

fn visit(steps: &mut [Step], orient: &mut dyn FnMut(&mut Matmul)) {
    for step in steps {
        if let Step::Matmul(m) = step {
            orient(m);
        }
        step.nested_mut().into_iter().for_each(|list| visit(list, orient));
    }
}

fn orient(program: &Program, hints: &Sizes, m: &mut Matmul) {
    let plain = m.zero == 0 && m.dequant.is_none() && m.groups.is_none();
    let float = |o: &Operand| matches!(program.buffers[o.buf].dtype, DType::F32 | DType::F64);
    if plain && float(&m.a) && float(&m.b) && pays(program, hints, m) {
        turn(m);
    }
}

/// Whether accesses along rows that become accesses along columns take more time than what turning costs: rows of `a` that lie in memory
/// one after another have to be turned then before they are multiplied, and so do columns of `b`. Rows that may be few, and those of several
/// batch entries that are one product with one `b`, stay what they are.
fn pays(program: &Program, hints: &Sizes, m: &Matmul) -> bool {
    let last = m.epilogue.ranges.len() - 1;
    let (rows, columns) = (m.epilogue.ranges[last - 1].as_const(), hints.eval(&m.epilogue.ranges[last]));
    let (Some(rows), Ok(columns), Ok(terms)) = (rows, columns, hints.eval(&m.a.sizes[last])) else {
        return false;
    };
    if rows < MIN_ROWS || columns < MIN_COLUMNS || is_one_product(m) {
        return false;
    }
    let (along_rows, along_columns) = accesses(program, &m.epilogue);
    let of_a = if m.a.strides[last] == SymExpr::ONE { rows.saturating_mul(terms) } else { 0 };
    let of_b = if m.b.strides[last - 1] == SymExpr::ONE { 0 } else { columns.saturating_mul(terms) };
    let apart = (along_rows - along_columns).saturating_mul(rows).saturating_mul(columns);
    apart.saturating_mul(COST) > of_a.saturating_add(of_b)
}

/// Whether the rows of several batch entries lie one after another, all multiplied by one `b`.
fn is_one_product(m: &Matmul) -> bool {
    let batch = m.a.sizes.len() - 2;
    let several = (0..batch).any(|d| m.a.sizes[d] != SymExpr::ONE);
    let shared = (0..batch).all(|d| m.b.strides[d] == SymExpr::ZERO || m.b.sizes[d] == SymExpr::ONE);
    let joined = batch > 0 && m.a.strides[batch - 1] == &m.a.strides[batch] * &m.a.sizes[batch];
    several && shared && joined
}

/// The time of an access apart, in elements that are turned.
const COST: i64 = 4;

/// Loads and stores of an epilogue whose neighbours in memory are neighbours in a column of the result, and those whose are in a row.
fn accesses(program: &Program, e: &Epilogue) -> (i64, i64) {
    let last = e.ranges.len() as u32 - 1;
    let (mut along_rows, mut along_columns) = (0, 0);
    for inst in &e.insts {
        let (InstKind::Load { buf, index, .. } | InstKind::Store { buf, index, .. }) = &inst.kind else {
            continue;
        };
        let address = crate::affine::address(index, &program.buffers[*buf].strides);
        let step = |d: u32| address.affine_in(&Atom::Loop(d)).map(|(step, _)| step);
        match (step(last - 1), step(last)) {
            (Some(down), Some(right)) if down == SymExpr::ONE && right != SymExpr::ZERO => along_rows += 1,
            (Some(down), Some(right)) if right == SymExpr::ONE && down != SymExpr::ZERO => along_columns += 1,
            _ => {}
        }
    }
    (along_rows, along_columns)
}

/// The transposed product, whose epilogue does the same at each element.
fn turn(m: &mut Matmul) {
    std::mem::swap(&mut m.a, &mut m.b);
    for operand in [&mut m.a, &mut m.b] {
        transpose(&mut operand.sizes);
        transpose(&mut operand.strides);
    }
    transpose(&mut m.epilogue.ranges);
    let last = m.epilogue.ranges.len() as u32 - 1;
    let other = |atom: &Atom| match atom {
        Atom::Loop(d) if *d == last => Some(SymExpr::loop_var(last - 1)),
        Atom::Loop(d) if *d + 1 == last => Some(SymExpr::loop_var(last)),
        _ => None,
    };
    for inst in &mut m.epilogue.insts {
        match &mut inst.kind {
            InstKind::Index(e) => *e = e.subst(&other),
            InstKind::Load { index, .. } | InstKind::Store { index, .. } => {
                index.iter_mut().for_each(|e| *e = e.subst(&other));
            }
            _ => {}
        }
    }
}

/// Exchanges the last two dimensions.
fn transpose(list: &mut [SymExpr]) {
    if let [.., row, column] = list {
        std::mem::swap(row, column);
    }
}
