//! What is known of a tensor before it exists: dtype, device, symbolic sizes and strides. Holds no data.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{DType, Device, SymExpr};

/// Sizes, strides or an index: one expression per dimension.
pub type Shape = SmallVec<[SymExpr; 4]>;

/// dtype, device, sizes and strides (in elements) of a tensor; PyTorch calls this a fake tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorMeta {
    /// Element type.
    pub dtype: DType,
    /// Where the data is.
    pub device: Device,
    /// Number of elements of each dimension.
    pub sizes: Shape,
    /// Distance in elements between neighbours of each dimension.
    pub strides: Shape,
    /// Elements before the first one, within its storage.
    pub offset: SymExpr,
}

/// How many times the memory of its elements a tensor with gaps may span.
const MOST_SPREAD: i64 = 8;

impl TensorMeta {
    /// A contiguous (row-major) tensor on the host.
    pub fn contiguous(dtype: DType, sizes: impl IntoIterator<Item = SymExpr>) -> TensorMeta {
        let sizes: Shape = sizes.into_iter().collect();
        let strides = contiguous_strides(&sizes);
        TensorMeta { dtype, device: Device::CPU, sizes, strides, offset: SymExpr::ZERO }
    }
    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }
    /// Number of elements.
    pub fn numel(&self) -> SymExpr {
        numel(&self.sizes)
    }
    /// The same with other sizes, contiguous.
    pub fn with_sizes(&self, sizes: impl IntoIterator<Item = SymExpr>) -> TensorMeta {
        TensorMeta { device: self.device.clone(), ..TensorMeta::contiguous(self.dtype, sizes) }
    }
    /// The same with another dtype; sizes and strides stay.
    pub fn with_dtype(&self, dtype: DType) -> TensorMeta {
        TensorMeta { dtype, ..self.clone() }
    }
    /// The sizes where all are known numbers.
    pub fn static_sizes(&self) -> Option<Vec<i64>> {
        self.sizes.iter().map(SymExpr::as_const).collect()
    }
    /// Whether the strides are those of a row-major tensor (dimensions of size 1 may have any stride).
    pub fn is_contiguous(&self) -> bool {
        let expected = contiguous_strides(&self.sizes);
        let same = |d: usize| self.sizes[d] == SymExpr::ONE || self.strides[d] == expected[d];
        self.sizes.contains(&SymExpr::ZERO) || (0..self.rank()).all(same)
    }
    /// Whether sizes and strides are numbers by which no two elements share a place, with gaps between them that are not larger than the
    /// elements by far: a part of a larger tensor, such as one of fused projections. Where it has to be copied, so are the gaps.
    pub fn is_apart(&self) -> bool {
        let known = self.sizes.iter().zip(&self.strides).map(|(n, s)| n.as_const().zip(s.as_const()));
        let Some(mut dims) = known.collect::<Option<Vec<(i64, i64)>>>() else { return false };
        if self.sizes.len() != self.strides.len() || dims.iter().any(|(n, _)| *n < 1) {
            return false;
        }
        dims.retain(|(n, _)| *n > 1);
        dims.sort_unstable_by_key(|(_, stride)| *stride);
        let (mut span, mut elements) = (1i64, 1i64);
        let apart = dims.into_iter().all(|(n, stride)| {
            let fits = stride >= span;
            span = stride.saturating_mul(n - 1).saturating_add(span);
            elements = elements.saturating_mul(n);
            fits
        });
        apart && span / MOST_SPREAD <= elements
    }
    /// The dimensions in the order of their strides, outermost first, where the strides are those of a dense
    /// tensor: no gaps, no element twice. `None` for any other strides, and where symbols keep it from being shown.
    pub fn memory_order(&self) -> Option<Vec<usize>> {
        if self.sizes.len() != self.strides.len() {
            return None;
        }
        if self.is_contiguous() {
            return Some((0..self.rank()).collect());
        }
        // A dimension of size 1 lies anywhere: outside of all others.
        let (mut order, mut left): (Vec<usize>, Vec<usize>) =
            (0..self.rank()).partition(|&d| self.sizes[d] == SymExpr::ONE);
        let (mut inner, mut expected) = (Vec::with_capacity(left.len()), SymExpr::ONE);
        while let Some(at) = left.iter().rposition(|&d| self.strides[d] == expected) {
            let d = left.remove(at);
            expected = expected * &self.sizes[d];
            inner.push(d);
        }
        order.extend(inner.into_iter().rev());
        left.is_empty().then_some(order)
    }
}

impl fmt::Display for TensorMeta {
    /// `f32[2, s0]`, and where the strides are not row-major `f32[2, 3]{1, 2}`; `@cuda:0` unless on the host.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.dtype, join(&self.sizes))?;
        if self.strides != contiguous_strides(&self.sizes) {
            write!(f, "{{{}}}", join(&self.strides))?;
        }
        if self.offset != SymExpr::ZERO {
            write!(f, "+{}", self.offset)?;
        }
        if self.device != Device::CPU {
            write!(f, "@{}", self.device)?;
        }
        Ok(())
    }
}

fn join(items: &[SymExpr]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Row-major strides of `sizes`, as PyTorch makes them: a dimension of size 0 counts as 1.
pub fn contiguous_strides(sizes: &[SymExpr]) -> Shape {
    let mut strides: Shape = std::iter::repeat_n(SymExpr::ONE, sizes.len()).collect();
    let mut next = SymExpr::ONE;
    for d in (0..sizes.len()).rev() {
        strides[d] = next.clone();
        if sizes[d] != SymExpr::ZERO {
            next = next * &sizes[d];
        }
    }
    strides
}

/// Product of `sizes`.
pub fn numel(sizes: &[SymExpr]) -> SymExpr {
    sizes.iter().fold(SymExpr::ONE, |n, s| n * s)
}

/// PyTorch's `torch.layout`; only strided tensors are computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    /// Dense with strides.
    Strided,
    /// Sparse coordinates (recognised, not computed with).
    Sparse,
    /// Any other (recognised, not computed with).
    Other,
}

/// PyTorch's `torch.memory_format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryFormat {
    /// Row-major.
    Contiguous,
    /// As the operand has it.
    Preserve,
    /// `[N, C, H, W]` with C innermost.
    ChannelsLast,
    /// `[N, C, D, H, W]` with C innermost.
    ChannelsLast3d,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(sizes: &[i64], strides: &[i64]) -> Option<Vec<usize>> {
        let list = |x: &[i64]| x.iter().map(|&n| SymExpr::from_i64(n)).collect::<Shape>();
        TensorMeta { strides: list(strides), ..TensorMeta::contiguous(DType::F32, list(sizes)) }
            .memory_order()
    }

    #[test]
    fn dense_strides_have_an_order_in_memory() {
        assert_eq!(order(&[2, 3, 4], &[12, 4, 1]), Some(vec![0, 1, 2]));
        assert_eq!(order(&[2, 3, 4, 5], &[60, 1, 15, 3]), Some(vec![0, 2, 3, 1]));
        assert_eq!(order(&[3, 1, 2], &[1, 77, 3]), Some(vec![1, 2, 0]));
        assert_eq!(order(&[0, 3], &[1, 1]), Some(vec![0, 1]));
        assert_eq!(order(&[], &[]), Some(vec![]));
        // A gap, an element stored twice, a broadcast dimension, and unrelated strides.
        assert_eq!(order(&[2, 3], &[4, 1]), None);
        assert_eq!(order(&[4, 4], &[1, 1]), None);
        assert_eq!(order(&[4, 3], &[0, 1]), None);
        assert_eq!(order(&[4, 3], &[1 << 40, 1000]), None);
    }

    #[test]
    fn symbols_are_compared_as_they_stand() {
        let (s, t) = (SymExpr::sym(crate::SymId(0)), SymExpr::sym(crate::SymId(1)));
        let meta = TensorMeta::contiguous(DType::F32, [s.clone(), 3.into()]);
        assert_eq!(meta.memory_order(), Some(vec![0, 1]));
        let turned = TensorMeta { strides: [SymExpr::ONE, s].into_iter().collect(), ..meta.clone() };
        assert_eq!(turned.memory_order(), Some(vec![1, 0]));
        let unknown = TensorMeta { strides: [t, SymExpr::ONE].into_iter().collect(), ..meta };
        assert_eq!(unknown.memory_order(), None);
        let strided = |sizes: &[i64], strides: &[i64]| {
            let of = |list: &[i64]| list.iter().map(|n| SymExpr::from_i64(*n)).collect();
            TensorMeta { strides: of(strides), ..TensorMeta::contiguous(DType::F32, of(sizes)) }.is_apart()
        };
        assert!(strided(&[2, 8, 4, 3], &[1000, 36, 3, 1]) && strided(&[4, 1, 5], &[5, 0, 1]));
        assert!(strided(&[3, 4], &[1, 5]) && strided(&[7], &[2]));
        assert!(!strided(&[3, 4], &[3, 1]) && !strided(&[3, 4], &[0, 1]) && !strided(&[2, 2], &[1, 1]));
        assert!(strided(&[100, 2], &[16, 1]) && !strided(&[100, 2], &[4096, 1]));
        assert!(!strided(&[3, 4], &[-4, 1]) && !strided(&[0, 4], &[4, 1]) && !unknown.is_apart());
    }
}
