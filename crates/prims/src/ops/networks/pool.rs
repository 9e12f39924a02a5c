//! Pooling: a window over the last dimensions, reduced over the window. After fusion it is one loop nest.
//!
//! Adaptive pools whose windows are all of one size are plain reductions of a reshaped tensor; others read through
//! clipped index arithmetic.

use fx_ir::{Arg, Graph, ValueId};
use ir_core::{DType, Scalar, Shape, SymExpr, numel};
use kernel_ir::ReduceOp;
use smallvec::smallvec;

use crate::ops::common::{choose, want_inexact, widen};
use crate::ops::indexing::scatter::planes;
use crate::ops::primitive::movement::lowest;
use crate::ops::shapes::shape::{self, Made, out};
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!(
        "aten::max_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], int[1] dilation=[1], bool ceil_mode=False) -> Tensor",
        |b, c| max_pool(b, c, 1, false)
    ),
    composite!(
        "aten::max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor",
        |b, c| max_pool(b, c, 2, false)
    ),
    composite!(
        "aten::max_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> Tensor",
        |b, c| max_pool(b, c, 3, false)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::max_pool1d_with_indices(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], int[1] dilation=[1], bool ceil_mode=False) -> (Tensor, Tensor)",
        |b, c| max_pool(b, c, 1, true)
    ),
    composite!(
        "aten::max_pool2d_with_indices(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
        |b, c| max_pool(b, c, 2, true)
    ),
    composite!(
        "aten::max_pool3d_with_indices(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False) -> (Tensor, Tensor)",
        |b, c| max_pool(b, c, 3, true)
    ),
    composite!(
        "aten::max_pool2d_with_indices_backward(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor",
        |b, c| max_pool_backward(b, c, 2)
    ),
    composite!(
        "aten::max_pool3d_with_indices_backward(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, int[3] dilation, bool ceil_mode, Tensor indices) -> Tensor",
        |b, c| max_pool_backward(b, c, 3)
    ),
    composite!(
        "aten::avg_pool1d(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=[0], bool ceil_mode=False, bool count_include_pad=True) -> Tensor",
        |b, c| avg_pool(b, c, 1)
    ),
    composite!(
        "aten::avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor",
        |b, c| avg_pool(b, c, 2)
    ),
    composite!(
        "aten::avg_pool3d(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None) -> Tensor",
        |b, c| avg_pool(b, c, 3)
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::adaptive_avg_pool1d(Tensor self, int[1] output_size) -> Tensor", |b, c| adaptive_avg(
        b, c, 1
    )),
    composite!("aten::adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor", |b, c| {
        adaptive_avg(b, c, 2)
    }),
    composite!("aten::_adaptive_avg_pool2d(Tensor self, SymInt[2] output_size) -> Tensor", |b, c| {
        adaptive_avg(b, c, 2)
    }),
    composite!("aten::adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor", |b, c| {
        adaptive_avg(b, c, 3)
    }).autocast(Autocast::FLOAT32_ON_CPU),
    composite!("aten::_adaptive_avg_pool3d(Tensor self, SymInt[3] output_size) -> Tensor", |b, c| {
        adaptive_avg(b, c, 3)
    }),
    composite!("aten::adaptive_max_pool1d(Tensor self, int[1] output_size) -> (Tensor, Tensor)", |b, c| {
        adaptive_max(b, c, 1)
    }),
    composite!("aten::adaptive_max_pool2d(Tensor self, int[2] output_size) -> (Tensor, Tensor)", |b, c| {
        adaptive_max(b, c, 2)
    }),
    composite!("aten::adaptive_max_pool3d(Tensor self, int[3] output_size) -> (Tensor, Tensor)", |b, c| {
        adaptive_max(b, c, 3)
    }).autocast(Autocast::FLOAT32_ON_CPU),
];

/// Geometry of the windows over the last `n` dimensions.
struct Windows {
    n: usize,
    kernel: Vec<i64>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    /// Sizes of the input in these dimensions.
    from: Shape,
    /// How many windows there are.
    sizes: Shape,
}

fn windows(b: &mut Builder<'_>, c: &Call<'_>, n: usize, dilated: bool) -> Result<Windows, OpError> {
    let sizes = b.sizes(c.value("self")?)?;
    if sizes.len() != n + 1 && sizes.len() != n + 2 {
        return Err(c.invalid(format!("takes {} or {} dimensions, not {}", n + 1, n + 2, sizes.len())));
    }
    let kernel = c.ints_n("kernel_size", n, 1)?;
    let stride = match c.opt_ints("stride")? {
        Some(list) if !list.is_empty() => c.ints_n("stride", n, 1)?,
        _ => kernel.clone(),
    };
    let padding = c.ints_n("padding", n, 0)?;
    let dilation = if dilated { c.ints_n("dilation", n, 1)? } else { vec![1; n] };
    let positive = |list: &[i64]| list.iter().all(|&x| x > 0);
    if !positive(&kernel) || !positive(&stride) || !positive(&dilation) {
        return Err(c.invalid("window, stride and dilation must be positive"));
    }
    let from: Shape = sizes[sizes.len() - n..].iter().cloned().collect();
    let ceil = c.bool("ceil_mode")?;
    let mut sizes = Shape::new();
    for d in 0..n {
        sizes.push(pooled(b, &from[d], [kernel[d], stride[d], padding[d], dilation[d]], ceil)?);
    }
    Ok(Windows { n, kernel, stride, padding, dilation, from, sizes })
}

/// Number of windows along a dimension. Rounding up, the last one must start inside the input or its left padding.
fn pooled(
    b: &mut Builder<'_>,
    n: &SymExpr,
    [kernel, stride, padding, dilation]: [i64; 4],
    ceil: bool,
) -> Result<SymExpr, OpError> {
    let what = |graph: &Graph| {
        format!("a window of {kernel} is larger than {} and padding of {padding}", graph.size_text(n))
    };
    let room = n + 2 * padding - dilation * (kernel - 1) - 1;
    if !ceil {
        b.require_at_least(&room, 0, what)?;
        return Ok(room.floor_div(&stride.into()) + 1);
    }
    let step = SymExpr::from_i64(stride);
    let count = (room + (stride - 1)).floor_div(&step) + 1;
    let starting_inside = (n + (padding - 1)).floor_div(&step) + 1;
    let count = count.sym_min(&starting_inside);
    b.require_at_least(&count, 1, what)?;
    Ok(count)
}

impl Windows {
    /// The windows of `x`, `value` where they reach outside.
    fn of(&self, b: &mut Builder<'_>, x: ValueId, value: Scalar) -> Result<ValueId, OpError> {
        let list = |v: &[i64]| Arg::from(v);
        let args = vec![
            x.into(),
            self.sizes[..].into(),
            list(&self.kernel),
            list(&self.stride),
            list(&self.dilation),
            list(&self.padding),
            value.into(),
        ];
        b.call1("prims.window", args)
    }
    /// The number of the first element within each window that lies in the input, where `best` is one in the padding: that
    /// is chosen only where all elements are as low as the padding, and then the first of them counts.
    fn inside(&self, b: &mut Builder<'_>, best: ValueId) -> Result<ValueId, OpError> {
        let (rank, mut best) = (b.rank(best)?, best);
        let mut first: Option<ValueId> = None;
        for d in (0..self.n).filter(|d| self.padding[*d] > 0) {
            let rest: i64 = self.kernel[d + 1..].iter().product();
            let (dilation, stride) = (self.dilation[d], self.stride[d]);
            let short =
                shape::iota(b, &self.sizes[d], (self.padding[d] + dilation - 1).into(), (-stride).into())?;
            let short = b.maximum(short, 0i64)?;
            let steps = b.div(short, dilation)?;
            let number = b.mul(steps, rest)?;
            let number = shape::along(b, number, rank - self.n + d, rank)?;
            first = Some(match first {
                Some(sum) => b.add(sum, number)?,
                None => number,
            });
        }
        if let Some(first) = first {
            best = b.maximum(best, first)?;
        }
        Ok(best)
    }
    /// Whether neighbouring windows reach into one another.
    fn overlap(&self) -> bool {
        (0..self.n).any(|d| self.dilation[d] * (self.kernel[d] - 1) >= self.stride[d])
    }
    /// The positions in the plane of the elements of each window: a dimension for each of the windows, then for each of a window.
    fn places(&self, b: &mut Builder<'_>) -> Result<ValueId, OpError> {
        let rank = 2 * self.n;
        let along = |b: &mut Builder<'_>, d: usize| {
            let start = shape::iota(b, &self.sizes[d], (-self.padding[d]).into(), self.stride[d].into())?;
            let step = shape::iota(b, &self.kernel[d].into(), SymExpr::ZERO, self.dilation[d].into())?;
            let (start, step) = (shape::along(b, start, d, rank)?, shape::along(b, step, self.n + d, rank)?);
            b.add(start, step)
        };
        let mut place = along(b, 0)?;
        for d in 1..self.n {
            let (rows, at) = (b.mul(place, self.from[d].clone())?, along(b, d)?);
            place = b.add(rows, at)?;
        }
        Ok(place)
    }
    /// The dimensions of the window in a tensor of windows.
    fn window_dims(&self, b: &Builder<'_>, v: ValueId) -> Result<Vec<usize>, OpError> {
        let rank = b.rank(v)?;
        Ok((rank - self.n..rank).collect())
    }
}

/// The largest element of each window; of equal ones the first in row-major order is chosen, a `NaN` before all numbers. The
/// gradient goes to that element alone.
fn max_pool(b: &mut Builder<'_>, c: &Call<'_>, n: usize, indices: bool) -> Made {
    let x = c.value("self")?;
    let w = windows(b, c, n, true)?;
    if w.padding.iter().zip(&w.kernel).any(|(p, k)| *p < 0 || p * 2 > *k) {
        return Err(c.bad_arg("padding", "must be at most half the window"));
    }
    let low = lowest(b.dtype(x)?);
    let view = w.of(b, x, low)?;
    let dims = w.window_dims(b, view)?;
    let best = b.reduce(ReduceOp::ArgMax, view, &dims, false)?;
    let best = w.inside(b, best)?;
    let y = largest(b, view, best, &dims)?;
    if !indices {
        return out(y);
    }
    let mut starts = Vec::new();
    for d in 0..n {
        let v = shape::iota(b, &w.sizes[d], (-w.padding[d]).into(), w.stride[d].into())?;
        starts.push(v);
    }
    let kernel: Vec<SymExpr> = w.kernel.iter().map(|k| SymExpr::from_i64(*k)).collect();
    Ok(smallvec![y, flat_places(b, best, &starts, &kernel, &w.dilation, &w.from)?])
}

/// The gradient of the largest elements of windows, whose positions in their planes are given: each element gathers what its
/// windows hold. Where windows overlap, and memory is not that of a device, each window adds its own to memory, which on CPUs is two
/// to four times as quick as to gather; on a GPU (H100, the pooling of ResNet-18) it takes twice as long.
fn max_pool_backward(b: &mut Builder<'_>, c: &Call<'_>, n: usize) -> Made {
    let (g, indices, whole) = (c.value("grad_output")?, c.value("indices")?, b.sizes(c.value("self")?)?);
    let w = windows(b, c, n, true)?;
    if w.overlap() && !b.cx().device_memory {
        return out(planes(b, g, indices, &whole, n, "add")?);
    }
    let lead = whole.len() - n;
    let outer: Shape = whole[..lead].iter().chain(&w.sizes).cloned().collect();
    for (value, what) in [(g, "grad_output"), (indices, "indices")] {
        if b.rank(value)? != outer.len() {
            return Err(c.bad_arg(what, format!("must have {} dimensions", outer.len())));
        }
        for (size, expected) in b.sizes(value)?.iter().zip(&outer) {
            b.require_equal(size, expected, |_| format!("{what} has another size than the windows"))?;
        }
    }
    // Planes with few elements have lanes as wide as those of `f32`.
    let short = numel(&w.from).as_const().is_some_and(|count| i32::try_from(count).is_ok());
    let wide = if short { DType::I32 } else { DType::I64 };
    let place = w.places(b)?;
    let (place, indices) = (b.cast(place, wide)?, b.cast(indices, wide)?);
    let one_each: Shape = outer.iter().cloned().chain(std::iter::repeat_n(SymExpr::ONE, n)).collect();
    let (indices, spread) = (b.reshape(indices, &one_each)?, b.reshape(g, &one_each)?);
    let own = b.eq(indices, place)?;
    let dtype = b.dtype(g)?;
    let held = b.select(own, spread, Scalar::zero(dtype))?;
    let held = widen(b, held)?;
    let lists = [&w.stride, &w.dilation, &w.padding].map(|l| Arg::from(&l[..]));
    let args = [Arg::Value(held), w.from[..].into()].into_iter().chain(lists).collect();
    let covers = b.call1("prims.cover", args)?;
    let dims: Vec<usize> = (whole.len()..whole.len() + n).collect();
    let sum = b.reduce(ReduceOp::Sum, covers, &dims, false)?;
    out(b.cast(sum, dtype)?)
}

/// The largest element of `view` over the last dimensions `dims`, whose number there is `best`. What is kept for the
/// backward is the number, in one byte where it fits.
fn largest(b: &mut Builder<'_>, view: ValueId, best: ValueId, dims: &[usize]) -> Result<ValueId, OpError> {
    let sizes = b.sizes(view)?;
    let count = numel(&sizes[dims[0]..]);
    let small = count.as_const().is_some_and(|n| n <= 256);
    let best = b.cast(best, if small { DType::U8 } else { DType::I64 })?;
    let dims: Vec<i64> = dims.iter().map(|d| *d as i64).collect();
    b.call1("prims.amax_at", vec![view.into(), best.into(), dims[..].into()])
}

/// The position in the flattened input that position `best` in its window means; `starts` are vectors with the first
/// position of each window, a dimension each.
fn flat_places(
    b: &mut Builder<'_>,
    best: ValueId,
    starts: &[ValueId],
    kernel: &[SymExpr],
    dilation: &[i64],
    from: &[SymExpr],
) -> Result<ValueId, OpError> {
    let (rank, n) = (b.rank(best)?, starts.len());
    let (mut place, mut rest): (Option<ValueId>, ValueId) = (None, best);
    for d in 0..n {
        let unit = numel(&kernel[d + 1..]);
        let digit = if d + 1 == n { rest } else { quotient_of_few(b, rest, &unit, &kernel[d])? };
        if d + 1 < n {
            let whole = b.mul(digit, unit)?;
            rest = b.sub(rest, whole)?;
        }
        let step = b.mul(digit, dilation[d])?;
        let start = shape::along(b, starts[d], rank - n + d, rank)?;
        let at = b.add(step, start)?;
        place = Some(match place {
            Some(p) => {
                let p = b.mul(p, from[d].clone())?;
                b.add(p, at)?
            }
            None => at,
        });
    }
    Ok(place.unwrap_or(best))
}

/// `x / unit` of whole numbers below `count * unit`: few quotients are counted by comparisons, since processors divide whole
/// numbers one by one.
fn quotient_of_few(
    b: &mut Builder<'_>,
    x: ValueId,
    unit: &SymExpr,
    count: &SymExpr,
) -> Result<ValueId, OpError> {
    let Some(count) = count.as_const().filter(|n| (2..=8).contains(n)) else { return b.div(x, unit.clone()) };
    let dtype = b.dtype(x)?;
    let reached = |b: &mut Builder<'_>, n: i64| {
        let reached = b.ge(x, unit * n)?;
        b.cast(reached, dtype)
    };
    let mut sum = reached(b, 1)?;
    for n in 2..count {
        let next = reached(b, n)?;
        sum = b.add(sum, next)?;
    }
    Ok(sum)
}

fn avg_pool(b: &mut Builder<'_>, c: &Call<'_>, n: usize) -> Made {
    let input = c.value("self")?;
    let w = windows(b, c, n, false)?;
    let (dtype, x) = (b.dtype(input)?, widen(b, input)?);
    let view = w.of(b, x, Scalar::zero(dtype))?;
    let dims = w.window_dims(b, view)?;
    let sum = b.reduce(ReduceOp::Sum, view, &dims, false)?;
    let fixed = if n == 1 { None } else { c.opt_int("divisor_override")? };
    let whole: i64 = w.kernel.iter().product();
    let y = match fixed {
        Some(0) => return Err(c.bad_arg("divisor_override", "must not be zero")),
        Some(k) => quotient(b, sum, Arg::from(k as f64))?,
        None if all_whole(c, &w)? => quotient(b, sum, Arg::from(whole as f64))?,
        None => {
            let counts = window_counts(b, c, &w, sum)?;
            quotient(b, sum, counts.into())?
        }
    };
    out(b.cast(y, dtype)?)
}

/// `sum / count`, integers truncated as PyTorch does.
fn quotient(b: &mut Builder<'_>, sum: ValueId, count: Arg) -> Result<ValueId, OpError> {
    let dtype = b.dtype(sum)?;
    let count = b.as_dtype(&count, dtype)?;
    b.scalar_op(kernel_ir::ScalarOp::Div, &[sum.into(), count])
}

/// Whether every window counts all its positions.
fn all_whole(c: &Call<'_>, w: &Windows) -> Result<bool, OpError> {
    if !c.bool("count_include_pad")? && w.padding.iter().any(|p| *p != 0) {
        return Ok(false);
    }
    let reaches = |d: usize| {
        let end = (&w.sizes[d] - 1) * w.stride[d] + w.kernel[d];
        // Without rounding up the last window ends inside the padded input, whatever its size.
        (end - &w.from[d]).as_const().is_none_or(|over| over > 2 * w.padding[d])
    };
    Ok(!(c.bool("ceil_mode")? && (0..w.n).any(reaches)))
}

/// How many positions each window counts, as a tensor that broadcasts to the result.
fn window_counts(b: &mut Builder<'_>, c: &Call<'_>, w: &Windows, like: ValueId) -> Result<ValueId, OpError> {
    let include = c.bool("count_include_pad")?;
    let (rank, dtype) = (b.rank(like)?, b.dtype(like)?);
    let mut counts: Option<ValueId> = None;
    for d in 0..w.n {
        let pad = w.padding[d];
        let start = shape::iota(b, &w.sizes[d], (-pad).into(), w.stride[d].into())?;
        let end = b.add(start, w.kernel[d])?;
        let (low, high) = if include { (-pad, &w.from[d] + pad) } else { (0, w.from[d].clone()) };
        let end = b.minimum(end, high)?;
        let start = b.maximum(start, low)?;
        let count = b.sub(end, start)?;
        let count = shape::along(b, count, rank - w.n + d, rank)?;
        counts = Some(match counts {
            Some(all) => b.mul(all, count)?,
            None => count,
        });
    }
    match counts {
        Some(v) => b.cast(v, dtype),
        None => Err(c.invalid("has no window")),
    }
}

/// Sizes of the result of an adaptive pool in its last dimensions; an absent one stays. Integers have no such pools.
fn adaptive_sizes(b: &mut Builder<'_>, c: &Call<'_>, n: usize) -> Result<(Shape, Vec<SymExpr>), OpError> {
    let input = c.value("self")?;
    want_inexact(c, b.dtype(input)?)?;
    let sizes = b.sizes(input)?;
    if sizes.len() != n + 1 && sizes.len() != n + 2 {
        return Err(c.invalid(format!("takes {} or {} dimensions, not {}", n + 1, n + 2, sizes.len())));
    }
    let want = c.syms("output_size")?;
    let want = if want.len() == 1 { vec![want[0].clone(); n] } else { want };
    if want.len() != n {
        return Err(c.bad_arg("output_size", format!("must have {n} items")));
    }
    for size in &sizes[sizes.len() - n..] {
        b.require_at_least(size, 1, |_| "pools a dimension without elements".into())?;
    }
    Ok((sizes, want))
}

/// Window `o` of `outs` over a dimension of size `n` runs from `floor(o n / outs)` to `ceil((o + 1) n / outs)`.
struct AdaptiveWindows {
    start: ValueId,
    length: ValueId,
    longest: SymExpr,
}

/// The longest window where neither number is 0. With `f = o n mod outs` the length is `ceil((f + n) / outs)`, and `f` takes every
/// value below `outs` that their greatest common divisor divides.
fn longest(n: i64, outs: i64) -> i64 {
    let (mut a, mut rest) = (n, outs);
    while rest != 0 {
        (a, rest) = (rest, a % rest);
    }
    let (n, outs) = (n / a, outs / a);
    n / outs + i64::from(outs > 1) + i64::from(n % outs > 1)
}

fn uneven(b: &mut Builder<'_>, n: &SymExpr, outs: &SymExpr) -> Result<AdaptiveWindows, OpError> {
    let longest = match (n.as_const(), outs.as_const()) {
        (Some(n), Some(outs)) if n > 0 && outs > 0 => longest(n, outs).into(),
        // None is longer; positions outside of a window are masked anyway.
        _ => n.ceil_div(outs) + 1,
    };
    let scaled = shape::iota(b, outs, 0.into(), n.clone())?;
    let start = b.div(scaled, outs.clone())?;
    let end = b.add(scaled, n + outs - 1)?;
    let end = b.div(end, outs.clone())?;
    let length = b.sub(end, start)?;
    Ok(AdaptiveWindows { start, length, longest })
}

impl AdaptiveWindows {
    /// Dimension `d` of `x` replaced by `[outs, longest]`, and which of these positions lie in their window.
    fn read(
        &self,
        b: &mut Builder<'_>,
        x: ValueId,
        d: usize,
        n: &SymExpr,
    ) -> Result<(ValueId, ValueId), OpError> {
        let (start, length) = (b.unsqueeze(self.start, 1)?, b.unsqueeze(self.length, 1)?);
        let steps = shape::iota_at(b, &self.longest, 1, 2)?;
        let place = b.add(start, steps)?;
        let place = b.minimum(place, n - 1)?;
        let inside = b.lt(steps, length)?;
        Ok((shape::index(b, x, &[place], d)?, inside))
    }
}

/// Averages over rectangles are averages along one dimension after the other.
fn adaptive_avg(b: &mut Builder<'_>, c: &Call<'_>, n: usize) -> Made {
    let input = c.value("self")?;
    let (sizes, want) = adaptive_sizes(b, c, n)?;
    let (dtype, mut x) = (b.dtype(input)?, widen(b, input)?);
    let first = sizes.len() - n;
    // Dimensions that become 1 are averaged together: one reduction.
    let whole: Vec<usize> = (first..sizes.len()).filter(|d| want[d - first] == SymExpr::ONE).collect();
    if !whole.is_empty() {
        let count = crate::ops::common::count_of(b, x, &whole)?;
        let sum = b.reduce(ReduceOp::Sum, x, &whole, true)?;
        x = quotient(b, sum, shape::count(&count))?;
    }
    for d in (first..sizes.len()).filter(|d| !whole.contains(d)) {
        x = average_along(b, x, d, &want[d - first])?;
    }
    out(b.cast(x, dtype)?)
}

fn average_along(b: &mut Builder<'_>, x: ValueId, d: usize, outs: &SymExpr) -> Result<ValueId, OpError> {
    let n = b.sizes(x)?[d].clone();
    if n == *outs {
        return Ok(x);
    }
    let each = n.floor_div(outs);
    if &each * outs == n {
        let apart = shape::split_dim(b, x, d, &[outs.clone(), each.clone()])?;
        let sum = b.reduce(ReduceOp::Sum, apart, &[d + 1], false)?;
        return quotient(b, sum, shape::count(&each));
    }
    let uneven = uneven(b, &n, outs)?;
    let (view, inside) = uneven.read(b, x, d, &n)?;
    let (dtype, sizes) = (b.dtype(view)?, b.sizes(view)?);
    let tail = sizes.len() - d - 2;
    let inside = with_tail(b, inside, tail)?;
    let inside = b.expand(inside, &sizes)?;
    let kept = choose(b, inside, view, 0i64, dtype)?;
    let sum = b.reduce(ReduceOp::Sum, kept, &[d + 1], false)?;
    let length = b.cast(uneven.length, dtype)?;
    let length = with_tail(b, length, tail)?;
    quotient(b, sum, length.into())
}

/// `n` dimensions of size 1 behind.
fn with_tail(b: &mut Builder<'_>, v: ValueId, n: usize) -> Result<ValueId, OpError> {
    let mut sizes = b.sizes(v)?;
    sizes.extend(std::iter::repeat_n(SymExpr::ONE, n));
    b.reshape(v, &sizes)
}

/// Every dimension read as `[outs, window]`; then as for a plain pool with indices.
fn adaptive_max(b: &mut Builder<'_>, c: &Call<'_>, n: usize) -> Made {
    let input = c.value("self")?;
    let (sizes, want) = adaptive_sizes(b, c, n)?;
    let first = sizes.len() - n;
    let dtype = b.dtype(input)?;
    let (mut x, mut starts, mut longest) = (input, Vec::new(), Vec::new());
    let mut masks = Vec::new();
    for d in 0..n {
        let (size, outs) = (&sizes[first + d], &want[d]);
        let each = size.floor_div(outs);
        if &each * outs == *size {
            x = shape::split_dim(b, x, first + 2 * d, &[outs.clone(), each.clone()])?;
            starts.push(shape::iota(b, outs, 0.into(), each.clone())?);
            longest.push(each);
            continue;
        }
        let uneven = uneven(b, size, outs)?;
        let (view, inside) = uneven.read(b, x, first + 2 * d, size)?;
        x = view;
        masks.push((d, inside));
        starts.push(uneven.start);
        longest.push(uneven.longest);
    }
    let full = b.sizes(x)?;
    for (d, inside) in masks {
        let inside = with_tail(b, inside, 2 * (n - d - 1))?;
        let inside = b.expand(inside, &full)?;
        x = choose(b, inside, x, lowest(dtype), dtype)?;
    }
    let spaces = (0..n).map(|d| first + 2 * d);
    let order: Vec<usize> = (0..first).chain(spaces.clone()).chain(spaces.map(|d| d + 1)).collect();
    let view = b.permute(x, &order)?;
    let dims: Vec<usize> = (first + n..first + 2 * n).collect();
    let best = b.reduce(ReduceOp::ArgMax, view, &dims, false)?;
    let y = largest(b, view, best, &dims)?;
    let places = flat_places(b, best, &starts, &longest, &vec![1; n], &sizes[first..])?;
    debug_assert_eq!(b.dtype(places)?, DType::I64);
    Ok(smallvec![y, places])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_longest_window_is_that_of_all_windows() {
        for (n, outs) in (1..40).flat_map(|n| (1..40).map(move |outs| (n, outs))) {
            let length = |o: i64| ((o + 1) * n + outs - 1) / outs - o * n / outs;
            assert_eq!(Some(super::longest(n, outs)), (0..outs).map(length).max(), "{n} to {outs}");
        }
    }
}
