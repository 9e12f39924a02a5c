//! Windows as tensors and back: unfold, im2col, col2im, and the shuffles between channels and space.

use fx_ir::{Arg, ValueId};
use ir_core::{Shape, SymExpr};
use kernel_ir::ReduceOp;

use crate::ops::shapes::shape::{self, Made, out};
use crate::{Builder, Call, OpDef, OpError};

/// The entries.
pub(in crate::ops) const OPS: &[OpDef] = &[
    composite!("aten::unfold(Tensor(a) self, int dimension, int size, int step) -> Tensor(a)", unfold),
    composite!("aten::unfold_copy(Tensor self, int dimension, int size, int step) -> Tensor", unfold),
    composite!(
        "aten::im2col(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
        im2col
    ),
    composite!(
        "aten::col2im(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride) -> Tensor",
        col2im
    ),
    composite!("aten::pixel_shuffle(Tensor self, int upscale_factor) -> Tensor", |b, c| {
        let (x, r) = (c.value("self")?, c.int("upscale_factor")?);
        let (sizes, lead) = image(b, c, x)?;
        if !(1..=1 << 31).contains(&r) {
            return Err(c.bad_arg("upscale_factor", "must be positive, and no larger than a dimension"));
        }
        let channels = sizes[lead].floor_div(&(r * r).into());
        let x = shape::split_dim(b, x, lead, &[channels, r.into(), r.into()])?;
        // [c, r, r, h, w] to [c, h, r, w, r]
        let order: Vec<usize> = (0..lead).chain([0, 3, 1, 4, 2].map(|d| d + lead)).collect();
        let x = b.permute(x, &order)?;
        let x = shape::merge_dims(b, x, lead + 3, 2)?;
        out(shape::merge_dims(b, x, lead + 1, 2)?)
    }),
    composite!("aten::pixel_unshuffle(Tensor self, int downscale_factor) -> Tensor", |b, c| {
        let (x, r) = (c.value("self")?, c.int("downscale_factor")?);
        let (sizes, lead) = image(b, c, x)?;
        if r < 1 {
            return Err(c.bad_arg("downscale_factor", "must be positive"));
        }
        let part = |d: usize| sizes[d].floor_div(&r.into());
        let x = shape::split_dim(b, x, lead + 2, &[part(lead + 2), r.into()])?;
        let x = shape::split_dim(b, x, lead + 1, &[part(lead + 1), r.into()])?;
        // [c, h, r, w, r] to [c, r, r, h, w]
        let order: Vec<usize> = (0..lead).chain([0, 2, 4, 1, 3].map(|d| d + lead)).collect();
        let x = b.permute(x, &order)?;
        out(shape::merge_dims(b, x, lead, 3)?)
    }),
    composite!("aten::channel_shuffle(Tensor self, SymInt groups) -> Tensor", channel_shuffle),
    composite!("aten::native_channel_shuffle(Tensor self, SymInt groups) -> Tensor", channel_shuffle),
];

/// Sizes of `[…, c, h, w]` and the number of leading dimensions.
fn image(b: &Builder<'_>, c: &Call<'_>, x: ValueId) -> Result<(Shape, usize), OpError> {
    let sizes = b.sizes(x)?;
    match sizes.len().checked_sub(3) {
        Some(lead) => Ok((sizes, lead)),
        None => Err(c.invalid("takes [c, h, w] with any leading dimensions")),
    }
}

fn channel_shuffle(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, groups) = (c.value("self")?, c.sym("groups")?);
    let sizes = b.sizes(x)?;
    let each = sizes.get(1).ok_or_else(|| c.invalid("takes [n, c, …]"))?.floor_div(&groups);
    let apart = shape::split_dim(b, x, 1, &[groups, each])?;
    let moved = shape::swap(b, apart, 1, 2)?;
    out(b.reshape(moved, &sizes)?)
}

/// `prims.window` over the last dimensions, zeros outside.
#[allow(clippy::too_many_arguments, reason = "the geometry of a window")]
fn window(
    b: &mut Builder<'_>,
    x: ValueId,
    sizes: &[SymExpr],
    kernel: &[i64],
    stride: &[i64],
    dilation: &[i64],
    low: &[i64],
) -> Result<ValueId, OpError> {
    let zero = ir_core::Scalar::zero(b.dtype(x)?);
    let list = |v: &[i64]| Arg::from(v);
    let args =
        vec![x.into(), sizes.into(), list(kernel), list(stride), list(dilation), list(low), zero.into()];
    b.call1("prims.window", args)
}

fn unfold(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let x = c.value("self")?;
    let rank = b.rank(x)?;
    let d = shape::dim(c, "dimension", rank)?;
    let (size, step) = (c.int("size")?, c.int("step")?);
    if size < 0 || step < 1 {
        return Err(c.invalid("takes a size that is not negative and a positive step"));
    }
    let x = if rank == 0 { crate::ops::indexing::index::flat(b, x)? } else { x };
    let n = b.sizes(x)?[d].clone();
    b.require_at_least(&n, size, |graph| {
        format!("windows of {size} elements do not fit into {}", graph.size_text(&n))
    })?;
    let count = (n - size).floor_div(&step.into()) + 1;
    if rank == 0 {
        // One window of the one element, which itself has no position.
        let kept = b.slice(x, 0, SymExpr::ZERO, size.into(), 1)?;
        return out(kept);
    }
    let last = shape::move_dim(b, x, d, rank - 1)?;
    if size == 0 {
        let mut sizes = b.sizes(x)?;
        sizes[d] = count;
        sizes.push(SymExpr::ZERO);
        let dtype = b.dtype(x)?;
        return out(b.full(&sizes, 0i64, dtype)?);
    }
    let view = window(b, last, &[count], &[size], &[step], &[1], &[0])?;
    out(shape::move_dim(b, view, rank - 1, d)?)
}

/// Geometry of a two-dimensional window.
struct Plane {
    kernel: Vec<i64>,
    dilation: Vec<i64>,
    padding: Vec<i64>,
    stride: Vec<i64>,
}

fn plane(c: &Call<'_>) -> Result<Plane, OpError> {
    let p = Plane {
        kernel: c.ints_n("kernel_size", 2, 1)?,
        dilation: c.ints_n("dilation", 2, 1)?,
        padding: c.ints_n("padding", 2, 0)?,
        stride: c.ints_n("stride", 2, 1)?,
    };
    if p.kernel.iter().chain(&p.dilation).chain(&p.stride).any(|&x| x < 1) {
        return Err(c.invalid("window, dilation and stride must be positive"));
    }
    Ok(p)
}

impl Plane {
    /// Number of windows along dimension `d` of size `n`.
    fn count(&self, d: usize, n: &SymExpr) -> SymExpr {
        let room = n + 2 * self.padding[d] - self.dilation[d] * (self.kernel[d] - 1) - 1;
        room.floor_div(&self.stride[d].into()) + 1
    }
}

/// `[n, c, h, w]` to `[n, c * kh * kw, windows]`.
fn im2col(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, p) = (c.value("self")?, plane(c)?);
    let (sizes, lead) = image(b, c, x)?;
    let counts = [p.count(0, &sizes[lead + 1]), p.count(1, &sizes[lead + 2])];
    let view = window(b, x, &counts, &p.kernel, &p.stride, &p.dilation, &p.padding)?;
    let order: Vec<usize> = (0..lead).chain([0, 3, 4, 1, 2].map(|d| d + lead)).collect();
    let view = b.permute(view, &order)?;
    let view = shape::merge_dims(b, view, lead + 3, 2)?;
    out(shape::merge_dims(b, view, lead, 3)?)
}

/// What windows hold of each position, added up.
fn col2im(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (x, p) = (c.value("self")?, plane(c)?);
    let (sizes, want) = (b.sizes(x)?, c.syms("output_size")?);
    let lead = sizes.len().checked_sub(2).ok_or_else(|| c.invalid("takes [n, c * kernel, windows]"))?;
    let taps = p.kernel[0] * p.kernel[1];
    let channels = sizes[lead].floor_div(&taps.into());
    let counts = [p.count(0, &want[0]), p.count(1, &want[1])];
    let apart: Shape = sizes[..lead]
        .iter()
        .cloned()
        .chain([channels, taps.into(), counts[0].clone(), counts[1].clone()])
        .collect();
    let count = &counts[0] * &counts[1];
    let what = "the number of channels or windows does not fit the output size";
    b.require_equal(&(&apart[lead] * taps), &sizes[lead], |_| what.into())?;
    b.require_equal(&count, &sizes[lead + 1], |_| what.into())?;
    let x = b.reshape(x, &apart)?;
    let dtype = b.dtype(x)?;
    let x = crate::ops::common::widen(b, x)?;
    // [n…, c, taps, windows…] -> [n…, c, windows…, taps…]
    let order: Vec<usize> = (0..=lead).chain([lead + 2, lead + 3, lead + 1]).collect();
    let x = b.permute(x, &order)?;
    let x = shape::split_dim(b, x, lead + 3, &[p.kernel[0].into(), p.kernel[1].into()])?;
    let lists = [&p.stride, &p.dilation, &p.padding].map(|l| Arg::from(&l[..]));
    let args = [Arg::Value(x), want[..].into()].into_iter().chain(lists).collect();
    let covers = b.call1("prims.cover", args)?;
    let sum = b.reduce(ReduceOp::Sum, covers, &[lead + 3, lead + 4], false)?;
    out(b.cast(sum, dtype)?)
}
