//! Operands in the dtype that a hand-written kernel reads: 16-bit floats are converted to `f32` in memory of the call.

use std::marker::PhantomData;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use ir_core::DType;
use kernel_ir::runtime::{Extents, Sizes};

use super::memory::Block;
use super::template::{View, strides5};
use super::{Buffers, ExecError};
use crate::micro::team;

/// A view with these sizes and strides in `f32`.
pub(super) fn single<'a>(
    view: &View,
    dtype: DType,
    buffers: &Buffers,
    s: &Sizes,
    (sizes, strides): (Extents, Extents),
) -> Result<Ready<'a, f32>, ExecError> {
    match dtype {
        DType::BF16 => converted(view.ptr::<bf16>(buffers, s)?, &sizes, &strides),
        DType::F16 => converted(view.ptr::<f16>(buffers, s)?, &sizes, &strides),
        _ => {
            let ptr = view.ptr::<f32>(buffers, s)?;
            Ok(Ready { ptr, sizes, strides, copy: None, operand: PhantomData })
        }
    }
}

/// An operand in the form that a kernel takes.
pub(super) struct Ready<'a, T> {
    pub(super) ptr: *const T,
    pub(super) sizes: Extents,
    pub(super) strides: Extents,
    /// Keeps a converted operand alive.
    #[allow(dead_code)]
    pub(super) copy: Option<Block>,
    pub(super) operand: PhantomData<&'a T>,
}

impl<T> Ready<'_, T> {
    /// Strides of an operand with four dimensions.
    pub(super) fn four(&self) -> [isize; 4] {
        [0, 1, 2, 3].map(|d| self.strides[d] as isize)
    }

    /// Strides of a weight: of outputs, inputs and three dimensions of a window.
    pub(super) fn five(&self) -> [isize; 5] {
        let s = strides5(&self.strides);
        [s.n, s.c, s.d, s.h, s.w]
    }
}

/// Whether the elements fill their memory, in whatever order.
fn fills(sizes: &[i64], strides: &[i64]) -> bool {
    let steps = sizes.iter().zip(strides);
    let span = 1 + steps.clone().map(|(n, s)| (n - 1) * s).sum::<i64>();
    let mut order: Vec<(i64, i64)> = steps.filter(|(n, _)| **n > 1).map(|(n, s)| (*s, *n)).collect();
    order.sort_unstable();
    let apart = order.windows(2).all(|w| w[1].0 >= w[0].0 * w[0].1);
    apart && order.iter().all(|(s, _)| *s > 0) && span == sizes.iter().product::<i64>()
}

/// The dimensions that are not broadcast in the order of their distances, the last one that of neighbours.
fn memory_order(sizes: &[i64], strides: &[i64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).filter(|d| strides[*d] != 0).collect();
    order.sort_by_key(|&d| (sizes[d] > 1, std::cmp::Reverse(strides[d].unsigned_abs())));
    order
}

/// The strides of a converted operand: its own where its elements fill their memory, else dense ones in their order; broadcast
/// dimensions stay broadcast.
pub(super) fn converted_strides(sizes: &[i64], strides: &[i64]) -> Extents {
    if fills(sizes, strides) {
        return Extents::from_slice(strides);
    }
    let mut step = 1;
    let mut dense = Extents::from_elem(0, sizes.len());
    for d in memory_order(sizes, strides).into_iter().rev() {
        dense[d] = step;
        step *= sizes[d];
    }
    dense
}

/// Values that a task converts.
const PIECE: usize = 8192;

/// Converts an operand of 16-bit floats whose elements fill their memory.
fn converted_in_place<'a, T: Half>(
    from: *const T,
    sizes: &[i64],
    strides: &[i64],
) -> Result<Ready<'a, f32>, ExecError> {
    let count = sizes.iter().product::<i64>() as usize;
    let block = Block::new(count * size_of::<f32>())?;
    let (from, to, ptr) = (from as usize, block.ptr() as usize, block.ptr().cast::<f32>());
    team::par_for_work(count.div_ceil(PIECE), count, &|i| {
        let piece = i * PIECE..((i + 1) * PIECE).min(count);
        let source = (from as *const T).wrapping_add(piece.start);
        let target = (to as *mut f32).wrapping_add(piece.start);
        // SAFETY: the piece lies inside of the operand, by the program's promise, and its copy inside of the block.
        unsafe { T::widen(source, 1, target, piece.len()) };
    });
    let (sizes, strides) = (Extents::from_slice(sizes), Extents::from_slice(strides));
    Ok(Ready { ptr, sizes, strides, copy: Some(block), operand: PhantomData })
}

/// Converts an operand of 16-bit floats to `f32`, with the strides of [`converted_strides`].
fn converted<'a, T: Half>(
    from: *const T,
    sizes: &[i64],
    strides: &[i64],
) -> Result<Ready<'a, f32>, ExecError> {
    if fills(sizes, strides) {
        return converted_in_place(from, sizes, strides);
    }
    let mut order = memory_order(sizes, strides);
    let inner = order.pop();
    let row = inner.map_or(1, |d| sizes[d]) as usize;
    let step = inner.map_or(1, |d| strides[d]) as isize;
    let rows = if sizes.contains(&0) { 0 } else { order.iter().map(|d| sizes[*d]).product::<i64>() as usize };
    let block = Block::new(rows * row * size_of::<f32>())?;
    let (from, to, ptr) = (from as usize, block.ptr() as usize, block.ptr().cast::<f32>());
    let each = (PIECE / row.max(1)).max(1);
    team::par_for_work(rows.div_ceil(each), rows * row, &|i| {
        let mine = i * each..((i + 1) * each).min(rows);
        let mut rest = mine.start as i64;
        let mut index = Extents::from_elem(0, order.len());
        for (digit, d) in index.iter_mut().zip(&order).rev() {
            (*digit, rest) = (rest % sizes[*d], rest / sizes[*d]);
        }
        for r in mine {
            let at: i64 = index.iter().zip(&order).map(|(digit, d)| digit * strides[*d]).sum();
            let source = (from as *const T).wrapping_offset(at as isize);
            let target = (to as *mut f32).wrapping_add(r * row);
            // SAFETY: the row lies inside of the operand, by the program's promise, and its copy inside of the block.
            unsafe { T::widen(source, step, target, row) };
            for (digit, d) in index.iter_mut().zip(&order).rev() {
                *digit += 1;
                if *digit < sizes[*d] {
                    break;
                }
                *digit = 0;
            }
        }
    });
    let strides = converted_strides(sizes, strides);
    Ok(Ready { ptr, sizes: Extents::from_slice(sizes), strides, copy: Some(block), operand: PhantomData })
}

/// A 16-bit float.
trait Half: Copy + Send + Sync {
    /// Converts `n` values that are `step` apart.
    ///
    /// # Safety
    /// The values must be readable and as many at `to` writable.
    unsafe fn widen(from: *const Self, step: isize, to: *mut f32, n: usize);
}

macro_rules! half {
    ($($ty:ident)*) => {$(
        impl Half for $ty {
            unsafe fn widen(from: *const $ty, step: isize, to: *mut f32, n: usize) {
                if step == 1 {
                    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
                    let from = unsafe { std::slice::from_raw_parts(from, n) };
                    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
                    let to = unsafe { std::slice::from_raw_parts_mut(to, n) };
                    from.convert_to_f32_slice(to);
                    return;
                }
                for i in 0..n {
                    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
                    unsafe { *to.add(i) = (*from.offset(i as isize * step)).to_f32() };
                }
            }
        }
    )*};
}

half! { bf16 f16 }
