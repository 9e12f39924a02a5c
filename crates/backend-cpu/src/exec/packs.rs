//! Weights in the layouts of their kernels, and the order in which operations hold them.

use kernel_ir::runtime::{Node, Sizes};

use super::control::PlannedStep;
use super::{Buffers, ExecError, Op};
use crate::micro::narrow::NarrowWeights;
use crate::micro::quantized::QuantizedWeights;
use crate::micro::{ConvWeights, PackedB};

/// A weight in the layout of its kernel.
pub(super) enum Packed {
    Matmul(PackedB),
    Conv(ConvWeights),
    Narrow(NarrowWeights),
    Quantized(QuantizedWeights),
}

impl Packed {
    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Packed::Matmul(b) => b.bytes(),
            Packed::Conv(w) => w.bytes(),
            Packed::Narrow(w) => w.bytes(),
            Packed::Quantized(w) => w.bytes(),
        }
    }
}

/// Numbers the operations that may hold packed weights, nested ones too; returns their number.
pub(super) fn number_packs(ops: &mut [PlannedStep], next: &mut usize) {
    for planned in ops {
        match &mut planned.node {
            Node::Op(
                Op::Matmul(_, slot)
                | Op::Conv(_, slot)
                | Op::Staged(_, slot)
                | Op::Narrow(_, slot)
                | Op::Quantized(_, slot),
            ) => {
                *slot = *next;
                *next += 1;
            }
            Node::Op(Op::Several(list)) => number_packs(list, next),
            node => node.lists_mut().into_iter().for_each(|list| number_packs(list, next)),
        }
    }
}

/// Packs the constant weights of operations and of those nested in them, in the order of `number_packs`.
pub(super) fn pack(
    steps: &[PlannedStep],
    base: &Buffers,
    sizes: &Sizes,
    packed: &mut Vec<Option<Packed>>,
) -> Result<(), ExecError> {
    for planned in steps {
        let op = match &planned.node {
            Node::Op(op) => op,
            node => {
                node.lists().into_iter().try_for_each(|list| pack(list, base, sizes, packed))?;
                continue;
            }
        };
        match op {
            Op::Matmul(m, _) => packed.push(m.pack(base)?.map(Packed::Matmul)),
            // The packed form does not depend on the image's size; symbols have their hints here.
            Op::Conv(c, _) => {
                packed.push(if c.packs { c.pack(base, sizes).ok().map(Packed::Conv) } else { None });
            }
            Op::Staged(s, _) => packed.push(s.pack(base, sizes)?),
            Op::Narrow(n, _) => packed.push(n.pack(base, sizes)?),
            Op::Quantized(q, _) => packed.push(q.pack(base, sizes)?.map(Packed::Quantized)),
            Op::Several(list) => pack(list, base, sizes, packed)?,
            _ => {}
        }
    }
    Ok(())
}
