//! Sampling an image at a grid of points, and the grids of affine maps.

use fx_ir::ValueId;
use ir_core::{DType, Shape, SymExpr};

use super::common::{choose, widen};
use super::index::clamped;
use super::shape::{self, Made, out};
use crate::{Autocast, Builder, Call, OpDef, OpError};

/// The entries.
pub(super) const OPS: &[OpDef] = &[
    composite!(
        "aten::grid_sampler(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
        sample
    ).autocast(Autocast::FLOAT32_ON_CPU_WIDEST_ON_GPU),
    composite!(
        "aten::grid_sampler_2d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
        sample
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::_grid_sampler_2d_cpu_fallback(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
        sample
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::grid_sampler_3d(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor",
        sample
    ).autocast(Autocast::FLOAT32_ON_CPU),
    composite!(
        "aten::affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor",
        affine_grid
    ),
];

/// What a point outside the image sees.
#[derive(Clone, Copy, PartialEq)]
enum PaddingMode {
    Zeros,
    Border,
    Reflection,
}

/// How the image is read.
struct Sampler {
    outside: PaddingMode,
    align: bool,
    /// Spatial sizes of the image.
    sizes: Shape,
    /// Samples, channels and points as leading and broadcast dimensions: `[n, c, points…]`.
    image: ValueId,
    compute: DType,
}

fn sample(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (input, grid) = (c.value("input")?, c.value("grid")?);
    let (sizes, points) = (b.sizes(input)?, b.sizes(grid)?);
    let n = sizes.len().saturating_sub(2);
    if !(2..=3).contains(&n) || points.len() != sizes.len() {
        return Err(c.invalid("takes an image [n, c, …] and a grid [n, …, dimensions] of one rank"));
    }
    let dtype = b.dtype(input)?;
    // In two dimensions PyTorch's CPU kernels compute in 16 bits themselves, and so do the places that they read.
    let (image, grid) = if n == 2 { (input, grid) } else { (widen(b, input)?, widen(b, grid)?) };
    let s = Sampler {
        outside: match c.int("padding_mode")? {
            0 => PaddingMode::Zeros,
            1 => PaddingMode::Border,
            2 => PaddingMode::Reflection,
            other => return Err(c.bad_arg("padding_mode", format!("is {other}, not one of 0 to 2"))),
        },
        align: c.bool("align_corners")?,
        sizes: sizes[2..].iter().cloned().collect(),
        image,
        compute: b.dtype(image)?,
    };
    // The grid's last dimension counts from the innermost dimension of the image.
    let mut at = Vec::new();
    for d in 0..n {
        let v = shape::select(b, grid, n + 1, ((n - 1 - d) as i64).into())?;
        at.push(s.unnormalised(b, v, d)?);
    }
    let y = match c.int("interpolation_mode")? {
        0 => s.linear(b, c, &at)?,
        1 => s.nearest(b, &at)?,
        2 if n == 2 => s.cubic(b, c, &at)?,
        other => return Err(c.unsupported(format!("interpolation mode {other} in {n} dimensions"))),
    };
    out(b.cast(y, dtype)?)
}

impl Sampler {
    /// From -1..1 to places in the image.
    fn unnormalised(&self, b: &mut Builder<'_>, v: ValueId, d: usize) -> Result<ValueId, OpError> {
        let n = shape::count(&self.sizes[d]);
        let shifted = b.add(v, 1.0)?;
        if self.align {
            let half = b.mul(shifted, 0.5)?;
            return b.mul(half, shape::count(&(&self.sizes[d] - 1)));
        }
        let scaled = b.mul(shifted, n)?;
        let less = b.sub(scaled, 1.0)?;
        b.mul(less, 0.5)
    }
    /// A place outside moved inside as the mode says; only zeros leave it where it is.
    fn moved(&self, b: &mut Builder<'_>, v: ValueId, d: usize) -> Result<ValueId, OpError> {
        let v = match self.outside {
            PaddingMode::Zeros => return Ok(v),
            PaddingMode::Border => v,
            PaddingMode::Reflection => self.reflected(b, v, d)?,
        };
        let low = b.maximum(v, 0.0)?;
        b.minimum(low, shape::count(&(&self.sizes[d] - 1)))
    }
    /// Mirrored at the middles of the border elements, or at their outer edges.
    fn reflected(&self, b: &mut Builder<'_>, v: ValueId, d: usize) -> Result<ValueId, OpError> {
        let (low, span) = if self.align { (0.0, &self.sizes[d] - 1) } else { (-0.5, self.sizes[d].clone()) };
        if span == SymExpr::ZERO {
            return b.mul(v, 0.0);
        }
        let from = b.sub(v, low)?;
        let from = b.abs(from)?;
        // Distance within a period of there and back.
        let extra = b.rem(from, shape::count(&span))?;
        let flips = b.div(from, shape::count(&span))?;
        let flips = b.floor(flips)?;
        let odd = b.rem(flips, 2.0)?;
        let odd = b.ne(odd, 0.0)?;
        let there = b.add(extra, low)?;
        let back = b.neg(extra)?;
        let back = b.add(back, shape::count(&span))?;
        let back = b.add(back, low)?;
        b.select(odd, back, there)
    }
    /// The image at whole places (as floats), `[n, c, points…]`; zeros outside.
    fn read(&self, b: &mut Builder<'_>, at: &[ValueId]) -> Result<ValueId, OpError> {
        let points = b.sizes(at[0])?;
        let mut inside: Option<ValueId> = None;
        let mut indices = Vec::new();
        let rows = shape::iota_at(b, &points[0], 0, points.len())?;
        indices.push(b.expand(rows, &points)?);
        for (d, &v) in at.iter().enumerate() {
            let (low, high) = (b.ge(v, 0.0)?, b.lt(v, shape::count(&self.sizes[d]))?);
            let within = b.and(low, high)?;
            inside = Some(match inside {
                Some(all) => b.and(all, within)?,
                None => within,
            });
            // Far outside (or NaN) an integer would be anything: first move it near.
            let near = choose(b, within, v, 0.0, self.compute)?;
            indices.push(clamped(b, near, &self.sizes[d])?);
        }
        // Channels last, so that samples and places lie side by side: [n, space…, c] at [n, points…].
        let rank = b.rank(self.image)?;
        let order: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
        let image = b.permute(self.image, &order)?;
        let values = shape::index(b, image, &indices, 0)?;
        let values = shape::move_dim(b, values, points.len(), 1)?;
        let Some(inside) = inside else { return Ok(values) };
        let full = b.sizes(values)?;
        let inside = b.unsqueeze(inside, 1)?;
        let inside = b.expand(inside, &full)?;
        choose(b, inside, values, 0.0, self.compute)
    }
    fn nearest(&self, b: &mut Builder<'_>, at: &[ValueId]) -> Result<ValueId, OpError> {
        let mut places = Vec::new();
        for (d, &v) in at.iter().enumerate() {
            let v = self.moved(b, v, d)?;
            places.push(b.scalar_op(kernel_ir::ScalarOp::Round, &[v.into()])?);
        }
        self.read(b, &places)
    }
    /// The weighted sum over all combinations of one (place, weight) pair a dimension.
    fn combine(
        &self,
        b: &mut Builder<'_>,
        c: &Call<'_>,
        taps: &[Vec<(ValueId, ValueId)>],
    ) -> Result<ValueId, OpError> {
        let total: usize = taps.iter().map(Vec::len).product();
        let mut sum: Option<ValueId> = None;
        for mut n in 0..total {
            let (mut places, mut weight) = (Vec::new(), None);
            for list in taps {
                let (place, w) = list[n % list.len()];
                n /= list.len();
                places.push(place);
                weight = Some(match weight {
                    Some(all) => b.mul(all, w)?,
                    None => w,
                });
            }
            let value = self.read(b, &places)?;
            let term = match weight {
                Some(w) => {
                    let w = b.unsqueeze(w, 1)?;
                    b.mul(value, w)?
                }
                None => value,
            };
            sum = Some(match sum {
                Some(sum) => b.add(sum, term)?,
                None => term,
            });
        }
        sum.ok_or_else(|| c.invalid("has no dimension to sample in"))
    }
    fn linear(&self, b: &mut Builder<'_>, c: &Call<'_>, at: &[ValueId]) -> Result<ValueId, OpError> {
        let mut taps = Vec::new();
        for (d, &v) in at.iter().enumerate() {
            let v = self.moved(b, v, d)?;
            let low = b.floor(v)?;
            let right = b.sub(v, low)?;
            let left = b.neg(right)?;
            let left = b.add(left, 1.0)?;
            let high = b.add(low, 1.0)?;
            taps.push(vec![(low, left), (high, right)]);
        }
        self.combine(b, c, &taps)
    }
    /// Four places a dimension, each of them moved inside by itself.
    fn cubic(&self, b: &mut Builder<'_>, c: &Call<'_>, at: &[ValueId]) -> Result<ValueId, OpError> {
        let mut taps = Vec::new();
        for (d, &v) in at.iter().enumerate() {
            let low = b.floor(v)?;
            let fraction = b.sub(v, low)?;
            let mut list = Vec::new();
            for tap in -1..=2i64 {
                let weight = super::upsample::cubic_tap(b, fraction, tap)?;
                let place = b.add(low, tap as f64)?;
                let place = self.moved(b, place, d)?;
                // A reflected place lies between elements where corners are not aligned; PyTorch truncates it.
                list.push((if self.outside == PaddingMode::Zeros { place } else { b.trunc(place)? }, weight));
            }
            taps.push(list);
        }
        self.combine(b, c, &taps)
    }
}

/// `[n, points…, dimensions]`: the points of a regular grid, each mapped by `theta`.
fn affine_grid(b: &mut Builder<'_>, c: &Call<'_>) -> Made {
    let (theta, size, align) = (c.value("theta")?, c.syms("size")?, c.bool("align_corners")?);
    let n = size.len().saturating_sub(2);
    let dtype = b.dtype(theta)?;
    let theta = widen(b, theta)?;
    let compute = b.dtype(theta)?;
    let space: Shape = size[2..].iter().cloned().collect();
    let mut columns = Vec::new();
    for d in (0..n).rev() {
        let steps = shape::known(c, &space[d], "size of a grid")?;
        let at = shape::iota_at(b, &space[d], d, n)?;
        let at = b.cast(at, compute)?;
        // From -1 to 1 between the ends, or between the outer edges.
        let (scale, start) = match (align, steps) {
            (_, 0 | 1) => (0.0, 0.0),
            (true, k) => (2.0 / (k - 1) as f64, -1.0),
            (false, k) => (2.0 / k as f64, 1.0 / k as f64 - 1.0),
        };
        let at = b.mul(at, scale)?;
        let at = b.add(at, start)?;
        let at = b.expand(at, &space)?;
        columns.push(b.unsqueeze(at, n)?);
    }
    let mut ones = space.clone();
    ones.push(SymExpr::ONE);
    columns.push(b.full(&ones, 1i64, compute)?);
    let points = shape::cat(b, &columns, n)?;
    let total = ir_core::numel(&space);
    let points = b.reshape(points, &[SymExpr::ONE, total, (n as i64 + 1).into()])?;
    let maps = shape::swap(b, theta, 1, 2)?;
    let y = super::matmul::product(b, c, points, maps)?;
    let sizes: Shape = [size[0].clone()].into_iter().chain(space).chain([(n as i64).into()]).collect();
    let y = b.reshape(y, &sizes)?;
    out(b.cast(y, dtype)?)
}
