//! ATen's products with quantized weights, for networks whose weights alone are quantized. They are ordinary arithmetic; that such a
//! product keeps its weights quantized is found by a pass.

use ir_core::{DType, SymExpr};

use super::{Affine, dequantize};
use crate::OpDef;
use crate::ops::common::one;

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] =
    &[composite!("aten::_weight_int8pack_mm(Tensor self, Tensor mat2, Tensor scales) -> Tensor", |b, c| {
        let (x, w, scales) = (c.value("self")?, c.value("mat2")?, c.value("scales")?);
        let n = b.sizes_of_rank(w, 2..=2)?[0].clone();
        let scales = b.cast(scales, DType::F32)?;
        let factor = b.reshape(scales, &[n, SymExpr::ONE])?.into();
        let dtype = b.dtype(x)?;
        let w = dequantize(b, w, &Affine { factor, zero: None }, dtype)?;
        let w = b.permute(w, &[1, 0])?;
        one(b.call1("prims.matmul", vec![x.into(), w.into()])?)
    })];
