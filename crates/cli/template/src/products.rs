//! Matrix products and convolutions, one element of the result after another, each with its fused epilogue. A real backend
//! calls a library here, or has kernels of its own; this is what they must compute.

use plugin_sdk::ir_core::Scalar;
use plugin_sdk::kernel_ir::runtime::Sizes;
use plugin_sdk::kernel_ir::{Along, BufId, Conv, Dequant, Groups, Matmul, Operand, Program};
use plugin_sdk::{DType, PluginError};

use crate::kernel::run_epilogue;
use crate::memory::{Memory, for_each_index};
use crate::number;

/// An operand whose shape is known in numbers: a view of a buffer's memory.
struct View {
    buf: BufId,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    offset: i64,
}

impl View {
    fn new(operand: &Operand, sizes: &Sizes) -> Result<View, PluginError> {
        Ok(View {
            buf: operand.buf,
            sizes: sizes.all(&operand.sizes)?,
            strides: sizes.all(&operand.strides)?,
            offset: sizes.eval(&operand.offset)?,
        })
    }

    /// The offset of an index in the buffer's memory.
    fn place(&self, index: &[i64]) -> i64 {
        self.offset + index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum::<i64>()
    }
}

/// A sum of products, of whose first factors a zero point is subtracted. Floats are added up in double precision, so that the order does not matter much.
struct Sum {
    acc: DType,
    zero: i64,
    float: f64,
    whole: i64,
}

impl Sum {
    fn new(acc: DType, zero: i64) -> Sum {
        Sum { acc, zero, float: 0.0, whole: 0 }
    }

    fn add(&mut self, a: Scalar, b: Scalar) {
        if self.acc.is_float() {
            self.float += a.as_f64() * b.as_f64();
        } else {
            self.whole =
                self.whole.wrapping_add((a.as_i64().wrapping_sub(self.zero)).wrapping_mul(b.as_i64()));
        }
    }

    fn result(&self) -> Scalar {
        let value = if self.acc.is_float() { Scalar::Float(self.float) } else { Scalar::Int(self.whole) };
        number::rounded(self.acc, value)
    }
}

/// The numbers by which quantized weights are turned into floats.
struct Quantized {
    factor: View,
    zero: Option<View>,
    /// Rows of the weights that share a factor.
    length: i64,
}

impl Quantized {
    fn new(dequant: &Dequant, depth: i64, sizes: &Sizes) -> Result<Quantized, PluginError> {
        let factor = View::new(&dequant.factor, sizes)?;
        let zero = dequant.zero.as_ref().map(|zero| View::new(zero, sizes)).transpose()?;
        let length = (depth / factor.sizes[0].max(1)).max(1);
        Ok(Quantized { factor, zero, length })
    }

    fn value(&self, weight: Scalar, [k, n]: [i64; 2], memory: &Memory) -> Result<Scalar, PluginError> {
        let at = |view: &View| -> Result<f64, PluginError> {
            Ok(memory.at(view.buf, view.place(&[k / self.length, n]))?.as_f64())
        };
        let zero = self.zero.as_ref().map_or(Ok(0.0), at)?;
        Ok(Scalar::Float((weight.as_f64() - zero) * at(&self.factor)?))
    }
}

/// `out[…, m, n] = Σ_k (a[…, m, k] - zero) * b[…, k, n]`.
pub(crate) fn matmul(
    program: &Program,
    step: &Matmul,
    sizes: &Sizes,
    memory: &mut Memory,
) -> Result<(), PluginError> {
    if let Some(groups) = &step.groups {
        return grouped(program, step, groups, sizes, memory);
    }
    let (a, b) = (View::new(&step.a, sizes)?, View::new(&step.b, sizes)?);
    let rank = a.sizes.len();
    let depth = a.sizes[rank - 1];
    let quantized = step.dequant.as_ref().map(|d| Quantized::new(d, depth, sizes)).transpose()?;
    for_each_index(&sizes.all(&step.epilogue.ranges)?, &mut |point| {
        // The point is `[batch…, m, n]`: the row of `a` and the column of `b` begin where the summed index is 0.
        let (mut row, mut column) = (point.to_vec(), point.to_vec());
        (row[rank - 1], column[rank - 2]) = (0, 0);
        let (mut at_a, mut at_b) = (a.place(&row), b.place(&column));
        let mut sum = Sum::new(step.acc, step.zero);
        for k in 0..depth {
            let mut weight = memory.at(b.buf, at_b)?;
            if let Some(quantized) = &quantized {
                weight = quantized.value(weight, [k, point[rank - 1]], memory)?;
            }
            sum.add(memory.at(a.buf, at_a)?, weight);
            at_a += a.strides[rank - 1];
            at_b += b.strides[rank - 2];
        }
        run_epilogue(program, &step.epilogue.insts, sizes, memory, point, sum.result())
    })
}

/// The same where rows, or what is summed over, are those of groups: a row has the matrix of its group, or none.
fn grouped(
    program: &Program,
    step: &Matmul,
    groups: &Groups,
    sizes: &Sizes,
    memory: &mut Memory,
) -> Result<(), PluginError> {
    let (a, b, ends) =
        (View::new(&step.a, sizes)?, View::new(&step.b, sizes)?, View::new(&groups.ends, sizes)?);
    let end = |g: i64| -> Result<i64, PluginError> { Ok(memory.at(ends.buf, ends.place(&[g]))?.as_i64()) };
    let numbers = (0..ends.sizes[0]).map(end).collect::<Result<Vec<i64>, PluginError>>()?;
    let places = a.sizes[if groups.along == Along::Rows { 0 } else { 1 }];
    let ranges = Groups::ranges(numbers, usize::try_from(places).unwrap_or(0));
    for_each_index(&sizes.all(&step.epilogue.ranges)?, &mut |point| {
        let mut sum = Sum::new(step.acc, 0);
        let (row, column) = (point[point.len() - 2], point[point.len() - 1]);
        let (depth, group) = match groups.along {
            Along::Rows => (0..a.sizes[1], ranges.iter().position(|r| r.contains(&(row as usize)))),
            Along::Depth => {
                let own = &ranges[point[0] as usize];
                (own.start as i64..own.end as i64, Some(0))
            }
        };
        for (k, g) in group.iter().flat_map(|g| depth.clone().map(move |k| (k, *g as i64))) {
            let at_b =
                if groups.along == Along::Rows { b.place(&[g, k, column]) } else { b.place(&[k, column]) };
            sum.add(memory.at(a.buf, a.place(&[row, k]))?, memory.at(b.buf, at_b)?);
        }
        run_epilogue(program, &step.epilogue.insts, sizes, memory, point, sum.result())
    })
}

/// A cross-correlation in one to three spatial dimensions; transposed, the gradient of one to its input.
pub(crate) fn conv(
    program: &Program,
    step: &Conv,
    sizes: &Sizes,
    memory: &mut Memory,
) -> Result<(), PluginError> {
    let (input, weight) = (View::new(&step.input, sizes)?, View::new(&step.weight, sizes)?);
    let ranges = sizes.all(&step.epilogue.ranges)?;
    let groups = step.groups.max(1);
    let (in_channels, out_channels) = (input.sizes[1] / groups, (ranges[1] / groups).max(1));
    for_each_index(&ranges, &mut |point| {
        // The point is `[n, o, spatial…]`; both channels count within the group.
        let (group, out) = (point[1] / out_channels, point[1] % out_channels);
        let mut sum = Sum::new(step.acc, step.zero);
        for_each_index(&weight.sizes[2..], &mut |window| {
            let Some(spatial) = source(step, &point[2..], window, &input.sizes[2..]) else { return Ok(()) };
            for channel in 0..in_channels {
                let from = [&[point[0], group * in_channels + channel], &spatial[..]].concat();
                let [outer, inner] = match step.transposed {
                    false => [point[1], channel],
                    true => [group * in_channels + channel, out],
                };
                let factor = [&[outer, inner], window].concat();
                sum.add(
                    memory.at(input.buf, input.place(&from))?,
                    memory.at(weight.buf, weight.place(&factor))?,
                );
            }
            Ok(())
        })?;
        run_epilogue(program, &step.epilogue.insts, sizes, memory, point, sum.result())
    })
}

/// The element of the input for a point of the result and a point of the window; `None` for a position in the padding or,
/// if transposed, between two elements.
fn source(step: &Conv, point: &[i64], window: &[i64], sizes: &[i64]) -> Option<Vec<i64>> {
    let one = |d: usize| {
        let (stride, before, reach) = (step.stride[d], step.padding[d].0, window[d] * step.dilation[d]);
        let at = if step.transposed {
            let spread = point[d] + before - reach;
            if spread.rem_euclid(stride) != 0 {
                return None;
            }
            spread.div_euclid(stride)
        } else {
            point[d] * stride + reach - before
        };
        (0..sizes[d]).contains(&at).then_some(at)
    };
    (0..point.len()).map(one).collect()
}
