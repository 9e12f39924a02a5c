//! The copy of an input into scratch where the kernels cannot read it directly: another channel order, or materialised
//! padding, so that no row of a kernel window leaves the image.

use super::{ConvShape, Strides5};
use crate::micro::team;
use crate::micro::transpose::{self, Source};

/// Layout of the copy.
pub(crate) struct Copy {
    /// Strides of the copy.
    pub(crate) strides: Strides5,
    /// Size of the copy, padded or not.
    size: [usize; 3],
    /// Zeros before the input in each dimension.
    pad: [usize; 3],
    real_padding: bool,
    /// Values in all.
    pub(crate) len: usize,
}

impl Copy {
    /// A copy with channels last, or channels first; with materialised padding if `padded`.
    pub(crate) fn new(shape: &ConvShape, channels_last: bool, padded: bool) -> Copy {
        let size = if padded { shape.padded() } else { shape.input };
        let pad = if padded { shape.pad_lo } else { [0; 3] };
        let c = shape.in_channels;
        let strides =
            if channels_last { Strides5::channels_last(c, size) } else { Strides5::contiguous(c, size) };
        Copy {
            strides,
            size,
            pad,
            real_padding: padded,
            len: shape.batch * c * size.iter().product::<usize>(),
        }
    }

    /// Whether the copy contains the padding.
    pub(crate) fn padded(&self) -> bool {
        self.real_padding
    }

    /// Copies the input, zeros around it.
    ///
    /// # Safety
    /// `input` covers the shape at `from`'s strides; `buf` is `self.len` values long.
    pub(crate) unsafe fn fill(&self, shape: &ConvShape, from: &Strides5, input: *const f32, buf: *mut f32) {
        let lines = self.size[0] * self.size[1];
        let job = Job { copy: self, shape, from, input, buf };
        let total = shape.batch * lines;
        // A line of a small image is too little work for a task.
        let step = (16_384 / (shape.in_channels * self.size[2]).max(1)).clamp(1, total.max(1));
        team::par_for_work(total.div_ceil(step), self.len, &|task| {
            for i in task * step..((task + 1) * step).min(total) {
                // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; lines of the copy
                // are disjoint.
                unsafe { job.line(i / lines, i % lines / self.size[1], i % self.size[1]) };
            }
        });
    }
}

struct Job<'a> {
    copy: &'a Copy,
    shape: &'a ConvShape,
    from: &'a Strides5,
    input: *const f32,
    buf: *mut f32,
}

// SAFETY: pointers are used under the promise of `Copy::fill`; lines are disjoint.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// One image row `(d, h)` of the copy, all channels.
    unsafe fn line(&self, image: usize, d: usize, h: usize) {
        let (copy, from, s) = (self.copy, self.from, &self.copy.strides);
        let offset = image as isize * s.n + d as isize * s.d + h as isize * s.h;
        let to = self.buf.wrapping_offset(offset);
        let (width, channels) = (copy.size[2], self.shape.in_channels);
        let inside = |i: usize, at: usize| at.checked_sub(copy.pad[i]).filter(|at| *at < self.shape.input[i]);
        let source = inside(0, d).zip(inside(1, h)).map(|(d, h)| {
            self.input.wrapping_offset(image as isize * from.n + d as isize * from.d + h as isize * from.h)
        });
        let (lo, w) = (copy.pad[2], self.shape.input[2]);
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the line lies inside the
        // copy, the source inside the input.
        unsafe {
            if s.c == 1 {
                let Some(ptr) = source else { return to.write_bytes(0, width * channels) };
                to.write_bytes(0, lo * channels);
                to.add((lo + w) * channels).write_bytes(0, (width - lo - w) * channels);
                let src = Source { ptr, row: from.w, col: from.c };
                return transpose::copy(src, w, channels, to.add(lo * channels), channels);
            }
            for c in 0..channels {
                let to = to.wrapping_offset(c as isize * s.c);
                let Some(ptr) = source else {
                    to.write_bytes(0, width);
                    continue;
                };
                to.write_bytes(0, lo);
                to.add(lo + w).write_bytes(0, width - lo - w);
                let src = Source { ptr, row: from.c, col: from.w };
                transpose::copy(src.at(c, 0), 1, w, to.add(lo), w);
            }
        }
    }
}
