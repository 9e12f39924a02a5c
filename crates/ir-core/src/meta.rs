//! What is known of a tensor before it exists: dtype, device, symbolic sizes and strides. Holds no data.

use std::fmt;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::{DType, Device, SymExpr};

/// Sizes, strides or an index: one expression a dimension.
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
