//! What kernels of attention are told of a mask besides its elements: the elements as bits (`bits`), and which blocks of scores it
//! hides (`blocks`). Both are made by small kernels, once per call for all steps with that mask, or once for all calls where
//! the mask is a constant.
//!
//! Not here: what the kernels make of it (`scores`).

mod bits;
mod blocks;

use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{ArenaPlan, BufId, Buffer, ExternOp, Operand, Program, Step, Storage};

pub(crate) use bits::{KEYS, is_packed};
pub(crate) use blocks::state_text;

use crate::Target;

/// A mask, and what was made of it.
struct Prepared {
    of: Operand,
    bits: Option<Operand>,
    blocks: Option<Operand>,
}

/// Adds to a program the kernels that prepare its masks, and has the steps of attention use what they make.
pub fn prepare_masks(program: &mut Program, target: &Target) {
    let mut prepared: Vec<Prepared> = Vec::new();
    let mut n = 0;
    while n < program.steps.len() {
        let masks: Vec<Operand> = masks_of(&program.steps[n]).into_iter().cloned().collect();
        for mask in masks {
            if prepared.iter().any(|p| p.of == mask) {
                continue;
            }
            let Some(storage) = storage(program, &mask, n) else { continue };
            let mut place = |program: &mut Program, (step, made): (Step, Operand)| {
                if storage == Storage::Persistent {
                    program.init.push(step);
                } else {
                    program.steps.insert(n, step);
                    n += 1;
                }
                made
            };
            let blocks = (target.wgmma() && blocks::worthwhile(program, &mask)).then(|| {
                let made = blocks::noting(program, &mask, storage.clone());
                place(program, made)
            });
            let bits = bits::worthwhile(program, &mask).then(|| {
                let made = bits::packing(program, &mask, storage.clone());
                place(program, made)
            });
            prepared.push(Prepared { of: mask, bits, blocks });
        }
        use_prepared(&mut program.steps[n], &prepared);
        n += 1;
    }
    if !prepared.is_empty() {
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

fn use_prepared(step: &mut Step, all: &[Prepared]) {
    let of = |mask: &Operand| all.iter().find(|p| p.of == *mask);
    match step {
        Step::Attention(k) => {
            let Some(prepared) = k.mask.as_ref().and_then(of) else { return };
            k.blocks.clone_from(&prepared.blocks);
            k.mask = prepared.bits.clone().or(k.mask.take());
        }
        Step::Extern(k) if matches!(k.op, ExternOp::AttentionBackward { .. }) && k.inputs.len() == 7 => {
            let Some(prepared) = of(&k.inputs[6]) else { return };
            if let Some(bits) = &prepared.bits {
                k.inputs[6] = bits.clone();
            }
            k.inputs.extend(prepared.blocks.clone());
        }
        Step::Together(group) => group.steps.iter_mut().for_each(|s| use_prepared(s, all)),
        _ => {}
    }
}

/// Where what is made of a mask is kept: for all calls where it is a constant of known size; `None` where the mask does not have
/// its final value before step `user`.
fn storage(program: &Program, mask: &Operand, user: usize) -> Option<Storage> {
    let root = program.root(mask.buf);
    let known = mask.sizes.iter().all(|size| size.as_const().is_some());
    if known && matches!(program.buffers[root].storage, Storage::Constant(_) | Storage::Persistent) {
        return Some(Storage::Persistent);
    }
    let mut writers = program
        .steps
        .iter()
        .enumerate()
        .filter(|(_, step)| step.accesses().1.iter().any(|b| program.root(*b) == root));
    let ready = match (writers.next(), writers.next()) {
        (None, _) => true,
        (Some((n, _)), None) => n < user,
        _ => false,
    };
    ready.then_some(Storage::Arena)
}

/// Whether the mask differs along a dimension.
fn moves(mask: &Operand, d: usize) -> bool {
    mask.strides[d] != SymExpr::ZERO && mask.sizes[d] != SymExpr::ONE
}

/// A new dense buffer for something of `sizes` made of a mask, of size 1 where the mask does not differ, and the operand over it.
fn made_of(
    program: &mut Program,
    mask: &Operand,
    (name, dtype, storage): (&str, DType, Storage),
    sizes: &Shape,
) -> Operand {
    let own: Shape = (0..4).map(|d| if moves(mask, d) { sizes[d].clone() } else { SymExpr::ONE }).collect();
    let dense = ir_core::contiguous_strides(&own);
    let buf = program.buffers.push(Buffer {
        name: name.to_owned(),
        dtype,
        sizes: own,
        strides: dense.clone(),
        offset: SymExpr::ZERO,
        storage,
    });
    let strides = (0..4).map(|d| if moves(mask, d) { dense[d].clone() } else { SymExpr::ZERO }).collect();
    Operand { buf, sizes: sizes.clone(), strides, offset: SymExpr::ZERO }
}

/// The mask as a buffer, whose strides may be 0.
fn as_buffer(program: &mut Program, mask: &Operand) -> BufId {
    let of = &program.buffers[mask.buf];
    let (name, dtype) = (of.name.clone(), of.dtype);
    let storage = Storage::View(program.root(mask.buf));
    let (sizes, strides, offset) = (mask.sizes.clone(), mask.strides.clone(), mask.offset.clone());
    program.buffers.push(Buffer { name, dtype, sizes, strides, offset, storage })
}
