//! Sizes and strides of a convolution, and the checks on them.

use std::fmt;
use std::ops::Range;

use crate::micro::MicroError;

/// Sizes of a convolution `[N, C, D, H, W] -> [N, O, OD, OH, OW]`. A 2-D convolution has D = 1, a 1-D one D = H = 1. Spatial
/// triples are in the order (D, H, W).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvShape {
    /// N
    pub batch: usize,
    /// C
    pub in_channels: usize,
    /// O
    pub out_channels: usize,
    /// Groups; divides both channel counts. Depthwise is `groups == in_channels == out_channels`.
    pub groups: usize,
    /// Input size.
    pub input: [usize; 3],
    /// Kernel size.
    pub kernel: [usize; 3],
    /// Stride, at least 1.
    pub stride: [usize; 3],
    /// Dilation, at least 1.
    pub dilation: [usize; 3],
    /// Zeros before the first element.
    pub pad_lo: [usize; 3],
    /// Zeros after the last element.
    pub pad_hi: [usize; 3],
}

impl fmt::Display for ConvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self;
        write!(
            f,
            "[{}, {}] {:?} -> {}, window {:?}",
            s.batch, s.in_channels, s.input, s.out_channels, s.kernel
        )?;
        write!(f, ", stride {:?}, dilation {:?}", s.stride, s.dilation)?;
        write!(f, ", padding {:?} {:?}, groups {}", s.pad_lo, s.pad_hi, s.groups)
    }
}

impl ConvShape {
    /// A 2-D convolution of stride 1 without padding, dilation or groups; set the fields for others.
    pub fn conv2d(
        batch: usize,
        in_channels: usize,
        input: [usize; 2],
        out_channels: usize,
        kernel: [usize; 2],
    ) -> ConvShape {
        ConvShape {
            batch,
            in_channels,
            out_channels,
            groups: 1,
            input: [1, input[0], input[1]],
            kernel: [1, kernel[0], kernel[1]],
            stride: [1; 3],
            dilation: [1; 3],
            pad_lo: [0; 3],
            pad_hi: [0; 3],
        }
    }

    /// Output size (OD, OH, OW).
    ///
    /// # Errors
    /// [`MicroError::Invalid`] for zero sizes, channels that groups do not divide, or a kernel larger than the padded input.
    pub fn output(&self) -> Result<[usize; 3], MicroError> {
        let nonzero = |what, value: usize| {
            if value > 0 {
                return Ok(());
            }
            Err(MicroError::Invalid { what, value: 0, why: "it must be at least 1" })
        };
        nonzero("convolution groups", self.groups)?;
        nonzero("convolution input channels", self.in_channels)?;
        nonzero("convolution output channels", self.out_channels)?;
        if !(self.in_channels.is_multiple_of(self.groups) && self.out_channels.is_multiple_of(self.groups)) {
            return Err(MicroError::Invalid {
                what: "convolution groups",
                value: self.groups as i64,
                why: "it must divide both channel counts",
            });
        }
        let mut out = [0; 3];
        for (i, size) in out.iter_mut().enumerate() {
            nonzero("convolution stride", self.stride[i])?;
            nonzero("convolution dilation", self.dilation[i])?;
            nonzero("convolution kernel", self.kernel[i])?;
            let span = self.dilation[i] * (self.kernel[i] - 1) + 1;
            let padded = self.padded()[i];
            if padded < span {
                return Err(MicroError::Invalid {
                    what: "convolution kernel span",
                    value: span as i64,
                    why: "it is larger than the padded input",
                });
            }
            *size = (padded - span) / self.stride[i] + 1;
        }
        Ok(out)
    }

    /// Input size with padding.
    pub(crate) fn padded(&self) -> [usize; 3] {
        std::array::from_fn(|i| self.input[i] + self.pad_lo[i] + self.pad_hi[i])
    }

    /// Whether there is any padding before the input or after it.
    pub(crate) fn is_padded(&self) -> bool {
        self.padded() != self.input
    }

    /// Lines that the windows of so many neighbouring output lines reach, those of padding too.
    pub(crate) fn window_lines(&self, out: usize) -> usize {
        (out.max(1) - 1) * self.stride[1] + (self.kernel[1] - 1) * self.dilation[1] + 1
    }

    /// The input lines that the windows of these output lines reach.
    pub(crate) fn lines_of(&self, out: Range<usize>) -> Range<usize> {
        let first = out.start * self.stride[1];
        let end = (first + self.window_lines(out.len())).saturating_sub(self.pad_lo[1]).min(self.input[1]);
        first.saturating_sub(self.pad_lo[1]).min(end)..end
    }

    /// Kernel positions.
    pub(crate) fn taps(&self) -> usize {
        self.kernel.iter().product()
    }
}

/// Elements between neighbours in each dimension of an `[N, C, D, H, W]` tensor, in any memory order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strides5 {
    /// Between images.
    pub n: isize,
    /// Between channels; 1 is the fast case.
    pub c: isize,
    /// Between planes.
    pub d: isize,
    /// Between image rows.
    pub h: isize,
    /// Between pixels.
    pub w: isize,
}

impl Strides5 {
    /// Dense `[N, D, H, W, C]`.
    pub fn channels_last(c: usize, [d, h, w]: [usize; 3]) -> Strides5 {
        let (c, d, h, w) = (c as isize, d as isize, h as isize, w as isize);
        Strides5 { n: c * d * h * w, c: 1, d: c * h * w, h: c * w, w: c }
    }

    /// Dense `[N, C, D, H, W]`.
    pub fn contiguous(c: usize, [d, h, w]: [usize; 3]) -> Strides5 {
        let (c, d, h, w) = (c as isize, d as isize, h as isize, w as isize);
        Strides5 { n: c * d * h * w, c: d * h * w, d: h * w, h: w, w: 1 }
    }

    /// The stride of a spatial dimension (0 = D, 1 = H, 2 = W).
    pub(crate) fn spatial(&self) -> [isize; 3] {
        [self.d, self.h, self.w]
    }
}
