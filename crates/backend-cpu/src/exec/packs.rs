//! Weights in the layouts of their kernels, and the order in which operations hold them.

use kernel_ir::runtime::{Node, Sizes};

use super::control::PlannedStep;
use super::{Buffers, ExecError, Op};
use crate::micro::narrow::NarrowWeights;
use crate::micro::quantized::QuantizedWeights;
use crate::micro::{ConvWeights, Isa, PackedB, Way};

/// A weight in the layout of its kernel.
pub(super) enum Packed {
    Matmul(PackedB),
    Conv(ConvWeights),
    Narrow(NarrowWeights),
    Quantized(QuantizedWeights),
}

impl Packed {
    /// The ways to multiply by it, the rule's own one first; none where there is no choice.
    pub(super) fn ways(&self) -> Vec<Way> {
        match self {
            Packed::Matmul(b) => b.ways(),
            Packed::Conv(w) => w.ways(),
            Packed::Narrow(w) => w.ways(Isa::best()),
            Packed::Quantized(_) => Vec::new(),
        }
    }

    /// Chooses one of [`Packed::ways`].
    pub(super) fn set_way(&mut self, way: Way) {
        match self {
            Packed::Matmul(b) => b.set_way(way),
            Packed::Conv(w) => w.set_way(way),
            Packed::Narrow(w) => w.set_way(way),
            Packed::Quantized(_) => {}
        }
    }

    /// What names of ways begin with, where weights have forms of different names.
    pub(super) fn form(&self) -> &'static str {
        match self {
            Packed::Conv(w) if w.is_winograd() => "transformed tiles, ",
            _ => "",
        }
    }

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

/// The packed weights of a convolution; `None` where it has none.
pub(super) fn conv_weights(all: &[Option<Packed>], slot: usize) -> Option<&ConvWeights> {
    match all.get(slot) {
        Some(Some(Packed::Conv(weights))) => Some(weights),
        _ => None,
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

/// Calls `f(operation, slot)` for all that may hold packed weights, in the order of `number_packs`.
pub(super) fn each<'a>(steps: &'a [PlannedStep], f: &mut dyn FnMut(&'a Op, usize)) {
    for planned in steps {
        match &planned.node {
            Node::Op(
                op @ (Op::Matmul(_, slot)
                | Op::Conv(_, slot)
                | Op::Staged(_, slot)
                | Op::Narrow(_, slot)
                | Op::Quantized(_, slot)),
            ) => f(op, *slot),
            Node::Op(Op::Several(list)) => each(list, f),
            node => node.lists().into_iter().for_each(|list| each(list, f)),
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
