//! A convolution in the form of libraries: which of their three operations computes it, and the layouts of its tensors.
//!
//! This module is pure: it calls no library and knows no symbols.

/// Sizes and strides of a tensor: batch (or output channels), channels, spatial dimensions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Tensor {
    pub(super) sizes: Vec<i64>,
    pub(super) strides: Vec<i64>,
}

/// The order of dimensions in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Batch, spatial dimensions, channels: tensor cores read it without a transposition.
    ChannelsLast,
    /// Batch, channels, spatial dimensions.
    ChannelsFirst,
}

/// The library's operation that computes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// A plain convolution.
    Forward,
    /// A transposed convolution: the gradient to the input of a plain one.
    Data,
    /// A convolution over the batch, as the gradient to the weight is written: batch and channels of its operands (and of
    /// its result) are exchanged.
    Filter,
}

/// A convolution of a program with evaluated sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Conv {
    pub(super) input: Tensor,
    pub(super) weight: Tensor,
    pub(super) output: Vec<i64>,
    pub(super) stride: Vec<i64>,
    pub(super) padding: Vec<(i64, i64)>,
    pub(super) dilation: Vec<i64>,
    pub(super) groups: i64,
    pub(super) transposed: bool,
}

/// The convolution `y = x * w` in the library's form: one of the tensors is unknown and the others are given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// The operation, and thereby the unknown tensor.
    pub role: Role,
    /// The input of the plain convolution. All tensors are dense in `format`.
    pub x: Vec<i64>,
    /// Its weight.
    pub w: Vec<i64>,
    /// Its output.
    pub y: Vec<i64>,
    /// The order of all tensors in memory.
    pub format: Format,
    /// Zeros before and after each spatial dimension; symmetric wherever that gives the same result.
    pub padding: [Vec<i64>; 2],
    /// Step of the window.
    pub stride: Vec<i64>,
    /// Distance of the window's points.
    pub dilation: Vec<i64>,
}

impl Format {
    /// The dimensions of a tensor of this rank, outermost first.
    pub(super) fn order(self, rank: usize) -> Vec<usize> {
        match self {
            Format::ChannelsFirst => (0..rank).collect(),
            Format::ChannelsLast => [0].into_iter().chain(2..rank).chain([1]).collect(),
        }
    }

    /// Strides of a dense tensor.
    pub fn strides(self, sizes: &[i64]) -> Vec<i64> {
        let mut strides = vec![1; sizes.len()];
        let mut step = 1;
        for d in self.order(sizes.len()).into_iter().rev() {
            strides[d] = step;
            step *= sizes[d].max(1);
        }
        strides
    }

    /// Whether a tensor is dense in this format; dimensions of size 1 have any stride.
    pub(super) fn holds(self, tensor: &Tensor) -> bool {
        let dense = self.strides(&tensor.sizes);
        (0..tensor.sizes.len()).all(|d| tensor.sizes[d] <= 1 || tensor.strides[d] == dense[d])
    }
}

/// Maps the dimensions of the step's operands and result to those of the library's tensors.
pub(super) fn dims(role: Role, rank: usize) -> Vec<usize> {
    match role {
        Role::Filter => [1, 0].into_iter().chain(2..rank).collect(),
        _ => (0..rank).collect(),
    }
}

/// A tensor with its dimensions permuted.
pub(super) fn pick(tensor: &Tensor, dims: &[usize]) -> Tensor {
    let by = |v: &[i64]| dims.iter().map(|&d| v[d]).collect();
    Tensor { sizes: by(&tensor.sizes), strides: by(&tensor.strides) }
}

impl Conv {
    /// The library's operation that computes this fastest.
    pub(super) fn role(&self) -> Role {
        if self.transposed {
            return Role::Data;
        }
        let volume = |sizes: &[i64]| sizes[2..].iter().product::<i64>();
        // The strides of a batch of one are meaningless: a window larger than the result indicates a gradient.
        let wide = volume(&self.weight.sizes) > volume(&self.output);
        let swapped =
            [&self.input, &self.weight].into_iter().all(|t| match (t.sizes[0] > 1, t.sizes[1] > 1) {
                (true, true) => t.strides[0] < t.strides[1],
                _ => wide,
            });
        if self.groups == 1 && swapped { Role::Filter } else { Role::Forward }
    }

    /// The library's problem; `None` where it does not support it.
    pub(super) fn problem(&self, role: Role, format: Format) -> Option<Problem> {
        let rank = self.output.len();
        let dims = dims(role, rank);
        let by = |v: &[i64]| -> Vec<i64> { dims.iter().map(|&d| v[d]).collect() };
        let (input, weight, output) = (by(&self.input.sizes), by(&self.weight.sizes), by(&self.output));
        // In a convolution over the batch, stride and dilation are exchanged.
        let (x, w, y, stride, dilation) = match role {
            Role::Forward => (input, weight, output, &self.stride, &self.dilation),
            Role::Data => (output, weight, input, &self.stride, &self.dilation),
            Role::Filter => (input, output, weight, &self.dilation, &self.stride),
        };
        let mut padding = [Vec::new(), Vec::new()];
        for (d, &(before, after)) in self.padding.iter().enumerate() {
            let reach = (w[d + 2] - 1) * dilation[d] + 1;
            let ends = |after: &i64| {
                let room = x[d + 2] + before + after - reach;
                *after >= 0 && room >= 0 && room / stride[d] + 1 == y[d + 2]
            };
            // The padding at the end only determines where the result ends: where symmetric padding gives the same size it
            // is used, since more of the library's kernels support it.
            let after = [before, after].into_iter().find(ends).filter(|_| before >= 0)?;
            padding[0].push(before);
            padding[1].push(after);
        }
        let groups = x[1] / w[1].max(1);
        let whole = w[1] * groups == x[1] && groups > 0 && w[0] % groups == 0;
        if !whole || groups != self.groups || x[0] != y[0] || y[1] != w[0] {
            return None;
        }
        let mut p =
            Problem { role, x, w, y, format, padding, stride: stride.clone(), dilation: dilation.clone() };
        if rank == 3 {
            p.widen();
        }
        (4..=5).contains(&p.x.len()).then_some(p)
    }
}

impl Problem {
    /// Adds a leading spatial dimension of size 1 to a single one.
    fn widen(&mut self) {
        for sizes in [&mut self.x, &mut self.w, &mut self.y] {
            sizes.insert(2, 1);
        }
        self.padding.iter_mut().for_each(|p| p.insert(0, 0));
        self.stride.insert(0, 1);
        self.dilation.insert(0, 1);
    }

    /// The sizes of the unknown tensor.
    pub fn result(&self) -> &[i64] {
        match self.role {
            Role::Forward => &self.y,
            Role::Data => &self.x,
            Role::Filter => &self.w,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(sizes: &[i64], format: Format) -> Tensor {
        Tensor { sizes: sizes.to_vec(), strides: format.strides(sizes) }
    }

    fn plain(format: Format) -> Conv {
        Conv {
            input: tensor(&[4, 8, 10, 12], format),
            weight: tensor(&[16, 8, 3, 3], format),
            output: vec![4, 16, 5, 6],
            stride: vec![2, 2],
            padding: vec![(1, 1), (1, 1)],
            dilation: vec![1, 1],
            groups: 1,
            transposed: false,
        }
    }

    /// The gradient to the weight of `plain`, as the gradient rule of convolution writes it.
    fn gradient(format: Format) -> Conv {
        let swap = |t: Tensor| pick(&t, &[1, 0, 2, 3]);
        Conv {
            input: swap(tensor(&[4, 8, 10, 12], format)),
            weight: swap(tensor(&[4, 16, 5, 6], format)),
            // One more row and column of the window than the weight has: no window starts there.
            output: vec![8, 16, 4, 4],
            stride: vec![1, 1],
            dilation: vec![2, 2],
            ..plain(format)
        }
    }

    #[test]
    fn formats() {
        assert_eq!(Format::ChannelsLast.strides(&[2, 3, 4, 5]), [60, 1, 15, 3]);
        assert_eq!(Format::ChannelsFirst.strides(&[2, 3, 4, 5]), [60, 20, 5, 1]);
        let one = Tensor { sizes: vec![2, 1, 4, 5], strides: vec![20, 7, 5, 1] };
        assert!(Format::ChannelsLast.holds(&one) && Format::ChannelsFirst.holds(&one));
        assert!(!Format::ChannelsFirst.holds(&tensor(&[2, 3, 4, 5], Format::ChannelsLast)));
    }

    #[test]
    fn a_plain_convolution() {
        for format in [Format::ChannelsLast, Format::ChannelsFirst] {
            let c = plain(format);
            assert_eq!(c.role(), Role::Forward);
            let p = c.problem(Role::Forward, format).unwrap();
            assert_eq!(
                (&p.x[..], &p.w[..], &p.y[..]),
                (&[4, 8, 10, 12][..], &[16, 8, 3, 3][..], &[4, 16, 5, 6][..])
            );
        }
    }

    #[test]
    fn the_gradient_to_a_weight() {
        for format in [Format::ChannelsLast, Format::ChannelsFirst] {
            let c = gradient(format);
            assert_eq!(c.role(), Role::Filter);
            let p = c.problem(Role::Filter, format).unwrap();
            assert_eq!(
                (&p.x[..], &p.w[..], &p.y[..]),
                (&[4, 8, 10, 12][..], &[16, 8, 4, 4][..], &[4, 16, 5, 6][..])
            );
            assert_eq!((&p.stride[..], &p.dilation[..]), (&[2, 2][..], &[1, 1][..]));
            assert_eq!(p.result(), [16, 8, 4, 4]);
        }
    }

    #[test]
    fn a_transposed_convolution_is_a_gradient_to_the_input() {
        let c = Conv {
            input: tensor(&[4, 16, 5, 6], Format::ChannelsLast),
            output: vec![4, 8, 10, 12],
            // One more element at the end, which `output_padding` adds.
            padding: vec![(1, 0), (1, 0)],
            transposed: true,
            ..plain(Format::ChannelsLast)
        };
        assert_eq!(c.role(), Role::Data);
        let p = c.problem(Role::Data, Format::ChannelsLast).unwrap();
        assert_eq!((&p.x[..], &p.y[..]), (&[4, 8, 10, 12][..], &[4, 16, 5, 6][..]));
        assert_eq!(p.padding, [[1, 1], [1, 1]]);
    }

    #[test]
    fn groups_and_one_dimension() {
        let c = Conv {
            input: tensor(&[2, 8, 20], Format::ChannelsFirst),
            weight: tensor(&[8, 1, 5], Format::ChannelsFirst),
            output: vec![2, 8, 20],
            stride: vec![1],
            padding: vec![(2, 2)],
            dilation: vec![1],
            groups: 8,
            transposed: false,
        };
        let p = c.problem(c.role(), Format::ChannelsFirst).unwrap();
        assert_eq!((p.role, &p.x[..], &p.padding[1][..]), (Role::Forward, &[2, 8, 1, 20][..], &[0, 2][..]));
    }

    #[test]
    fn padding_of_one_side() {
        // Two more zeros at the end are needed, which fewer of the library's kernels support.
        let c = Conv { padding: vec![(0, 3), (1, 1)], ..plain(Format::ChannelsLast) };
        let p = Conv { output: vec![4, 16, 6, 6], ..c.clone() }
            .problem(Role::Forward, Format::ChannelsLast)
            .unwrap();
        assert_eq!(p.padding, [[0, 1], [3, 1]]);
        // Padding at the end of less than a stride has no effect.
        let odd = Conv { padding: vec![(1, 0), (1, 0)], ..plain(Format::ChannelsLast) };
        let p = odd.problem(Role::Forward, Format::ChannelsLast).unwrap();
        assert_eq!(p.padding, [[1, 1], [1, 1]]);
        // No padding gives this size.
        assert!(
            Conv { output: vec![4, 16, 9, 6], ..c }.problem(Role::Forward, Format::ChannelsLast).is_none()
        );
    }
}
