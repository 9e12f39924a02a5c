//! Bags of embeddings: rows of a table summed, averaged or maximised bag by bag.

use fx_ir::ValueId;
use ir_core::{DType, SymExpr};
use smallvec::smallvec;

use crate::ops::common::{choose, widen};
use crate::ops::indexing::scatter::put;
use crate::ops::shapes::shape::{self, Made};
use crate::{Builder, Call, OpDef, OpError};

/// The entries. Results: the bags, the bag of each index, the sizes of the bags, the rows that gave the maxima.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False) -> (Tensor, Tensor, Tensor, Tensor)",
        |b, c| bag(b, c, None)
    ),
    composite!(
        "aten::embedding_bag.padding_idx(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq, int mode, bool sparse, Tensor? per_sample_weights, bool include_last_offset, int? padding_idx) -> (Tensor, Tensor, Tensor, Tensor)",
        padded
    ),
    composite!(
        "aten::_embedding_bag(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)",
        padded
    ),
    composite!(
        "aten::_embedding_bag_forward_only(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1) -> (Tensor, Tensor, Tensor, Tensor)",
        |b, c| bag(b, c, c.opt_int("padding_idx")?.filter(|p| *p >= 0))
    ),
];

/// `embedding_bag` counts a negative padding row from the end; its internal form means none by it.
fn padded(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let rows = b.sizes_of_rank(c.value("weight")?, 2..=2)?[0].clone();
    let public = c.name().starts_with("aten.embedding_bag");
    let padding = match c.opt_int("padding_idx")? {
        Some(p) if p < 0 && public => {
            Some(shape::known(c, &rows, "table beside a negative padding row")? + p)
        }
        other => other.filter(|p| *p >= 0),
    };
    bag(b, c, padding)
}

/// For each index the number of its bag: offsets that are not after it, less one.
fn bag_numbers(b: &mut Builder<'_>, offsets: ValueId, n: &SymExpr) -> Result<ValueId, OpError> {
    let count = b.sizes(offsets)?[0].clone();
    let zeros = b.full(&[n + 1], 0i64, DType::I64)?;
    let ones = b.full(&[count], 1i64, DType::I64)?;
    let starts = put(b, zeros, &[offsets], 0, ones, "add")?;
    let started = b.call1("prims.cumsum", vec![starts.into(), 0i64.into()])?;
    let started = b.slice(started, 0, SymExpr::ZERO, n.clone(), 1)?;
    b.sub(started, 1i64)
}

fn bag(b: &mut Builder<'_>, c: &Call<'_>, padding: Option<i64>) -> Made {
    let weight = c.value("weight")?;
    let (dtype, table) = (b.dtype(weight)?, b.sizes_of_rank(weight, 2..=2)?);
    let index_dtype = b.dtype(c.value("offsets")?)?;
    let indices = b.cast(c.value("indices")?, DType::I64)?;
    let mut offsets = b.cast(c.value("offsets")?, DType::I64)?;
    let mode = c.int("mode")?;
    let n = b.sizes(indices)?.first().cloned().ok_or_else(|| c.bad_arg("indices", "must be a vector"))?;
    let mut bags = b.sizes_of_rank(offsets, 1..=1)?[0].clone();
    if c.bool("include_last_offset")? {
        bags = bags - 1;
        offsets = b.slice(offsets, 0, SymExpr::ZERO, bags.clone(), 1)?;
    }
    let numbers = bag_numbers(b, offsets, &n)?;
    let rows = shape::index(b, weight, &[indices], 0)?;
    let frequency = c.bool("scale_grad_by_freq")?.then_some(&table[0]);
    let rows = crate::ops::indexing::index::rows_for_gradient(b, rows, indices, None, frequency)?;
    let mut rows = widen(b, rows)?;
    let compute = b.dtype(rows)?;
    if let Some(w) = c.opt_value("per_sample_weights")? {
        let w = b.cast(w, compute)?;
        let w = b.unsqueeze(w, 1)?;
        rows = b.mul(rows, w)?;
    }
    // Padding rows count for nothing.
    let mut counted = b.full(std::slice::from_ref(&n), 1i64, DType::I64)?;
    let neutral = if mode == 2 { f64::NEG_INFINITY } else { 0.0 };
    if let Some(p) = padding {
        let kept = b.ne(indices, p)?;
        counted = b.cast(kept, DType::I64)?;
        let (kept, sizes) = (b.unsqueeze(kept, 1)?, b.sizes(rows)?);
        let kept = b.expand(kept, &sizes)?;
        rows = choose(b, kept, rows, neutral, compute)?;
    }
    let no_bags = b.full(&[bags.clone()], 0i64, DType::I64)?;
    let sizes = put(b, no_bags, &[numbers], 0, counted, "add")?;
    let base = b.full(&[bags.clone(), table[1].clone()], neutral, compute)?;
    let filled = put(b, base, &[numbers], 0, rows, if mode == 2 { "amax" } else { "add" })?;
    let y = finish(b, filled, sizes, mode)?;
    let y = b.cast(y, dtype)?;
    let (numbers, sizes) = (b.cast(numbers, index_dtype)?, b.cast(sizes, index_dtype)?);
    let fast = mode == 0 && padding.is_none() && matches!(dtype, DType::F32 | DType::F16);
    // PyTorch leaves out the numbers of the bags where its fast sum does not need them.
    let numbers = if fast { b.slice(numbers, 0, SymExpr::ZERO, SymExpr::ZERO, 1)? } else { numbers };
    let places = match mode {
        2 => b.full(&[bags, table[1].clone()], 0i64, index_dtype)?,
        _ => sizes,
    };
    Ok(smallvec![y, numbers, sizes, places])
}

/// Sums divided by the sizes of their bags (mode 1); maxima of empty bags become zeros (mode 2).
fn finish(b: &mut Builder<'_>, filled: ValueId, sizes: ValueId, mode: i64) -> Result<ValueId, OpError> {
    let (dtype, full) = (b.dtype(filled)?, b.sizes(filled)?);
    let column = b.unsqueeze(sizes, 1)?;
    match mode {
        1 => {
            let count = b.maximum(column, 1i64)?;
            let count = b.cast(count, dtype)?;
            b.div(filled, count)
        }
        2 => {
            let empty = b.eq(column, 0i64)?;
            let empty = b.expand(empty, &full)?;
            choose(b, empty, 0.0, filled, dtype)
        }
        _ => Ok(filled),
    }
}
