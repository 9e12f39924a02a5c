//! Masks of truth values as bits: words of 32 keys. A kernel of attention looks at the mask of each score, for every head and
//! all those layers of a network that share one: from bytes that takes more instructions than the scores themselves, from
//! words a few.
//!
//! Not here: the kernels that read the words (`scores`, `Operands::mask_of`). Masks for few queries stay bytes: packing them
//! takes as long as reading them.

use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{
    AccDecl, AccId, BodyBuilder, InstKind, LoopKernel, Operand, Program, ReduceOp, ScalarOp, Stage, Step,
    Storage, StoreMode,
};

use super::{as_buffer, made_of, moves};
use crate::loops::hint;

/// Keys of a word.
pub(crate) const KEYS: i64 = 32;
/// Fewest queries and keys of masks that are packed.
const FEWEST: i64 = 64;

/// Whether packing a mask is worth a kernel.
pub(super) fn worthwhile(program: &Program, mask: &Operand) -> bool {
    let large = [2, 3].iter().all(|&d| hint(program, &mask.sizes[d]) >= FEWEST);
    program.buffers[mask.buf].dtype == DType::Bool && large && moves(mask, 3)
}

/// Whether an operand is a packed mask: words `i32[b, hq, lq, lk / 32]` (rounded up), the first key in the lowest bit, 0 behind the
/// last one. A program that crosses the boundary has none: masks there are truth values or numbers to be added.
pub(crate) fn is_packed(program: &Program, mask: &Operand) -> bool {
    program.buffers[mask.buf].dtype == DType::I32
}

/// The kernel that packs a mask, and the operand that it writes, with the strides of 0 that the mask has.
pub(super) fn packing(program: &mut Program, mask: &Operand, storage: Storage) -> (Step, Operand) {
    let lanes = SymExpr::from_i64(KEYS);
    let mut sizes: Shape = mask.sizes.iter().cloned().collect();
    sizes[3] = sizes[3].ceil_div(&lanes);
    let name = format!("bits_of_{}", program.buffers[mask.buf].name);
    let made = made_of(program, mask, (&name, DType::I32, storage), &sizes);
    let view = as_buffer(program, mask);
    let mut b = BodyBuilder::new();
    let key = SymExpr::loop_var(3) * &lanes + SymExpr::loop_var(4);
    let inside = (mask.sizes[3].modulo(&lanes) != SymExpr::ZERO).then(|| {
        let (place, size) = (b.index(key.clone()), b.index(mask.sizes[3].clone()));
        b.op(ScalarOp::Lt, &[place, size])
    });
    let index = [0, 1, 2].map(SymExpr::loop_var).into_iter().chain([key]).collect();
    let shown = b.push(DType::Bool, InstKind::Load { buf: view, index, mask: inside });
    let mut value = b.push(DType::I32, InstKind::Cast(shown));
    if let Some(inside) = inside {
        let none = b.constant(0, DType::I32);
        value = b.op(ScalarOp::Select, &[inside, value, none]);
    }
    let place = b.index(SymExpr::loop_var(4));
    let place = b.push(DType::I32, InstKind::Cast(place));
    let value = b.op(ScalarOp::Shl, &[value, place]);
    // The bits are distinct, so their sum is all of them.
    b.push(DType::I32, InstKind::Reduce { acc: AccId(0), value, position: None });
    let first = Stage { inner: [lanes].into_iter().collect(), insts: b.finish() };
    let mut b = BodyBuilder::new();
    let value = b.push(DType::I32, InstKind::Acc(AccId(0)));
    let index: Shape = (0..4).map(SymExpr::loop_var).collect();
    b.push(DType::I32, InstKind::Store { buf: made.buf, index, value, mask: None, mode: StoreMode::Write });
    let kernel = LoopKernel {
        name,
        origins: Vec::new(),
        outer: program.buffers[made.buf].sizes.clone(),
        accs: vec![AccDecl { op: ReduceOp::Sum, dtype: DType::I32 }],
        stages: vec![first, Stage { inner: Shape::new(), insts: b.finish() }],
    };
    (Step::Loop(kernel), made)
}
