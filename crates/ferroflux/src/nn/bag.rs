//! Sums and means of vectors of a table.

use super::{Module, Parameter};
use crate::eager::{Init, Tensor, call};

/// How the vectors of a bag become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BagMode {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest of each element.
    Max,
}

impl Module for BagMode {
    fn visit(&self, _: &str, _: &mut dyn super::Visitor) {}
}

/// A table of vectors of which bags of numbers of dtype `i64` become one vector each.
#[derive(Clone, Debug, derive::Module)]
pub struct EmbeddingBag {
    /// `[count, size]`.
    pub weight: Parameter,
    mode: BagMode,
}

impl EmbeddingBag {
    /// `count` normally distributed vectors of `size` elements.
    pub fn new(count: i64, size: i64, mode: BagMode) -> EmbeddingBag {
        EmbeddingBag { weight: Parameter::filled(Init::Normal, &[count, size]), mode }
    }

    /// Bags of one length, `[bags, length]`, to `[bags, size]`.
    #[track_caller]
    pub fn forward(&self, bags: &Tensor) -> Tensor {
        let (count, length) = (bags.size(0), bags.size(1));
        let offsets = Tensor::arange(count) * Tensor::arange_from(length.clone(), length + 1);
        self.forward_bags(&bags.flatten(0, -1), &offsets, None)
    }

    /// Bags of any length: numbers `[n]`, of which bag `i` begins at `offsets[i]` (`[bags]`), to `[bags, size]`. Each vector may
    /// have a factor of its own, `[n]`, in the mode [`BagMode::Sum`].
    #[track_caller]
    pub fn forward_bags(&self, numbers: &Tensor, offsets: &Tensor, factors: Option<&Tensor>) -> Tensor {
        let mode = match self.mode {
            BagMode::Sum => 0i64,
            BagMode::Mean => 1,
            BagMode::Max => 2,
        };
        let operands = [(&*self.weight).into(), numbers.into(), offsets.into()];
        let rest = [false.into(), mode.into(), false.into(), factors.into(), false.into()];
        call("aten.embedding_bag.default", operands.into_iter().chain(rest))
    }
}
