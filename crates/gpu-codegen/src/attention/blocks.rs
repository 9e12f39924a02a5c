//! Which blocks of scores a mask hides. A mask that is computed from positions, as models build it, hides whole blocks of 64
//! queries and 64 keys: a triangle, what lies outside of a window, another document, padding. A small kernel looks at the
//! mask once per call and notes for each block whether it hides all, shows all or neither; every attention with that mask
//! skips what is hidden and does not read the mask where all is shown.
//!
//! Not here: the skipping (`tma`, `backward_tma`). Masks of a few rows or keys are left alone, whose blocks would cost more than
//! they save, and numbers that differ from head to head, which are biases and hide nothing.

use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{
    AccDecl, ArenaPlan, BodyBuilder, BufId, Buffer, ExternOp, InstKind, LoopKernel, Operand, Program,
    ReduceOp, ScalarOp, Stage, Step, Storage, StoreMode, Val,
};

use crate::Target;
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

/// Adds to a program the kernels that note the blocks of its masks, where the device has attention kernels that use them.
pub fn note_blocks_of_masks(program: &mut Program, target: &Target) {
    if !target.wgmma() {
        return;
    }
    let mut made: Vec<(Operand, Operand)> = Vec::new();
    let mut n = 0;
    while n < program.steps.len() {
        let masks: Vec<Operand> = masks_of(&program.steps[n]).into_iter().cloned().collect();
        let masks: Vec<Operand> = masks.into_iter().filter(|m| worthwhile(program, m, n)).collect();
        for mask in masks {
            if made.iter().all(|(of, _)| *of != mask) {
                let (step, blocks) = noting(program, &mask);
                program.steps.insert(n, step);
                n += 1;
                made.push((mask, blocks));
            }
        }
        let blocks_of =
            |mask: &Operand| made.iter().find(|(of, _)| of == mask).map(|(_, blocks)| blocks.clone());
        use_blocks(&mut program.steps[n], &blocks_of);
        n += 1;
    }
    if !made.is_empty() {
        program.plan = ArenaPlan::of(program);
    }
}

/// The masks of a step and of steps that run together with it.
fn masks_of(step: &Step) -> Vec<&Operand> {
    match step {
        Step::Attention(k) => k.mask.iter().collect(),
        Step::Extern(k) if matches!(k.op, ExternOp::AttentionBackward { .. }) => {
            k.inputs.get(6).into_iter().collect()
        }
        Step::Together(group) => group.steps.iter().flat_map(masks_of).collect(),
        _ => Vec::new(),
    }
}

fn use_blocks(step: &mut Step, of: &dyn Fn(&Operand) -> Option<Operand>) {
    match step {
        Step::Attention(k) => k.blocks = k.mask.as_ref().and_then(of),
        Step::Extern(k) if matches!(k.op, ExternOp::AttentionBackward { .. }) && k.inputs.len() == 7 => {
            let blocks = of(&k.inputs[6]);
            k.inputs.extend(blocks);
        }
        Step::Together(group) => group.steps.iter_mut().for_each(|s| use_blocks(s, of)),
        _ => {}
    }
}

/// Whether a mask of step `user` is large, differs along the keys, and has its final value before the first reader.
fn worthwhile(program: &Program, mask: &Operand, user: usize) -> bool {
    let root = program.root(mask.buf);
    let mut writers = program
        .steps
        .iter()
        .enumerate()
        .filter(|(_, step)| step.accesses().1.iter().any(|b| program.root(*b) == root));
    let written_once = match (writers.next(), writers.next()) {
        (None, _) => true,
        (Some((n, _)), None) => n < user,
        _ => false,
    };
    let large = [2, 3].iter().zip(FEWEST).all(|(&d, least)| hint(program, &mask.sizes[d]) >= least);
    let dtype = program.buffers[mask.buf].dtype;
    let hides = dtype == DType::Bool || (dtype.is_float() && !moves(mask, 1));
    written_once && large && moves(mask, 3) && hides
}

/// Whether the mask differs along a dimension.
fn moves(mask: &Operand, d: usize) -> bool {
    mask.strides[d] != SymExpr::ZERO && mask.sizes[d] != SymExpr::ONE
}

/// The kernel that notes the blocks of a mask, and the operand that it writes, with the strides of 0 that the mask has.
fn noting(program: &mut Program, mask: &Operand) -> (Step, Operand) {
    let block = SymExpr::from_i64(BLOCK);
    let mut sizes: Shape = mask.sizes.iter().cloned().collect();
    for size in &mut sizes[2..] {
        *size = size.ceil_div(&block);
    }
    let own: Shape = (0..4).map(|d| if moves(mask, d) { sizes[d].clone() } else { SymExpr::ONE }).collect();
    let strides = ir_core::contiguous_strides(&own);
    let name = format!("blocks_of_{}", program.buffers[mask.buf].name);
    let buf = program.buffers.push(Buffer {
        name: name.clone(),
        dtype: DType::U8,
        sizes: own.clone(),
        strides: strides.clone(),
        offset: SymExpr::ZERO,
        storage: Storage::Arena,
    });
    let inner: Shape =
        [2, 3].iter().map(|&d| if moves(mask, d) { block.clone() } else { SymExpr::ONE }).collect();
    let acc = |op| AccDecl { op, dtype: DType::I32 };
    let insts = looked(program, mask, &inner);
    let kernel = LoopKernel {
        name,
        origins: Vec::new(),
        outer: own.clone(),
        accs: vec![acc(ReduceOp::Max), acc(ReduceOp::Min)],
        stages: vec![Stage { inner, insts }, Stage { inner: Shape::new(), insts: noted(buf) }],
    };
    let strides = (0..4).map(|d| if moves(mask, d) { strides[d].clone() } else { SymExpr::ZERO }).collect();
    (Step::Loop(kernel), Operand { buf, sizes, strides, offset: SymExpr::ZERO })
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
    // The operand as a buffer, whose strides may be 0.
    let view = program.buffers.push(Buffer {
        name: program.buffers[mask.buf].name.clone(),
        dtype,
        sizes: mask.sizes.clone(),
        strides: mask.strides.clone(),
        offset: mask.offset.clone(),
        storage: Storage::View(program.root(mask.buf)),
    });
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
