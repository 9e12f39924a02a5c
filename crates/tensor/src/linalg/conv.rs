//! Convolution (cross-correlation) and transposed convolution in any number of spatial dimensions.
//!
//! For a few output points at a time the input values under their windows are laid out as a matrix `[c * window,
//! points]`; the weight times that matrix is the result. A point outside the input counts as zero.

use ir_core::DType;
use rayon::prelude::*;

use super::matmul::accumulate;
use super::{Accumulator, common_class, narrowed, widened, with_accumulator, zeroed};
use crate::{Tensor, TensorError};

/// Output points of one task: a matrix of 4608 by 128 `f64` (a window of 3 by 3 over 512 channels) is 4.7 MB.
const POINTS: usize = 128;

/// How the window moves. One entry per spatial dimension.
#[derive(Clone, Debug)]
pub struct ConvGeometry<'a> {
    /// Step of the window (of the input, where transposed).
    pub stride: &'a [usize],
    /// Zeros before the first element; negative cuts elements off. (What follows the last one is given by `output`.)
    pub padding: &'a [isize],
    /// Distance of the window's points.
    pub dilation: &'a [usize],
    /// Spatial sizes of the output.
    pub output: &'a [usize],
    /// Groups of channels.
    pub groups: usize,
    /// Whether this is the transposed convolution.
    pub transposed: bool,
}

/// Input `[n, c, spatial…]`, weight `[o, c / groups, window…]` (transposed: `[c, o / groups, window…]`); the result is
/// `[n, o, output…]`, row-major, in `dtype`.
pub fn conv(
    input: &Tensor,
    weight: &Tensor,
    geometry: &ConvGeometry<'_>,
    dtype: DType,
) -> Result<Tensor, TensorError> {
    let shape = Shape::of(input.sizes(), weight.sizes(), geometry)?;
    let mut sizes = vec![shape.n, shape.o];
    sizes.extend(geometry.output);
    crate::tensor::checked_numel(dtype, &sizes)?;
    with_accumulator!(common_class(input, weight), A => run::<A>(input, weight, &shape, dtype, &sizes))
}

struct Shape<'a> {
    n: usize,
    o: usize,
    /// Input and output channels of one group.
    c_group: usize,
    o_group: usize,
    spatial: &'a [usize],
    window: &'a [usize],
    geometry: &'a ConvGeometry<'a>,
    /// Points of the input, the window and the output.
    in_points: usize,
    window_points: usize,
    out_points: usize,
}

impl<'a> Shape<'a> {
    fn of(
        input: &'a [usize],
        weight: &'a [usize],
        g: &'a ConvGeometry<'a>,
    ) -> Result<Shape<'a>, TensorError> {
        let refused = |why: &str| {
            TensorError::Shape(format!("convolution of input {input:?} with weight {weight:?}: {why}"))
        };
        let ([n, c, spatial @ ..], [w0, w1, window @ ..]) = (input, weight) else {
            return Err(refused("both need two dimensions and their spatial ones"));
        };
        let rank = spatial.len();
        let lengths = [window.len(), g.stride.len(), g.padding.len(), g.dilation.len(), g.output.len()];
        if lengths.iter().any(|&l| l != rank) {
            return Err(refused("every list needs one entry a spatial dimension"));
        }
        if g.groups == 0 || g.stride.contains(&0) || c % g.groups != 0 {
            return Err(refused("groups must divide the channels and strides be positive"));
        }
        let c_group = c / g.groups;
        // So that positions cannot overflow below.
        const LIMIT: usize = 1 << 31;
        let small = |sizes: &[usize]| sizes.iter().all(|&x| x < LIMIT);
        if !(small(g.stride) && small(g.dilation) && small(g.output) && small(window))
            || g.padding.iter().any(|p| p.unsigned_abs() >= LIMIT)
        {
            return Err(refused("a stride, padding, dilation or size is out of range"));
        }
        let (fits, o, o_group) = match g.transposed {
            false => (*w1 == c_group && w0 % g.groups == 0, *w0, w0 / g.groups),
            true => (w0 == c, w1 * g.groups, *w1),
        };
        if !fits {
            return Err(refused("the weight's channels do not fit the input's and the groups"));
        }
        let points = |sizes: &[usize]| sizes.iter().product::<usize>();
        Ok(Shape {
            n: *n,
            o,
            c_group,
            o_group,
            spatial,
            window,
            geometry: g,
            in_points: points(spatial),
            window_points: points(window),
            out_points: points(g.output),
        })
    }

    /// Rows of the gathered matrix.
    fn depth(&self) -> usize {
        self.c_group * self.window_points
    }

    /// The input point (row-major number) that window point `w` of output point `p` lies on, where there is one.
    fn source(&self, p: &[usize], w: &[usize]) -> Option<usize> {
        let g = self.geometry;
        let mut at = 0;
        for d in 0..p.len() {
            let step = w[d] as isize * g.dilation[d] as isize;
            let position = if g.transposed {
                let shifted = p[d] as isize + g.padding[d] - step;
                if shifted % g.stride[d] as isize != 0 {
                    return None;
                }
                shifted / g.stride[d] as isize
            } else {
                (p[d] * g.stride[d]) as isize - g.padding[d] + step
            };
            let position = usize::try_from(position).ok().filter(|&x| x < self.spatial[d])?;
            at = at * self.spatial[d] + position;
        }
        Some(at)
    }
}

fn run<A: Accumulator>(
    input: &Tensor,
    weight: &Tensor,
    s: &Shape<'_>,
    dtype: DType,
    sizes: &[usize],
) -> Result<Tensor, TensorError> {
    let x = widened::<A>(input)?;
    let w = weight_matrix(widened::<A>(weight)?, s);
    let mut out = zeroed::<A>(sizes.iter().product())?;
    if out.is_empty() || s.depth() == 0 {
        return narrowed(&out, dtype, sizes);
    }
    let blocks = s.out_points.div_ceil(POINTS);
    // A task's result is a block of columns of every output channel of its group, copied into place afterwards.
    let results: Vec<(usize, Vec<A>)> = (0..s.n * s.geometry.groups * blocks)
        .into_par_iter()
        .map(|task| (task, one_block(&x, &w, s, task / blocks, task % blocks)))
        .collect();
    for (task, block) in results {
        let (image_group, first) = (task / blocks, task % blocks * POINTS);
        let points = (s.out_points - first).min(POINTS);
        for (row, values) in block.chunks(points).enumerate() {
            let start = (image_group * s.o_group + row) * s.out_points + first;
            out[start..start + points].copy_from_slice(values);
        }
    }
    narrowed(&out, dtype, sizes)
}

/// Row-major `[groups, o / groups, c / groups * window]`. It is the weight itself unless transposed.
fn weight_matrix<A: Accumulator>(w: Vec<A>, s: &Shape<'_>) -> Vec<A> {
    if !s.geometry.transposed {
        return w;
    }
    let mut matrix = Vec::with_capacity(w.len());
    for group in 0..s.geometry.groups {
        for o in 0..s.o_group {
            for c in 0..s.c_group {
                let start = ((group * s.c_group + c) * s.o_group + o) * s.window_points;
                matrix.extend_from_slice(&w[start..start + s.window_points]);
            }
        }
    }
    matrix
}

/// `[o / groups, points]` of one image and group (`image_group = image * groups + group`).
fn one_block<A: Accumulator>(x: &[A], w: &[A], s: &Shape<'_>, image_group: usize, block: usize) -> Vec<A> {
    let first = block * POINTS;
    let points = (s.out_points - first).min(POINTS);
    let mut columns = vec![A::default(); s.depth() * points];
    let mut w_index = vec![0; s.window.len()];
    let mut p_index = vec![0; s.window.len()];
    for w_point in 0..s.window_points {
        unravel(w_point, s.window, &mut w_index);
        for p in 0..points {
            unravel(first + p, s.geometry.output, &mut p_index);
            let Some(at) = s.source(&p_index, &w_index) else { continue };
            for c in 0..s.c_group {
                let from = (image_group * s.c_group + c) * s.in_points + at;
                columns[(c * s.window_points + w_point) * points + p] = x[from];
            }
        }
    }
    let group = image_group % s.geometry.groups;
    let w = &w[group * s.o_group * s.depth()..][..s.o_group * s.depth()];
    let mut out = vec![A::default(); s.o_group * points];
    accumulate(w, &columns, &mut out, s.depth(), points);
    out
}

fn unravel(mut at: usize, sizes: &[usize], index: &mut [usize]) {
    for d in (0..sizes.len()).rev() {
        index[d] = at % sizes[d];
        at /= sizes[d];
    }
}
