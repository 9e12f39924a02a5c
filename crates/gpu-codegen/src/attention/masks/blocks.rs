//! Which blocks of scores a mask hides. A mask that is computed from positions, as models build it, hides whole blocks of 64
//! queries and 64 keys: a triangle, what lies outside of a window, another document, padding. A small kernel looks at the
//! mask once per call and notes for each block whether it hides all, shows all or neither; every attention with that mask
//! skips what is hidden and does not read the mask where all is shown.
//!
//! Not here: the skipping (`tma`, `backward_tma`), and which step does it (`masks`). Masks of a few rows or keys are left alone, whose blocks would cost more than
//! they save, and numbers that differ from head to head, which are biases and hide nothing.

use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{
    AccDecl, BodyBuilder, BufId, InstKind, LoopKernel, Operand, Program, ReduceOp, ScalarOp, Stage, Step,
    Storage, StoreMode, Val,
};

use super::{as_buffer, made_of, moves};
use crate::attention::Operands;
use crate::loops::hint;
use crate::text::body::Uses;

/// Queries and keys of a block.
pub(crate) const BLOCK: i64 = 64;
/// Fewest queries and keys of masks whose blocks are noted.
const FEWEST: [i64; 2] = [128, 512];

/// The definition of a function `block_state(i1, row, rows, key, keys)` in the text of a kernel, where the attention has noted
/// blocks: 0 where the mask hides all scores of these rows and keys, 2 where it shows all unchanged, else 1. `row` and `key`
/// are the first of a block each; the loop variable `i0` is in scope.
pub(crate) fn state_text(o: &Operands<'_>, blocks: Option<&Operand>, uses: &mut Uses) -> Option<String> {
    let blocks = blocks?;
    let [rows, keys] = [2, 3].map(|d| o.text(&blocks.sizes[d], uses));
    let state = o.element(blocks, ["i0", "i1", "i2", "j"], uses);
    Some(format!(
        "auto block_state = [&](idx i1, idx row, int rows, idx key, int keys) {{
bool some = false, all = true;
for (idx i2 = row / {BLOCK}; i2 < imin<idx>((row + rows + {BLOCK} - 1) / {BLOCK}, {rows}); ++i2)
for (idx j = key / {BLOCK}; j < imin<idx>((key + keys + {BLOCK} - 1) / {BLOCK}, {keys}); ++j) {{
const int state = {state};
some |= state != 0;
all &= state == 2;
}}
return some ? all ? 2 : 1 : 0;
}};
"
    ))
}

/// Whether the blocks of a mask are worth noting: it is large, and may hide whole blocks.
pub(super) fn worthwhile(program: &Program, mask: &Operand) -> bool {
    let large = [2, 3].iter().zip(FEWEST).all(|(&d, least)| hint(program, &mask.sizes[d]) >= least);
    let dtype = program.buffers[mask.buf].dtype;
    let hides = dtype == DType::Bool || (dtype.is_float() && !moves(mask, 1));
    large && moves(mask, 3) && hides
}

/// The kernel that notes the blocks of a mask, and the operand that it writes, with the strides of 0 that the mask has.
pub(super) fn noting(program: &mut Program, mask: &Operand, storage: Storage) -> (Step, Operand) {
    let block = SymExpr::from_i64(BLOCK);
    let mut sizes: Shape = mask.sizes.iter().cloned().collect();
    for size in &mut sizes[2..] {
        *size = size.ceil_div(&block);
    }
    let name = format!("blocks_of_{}", program.buffers[mask.buf].name);
    let made = made_of(program, mask, (&name, DType::U8, storage), &sizes);
    let inner: Shape =
        [2, 3].iter().map(|&d| if moves(mask, d) { block.clone() } else { SymExpr::ONE }).collect();
    let acc = |op| AccDecl { op, dtype: DType::I32 };
    let insts = looked(program, mask, &inner);
    let kernel = LoopKernel {
        name,
        origins: Vec::new(),
        outer: program.buffers[made.buf].sizes.clone(),
        accs: vec![acc(ReduceOp::Max), acc(ReduceOp::Min)],
        stages: vec![Stage { inner, insts }, Stage { inner: Shape::new(), insts: noted(made.buf) }],
    };
    (Step::Loop(kernel), made)
}

/// Reduces over a block whether any score is shown, and whether all are shown unchanged.
fn looked(program: &mut Program, mask: &Operand, inner: &Shape) -> Vec<kernel_ir::Inst> {
    let mut b = BodyBuilder::new();
    let at = |d: usize| match inner[d - 2] == SymExpr::ONE {
        true => SymExpr::loop_var(d as u32),
        false => SymExpr::loop_var(d as u32) * SymExpr::from_i64(BLOCK) + SymExpr::loop_var(d as u32 + 2),
    };
    let rest = |d: &usize| {
        inner[*d - 2] != SymExpr::ONE && mask.sizes[*d].modulo(&SymExpr::from_i64(BLOCK)) != SymExpr::ZERO
    };
    let mut inside: Option<Val> = None;
    for d in [2, 3].into_iter().filter(rest) {
        let (place, size) = (b.index(at(d)), b.index(mask.sizes[d].clone()));
        let within = b.op(ScalarOp::Lt, &[place, size]);
        inside = Some(match inside {
            Some(other) => b.op(ScalarOp::And, &[other, within]),
            None => within,
        });
    }
    let loops = [SymExpr::loop_var(0), SymExpr::loop_var(1), at(2), at(3)];
    let dtype = program.buffers[mask.buf].dtype;
    let view = as_buffer(program, mask);
    let m = b.push(dtype, InstKind::Load { buf: view, index: loops.into_iter().collect(), mask: inside });
    let (shown, unchanged) = match dtype {
        DType::Bool => (m, m),
        dtype => {
            let m = if dtype.compute() == dtype { m } else { b.push(dtype.compute(), InstKind::Cast(m)) };
            let dtype = b.dtype(m);
            let (hidden, zero) =
                (b.constant(Scalar::Float(f64::NEG_INFINITY), dtype), b.constant(0.0, dtype));
            (b.op(ScalarOp::Ne, &[m, hidden]), b.op(ScalarOp::Eq, &[m, zero]))
        }
    };
    for (n, (truth, outside)) in [(shown, 0), (unchanged, 1)].into_iter().enumerate() {
        let mut value = b.push(DType::I32, InstKind::Cast(truth));
        if let Some(inside) = inside {
            let other = b.constant(outside, DType::I32);
            value = b.op(ScalarOp::Select, &[inside, value, other]);
        }
        b.push(DType::I32, InstKind::Reduce { acc: kernel_ir::AccId(n as u32), value, position: None });
    }
    b.finish()
}

/// Stores 0, 1 or 2.
fn noted(buf: BufId) -> Vec<kernel_ir::Inst> {
    let mut b = BodyBuilder::new();
    let [shown, unchanged] = [0, 1].map(|n| b.push(DType::I32, InstKind::Acc(kernel_ir::AccId(n))));
    let both = b.op(ScalarOp::Mul, &[shown, unchanged]);
    let state = b.op(ScalarOp::Add, &[shown, both]);
    let value = b.push(DType::U8, InstKind::Cast(state));
    let index: Shape = (0..4).map(SymExpr::loop_var).collect();
    b.push(DType::U8, InstKind::Store { buf, index, value, mask: None, mode: StoreMode::Write });
    b.finish()
}
