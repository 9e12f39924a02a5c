//! Convolutions of narrow numbers as products: rows of A are the windows of output pixels, gathered block by block, with the
//! zero point where a window reaches beyond the image. Transposed convolutions are not here.

use std::ops::Range;

use super::dot::PIECE;
use super::pack::Form;
use super::product::{Job, Rows, run};
use super::windows::{self, Layout};
use super::{Narrow, NarrowWeights, depthwise};
use crate::micro::error::same;
use crate::micro::{ConvShape, Hook, Isa, MicroError, Strides5, scratch, team};

/// A convolution of a shape: everything that does not depend on its data.
pub struct NarrowConv {
    isa: Isa,
    pub(super) numbers: Narrow,
    pub(super) shape: ConvShape,
    /// Output size.
    pub(super) out: [usize; 3],
    /// In elements.
    input: Strides5,
    /// The zero point of the input.
    zero: i32,
}

impl NarrowConv {
    /// A convolution of an input with these strides (in elements) and this zero point, a number of the input's type.
    ///
    /// # Errors
    /// As for [`ConvShape::output`]; this processor does not have `isa`, or no instructions for these numbers.
    pub fn new(
        (isa, numbers): (Isa, Narrow),
        shape: ConvShape,
        input: Strides5,
        zero: i32,
    ) -> Result<NarrowConv, MicroError> {
        super::unit((numbers, isa), Form::Panels, usize::MAX)?;
        Ok(NarrowConv { isa, numbers, shape, out: shape.output()?, input, zero })
    }

    /// Sizes, window and padding.
    pub(crate) fn shape(&self) -> &ConvShape {
        &self.shape
    }

    /// Whether each channel has a window of its own, so that there is nothing to multiply by panels.
    fn is_depthwise(&self) -> bool {
        let s = &self.shape;
        let flat = s.kernel[0] == 1 && s.input[0] == 1 && s.padded()[0] == 1;
        flat && s.groups == s.in_channels && s.groups == s.out_channels
    }

    /// Output pixels of an image.
    fn pixels(&self) -> usize {
        self.out.iter().product()
    }

    /// Packs a weight whose elements `(o, c, d, h, w)` have these strides, in elements.
    ///
    /// # Safety
    /// The weight must be readable from any thread.
    ///
    /// # Errors
    /// None after [`NarrowConv::new`].
    pub unsafe fn pack(&self, ptr: *const u8, strides: [isize; 5]) -> Result<NarrowWeights, MicroError> {
        let tiles = super::unit((self.numbers, self.isa), Form::Panels, usize::MAX)?.piece() > 1;
        // SAFETY: the caller's promise.
        unsafe { self.pack_for(ptr, strides, tiles) }
    }

    /// The same, in the layout of windows that tiles read or in that of gathered ones.
    ///
    /// # Safety
    /// As [`NarrowConv::pack`].
    pub(crate) unsafe fn pack_for(
        &self,
        ptr: *const u8,
        strides: [isize; 5],
        windows: bool,
    ) -> Result<NarrowWeights, MicroError> {
        let s = &self.shape;
        let (size, from) = (self.numbers.size() as isize, ptr as usize);
        let (per_in, per_out) = (s.in_channels / s.groups, s.out_channels / s.groups);
        let [_, kh, kw] = s.kernel;
        let place = |o: usize, c: usize, tap: usize| {
            let at = [o, c, tap / (kh * kw), tap / kw % kh, tap % kw];
            let steps = at.iter().zip(&strides).map(|(i, s)| *i as isize * s).sum::<isize>();
            (from as *const u8).wrapping_offset(steps * size)
        };
        let depthwise = |_: usize, tap: usize, channel: usize| place(channel, 0, tap);
        let panels = |group: usize, k: usize, n: usize| place(group * per_out + n, k % per_in, k / per_in);
        // SAFETY: the caller's promise.
        unsafe {
            let kind = (self.numbers, self.isa);
            if self.is_depthwise() {
                let sizes = [1, s.taps(), s.out_channels];
                return NarrowWeights::of(kind, Form::Depthwise, sizes, &depthwise, self.zero);
            }
            if let Some(channels) = self.filled().filter(|_| windows && Layout::pays(s)) {
                let zero = [0u8; 2];
                let none = zero.as_ptr() as usize;
                let filled = |group: usize, k: usize, n: usize| match k % channels {
                    c if c < per_in => place(group * per_out + n, c, k / channels),
                    _ => none as *const u8,
                };
                let sizes = [s.groups, s.taps() * channels, per_out];
                return NarrowWeights::of(kind, Form::Windows, sizes, &filled, self.zero);
            }
            let sizes = [s.groups, s.taps() * per_in, per_out];
            NarrowWeights::of(kind, Form::Panels, sizes, &panels, self.zero)
        }
    }

    /// The channels of a pixel, filled up to four bytes, where tiles can read windows with more than there are.
    fn filled(&self) -> Option<usize> {
        let per_in = self.shape.in_channels / self.shape.groups;
        let layout = Layout::of(&self.shape, per_in * self.numbers.size())?;
        let channels = layout.data / self.numbers.size();
        (channels > per_in).then_some(channels)
    }

    /// Convolves a batch. Rows of the hook's blocks are the output pixels of one image, columns its channels, the batch is the
    /// image; sums are 32-bit integers, or floats for `bf16`.
    ///
    /// # Safety
    /// The input must be readable from any thread, and the hook keep its promises.
    ///
    /// # Errors
    /// The weights were packed for another shape.
    pub unsafe fn run(
        &self,
        input: *const u8,
        weights: &NarrowWeights,
        hook: Hook<'_>,
    ) -> Result<(), MicroError> {
        let s = &self.shape;
        let (n, channels) = match weights.form {
            Form::Depthwise => (s.out_channels, 1),
            Form::Panels => (s.out_channels / s.groups, s.in_channels / s.groups),
            Form::Windows => (s.out_channels / s.groups, self.filled().unwrap_or_default()),
        };
        same("packed weights, columns", n, weights.n())?;
        same("packed weights, rows", s.taps() * channels, weights.k())?;
        if s.batch == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise; the copy has the size of a dense input.
        unsafe {
            // Windows are copied from any layout.
            if self.input.c == 1 || s.in_channels == 1 || weights.form == Form::Windows {
                self.images(input, self.input, weights, hook);
                return Ok(());
            }
            let bytes = s.batch * s.in_channels * s.input.iter().product::<usize>() * self.numbers.size();
            scratch::with(bytes.div_ceil(4), |copy| {
                let dense = Strides5::channels_last(s.in_channels, s.input);
                self.channels_last(input, copy.cast(), dense);
                self.images(copy.cast(), dense, weights, hook);
            });
        }
        Ok(())
    }

    /// Copies the input to a dense one with channels last.
    unsafe fn channels_last(&self, from: *const u8, to: *mut u8, dense: Strides5) {
        let (s, size) = (&self.shape, self.numbers.size() as isize);
        let [depth, height, width] = s.input;
        let lines = s.batch * depth * height;
        let (from, to) = (from as usize, to as usize);
        team::par_for_work(lines, lines * width * s.in_channels, &|line| {
            let (image, z, y) = (line / (depth * height), line / height % depth, line % height);
            let at = |t: &Strides5| {
                (image as isize * t.n + z as isize * t.d + y as isize * t.h).wrapping_mul(size)
            };
            let from = (from as *const u8).wrapping_offset(at(&self.input));
            let to = (to as *mut u8).wrapping_offset(at(&dense));
            // SAFETY: the elements are inside of the input, their copies inside of the dense one.
            unsafe {
                match size {
                    1 => interleave::<u8>(from, to, [s.in_channels, width], &self.input),
                    _ => interleave::<u16>(from.cast(), to.cast(), [s.in_channels, width], &self.input),
                }
            }
        });
    }

    /// Convolves images with channels last.
    unsafe fn images(&self, input: *const u8, strides: Strides5, weights: &NarrowWeights, hook: Hook<'_>) {
        let s = &self.shape;
        let source = Source { conv: self, input, strides };
        // SAFETY: the caller's promise.
        unsafe {
            if weights.form == Form::Depthwise {
                return depthwise::run(&source, weights, hook);
            }
            let layout = (weights.unit.piece() == PIECE).then(|| Layout::of(s, source.pixel())).flatten();
            let fits = |l: &Layout| l.data == source.pixel() && Layout::pays(s);
            if let Some(layout) = layout.filter(|l| weights.form == Form::Windows || fits(l)) {
                return windows::run(&source, &layout, weights, hook);
            }
            let windows: Vec<Windows<'_>> = (0..s.batch * s.groups)
                .map(|i| Windows { source: &source, image: i / s.groups, group: i % s.groups })
                .collect();
            let mut jobs: Vec<(&dyn Rows, Job)> = Vec::with_capacity(windows.len());
            for w in &windows {
                let job = Job { group: w.group, batch: w.image, column: w.group * weights.n() };
                jobs.push((w as &dyn Rows, job));
            }
            run(&jobs, self.pixels(), weights, hook);
        }
    }
}

/// Copies a line with these strides to one with channels last.
///
/// # Safety
/// The line's elements are readable, and as many at `to` writable.
unsafe fn interleave<T: Copy + Default>(
    from: *const T,
    to: *mut T,
    [channels, width]: [usize; 2],
    strides: &Strides5,
) {
    // SAFETY: the caller's promise.
    if channels == 3 && strides.w == 1 && unsafe { joined::<T, 3>(from, to.cast(), width, strides.c) } {
        return;
    }
    for c in 0..channels {
        let from = from.wrapping_offset(c as isize * strides.c);
        for x in 0..width {
            let from = from.wrapping_offset((x as isize).wrapping_mul(strides.w));
            let to = to.wrapping_add(x.wrapping_mul(channels).wrapping_add(c));
            // SAFETY: the caller's promise.
            unsafe { *to = *from };
        }
    }
}

/// Three lines that are `apart` elements from one another as pixels of `N` channels, with zeros in the others; `false`, and nothing done, where the
/// processor has no wide shuffles.
///
/// # Safety
/// `width` elements of each line are readable, and as many pixels writable.
pub(super) unsafe fn joined<T: Copy + Default, const N: usize>(
    from: *const T,
    to: *mut [T; N],
    width: usize,
    apart: isize,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise, and the processor has the instructions.
        unsafe { joined_wide(from, to, width, apart) };
        return true;
    }
    let _ = (from, to, width, apart);
    false
}

/// # Safety
/// As [`joined`], and AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn joined_wide<T: Copy + Default, const N: usize>(
    from: *const T,
    to: *mut [T; N],
    width: usize,
    apart: isize,
) {
    // SAFETY: the caller's promise.
    let (lines, to) = unsafe {
        let line = |c: isize| std::slice::from_raw_parts(from.offset(c * apart), width);
        ([line(0), line(1), line(2)], std::slice::from_raw_parts_mut(to, width))
    };
    let each = to.iter_mut().zip(lines[0]).zip(lines[1]).zip(lines[2]);
    for (((to, a), b), c) in each {
        *to = std::array::from_fn(|n| match n {
            0 => *a,
            1 => *b,
            2 => *c,
            _ => T::default(),
        });
    }
}

/// An input with channels last.
pub(super) struct Source<'a> {
    pub(super) conv: &'a NarrowConv,
    pub(super) input: *const u8,
    /// In elements.
    pub(super) strides: Strides5,
}

// SAFETY: the pointer is used under the promises of `NarrowConv::run`: good from any thread.
unsafe impl Sync for Source<'_> {}

impl Source<'_> {
    /// The byte that stands for the zero point in the input (two of which are a zero of `bf16`).
    pub(super) fn fill(&self) -> u8 {
        self.conv.zero as u8
    }

    /// Bytes of the channels of one group of a pixel.
    pub(super) fn pixel(&self) -> usize {
        let s = &self.conv.shape;
        s.in_channels / s.groups * self.conv.numbers.size()
    }

    /// Bytes from pixel to pixel of a line.
    pub(super) fn step(&self) -> isize {
        self.strides.w * self.conv.numbers.size() as isize
    }

    /// The place of a line of an image, in bytes from its first pixel; none outside of the image.
    pub(super) fn line(&self, image: usize, z: isize, y: isize) -> Option<*const u8> {
        let [depth, height, _] = self.conv.shape.input;
        let inside = (0..depth as isize).contains(&z) && (0..height as isize).contains(&y);
        let t = &self.strides;
        let at = image as isize * t.n + z * t.d + y * t.h;
        inside.then(|| self.input.wrapping_offset(at * self.conv.numbers.size() as isize))
    }
}

/// The windows of one image and group as rows of a matrix.
struct Windows<'a> {
    source: &'a Source<'a>,
    image: usize,
    group: usize,
}

impl Rows for Windows<'_> {
    fn in_place(&self) -> Option<(*const u8, isize)> {
        let (conv, t) = (self.source.conv, &self.source.strides);
        let (s, size) = (&conv.shape, conv.numbers.size());
        let per = s.in_channels / s.groups;
        let [_, height, width] = s.input;
        let chained = (height == 1 || t.h == t.w * width as isize)
            && (s.input[0] == 1 || t.d == t.w * (width * height) as isize);
        let pixel = s.taps() == 1 && s.stride == [1; 3] && !s.is_padded();
        if !pixel || !chained || !(per * size).is_multiple_of(4) || conv.numbers == Narrow::I8 {
            return None;
        }
        let first = self.source.line(self.image, 0, 0)?;
        Some((first.wrapping_add(self.group * per * size), t.w * size as isize))
    }

    unsafe fn copy(&self, rows: Range<usize>, to: *mut u8, ld: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if self.source.conv.isa == Isa::Avx512 && is_x86_feature_detected!("avx512bw") {
                return self.copy_wide(rows, to, ld);
            }
            self.gather(rows, to, ld, |from, to, len| std::ptr::copy_nonoverlapping(from, to, len));
        }
    }
}

impl Windows<'_> {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn copy_wide(&self, rows: Range<usize>, to: *mut u8, ld: usize) {
        // SAFETY: the caller's promise, and the processor has the instructions.
        unsafe { self.gather(rows, to, ld, |from, to, len| super::x86::copy(from, to, len)) };
    }

    /// Copies windows line by line of the kernel; `copy` copies bytes.
    #[inline(always)]
    unsafe fn gather(
        &self,
        rows: Range<usize>,
        to: *mut u8,
        ld: usize,
        copy: impl Fn(*const u8, *mut u8, usize),
    ) {
        let conv = self.source.conv;
        let s = &conv.shape;
        let [_, oh, ow] = conv.out;
        let [kd, kh, kw] = s.kernel;
        let pixel = self.source.pixel();
        let fill = self.source.fill();
        let width = kw * pixel;
        // Of windows inside of the image whose lines are whole: where the lines are.
        let side_by_side = s.dilation[2] == 1 && self.source.step() == pixel as isize;
        let t = &self.source.strides;
        let size = conv.numbers.size() as isize;
        let place = |z: usize, y: usize| {
            ((z * s.dilation[0]) as isize * t.d + (y * s.dilation[1]) as isize * t.h) * size
        };
        let lines: Vec<isize> = (0..kd * kh).map(|line| place(line / kh, line % kh)).collect();
        let reach: [isize; 3] =
            std::array::from_fn(|d| s.input[d] as isize - ((s.kernel[d] - 1) * s.dilation[d]) as isize);
        let mut at = [rows.start / (oh * ow), rows.start / ow % oh, rows.start % ow];
        for i in 0..rows.len() {
            let first: [isize; 3] =
                std::array::from_fn(|d| (at[d] * s.stride[d]) as isize - s.pad_lo[d] as isize);
            let mut to = to.wrapping_add(i * ld);
            let begin = to;
            // The next pixel, without divisions.
            at[2] += 1;
            if at[2] == ow {
                at = if at[1] + 1 == oh { [at[0] + 1, 0, 0] } else { [at[0], at[1] + 1, 0] };
            }
            let inside = side_by_side && (0..3).all(|d| (0..reach[d]).contains(&first[d]));
            if let Some(line) = self.source.line(self.image, first[0], first[1]).filter(|_| inside) {
                let window = line.wrapping_offset(first[2] * pixel as isize).wrapping_add(self.group * pixel);
                for offset in &lines {
                    copy(window.wrapping_offset(*offset), to, width);
                    to = to.wrapping_add(width);
                }
            }
            for z in 0..if inside { 0 } else { kd } {
                for y in 0..kh {
                    let (z, y) = ((z * s.dilation[0]) as isize, (y * s.dilation[1]) as isize);
                    // SAFETY: the line is inside of the image, and the row has room for the window.
                    unsafe {
                        match self.source.line(self.image, first[0] + z, first[1] + y) {
                            Some(line) => self.window_line(line, first[2], to, &copy),
                            None => to.write_bytes(fill, width),
                        }
                    }
                    to = to.wrapping_add(width);
                }
            }
            if conv.numbers == Narrow::I8 {
                // SAFETY: these bytes were just written.
                let window = unsafe { std::slice::from_raw_parts_mut(begin, kd * kh * kw * pixel) };
                window.iter_mut().for_each(|b| *b ^= Narrow::I8.bias());
            }
        }
    }

    /// One line of a window that begins at column `x` of a line of the image.
    #[inline(always)]
    unsafe fn window_line(
        &self,
        line: *const u8,
        x: isize,
        to: *mut u8,
        copy: &impl Fn(*const u8, *mut u8, usize),
    ) {
        let conv = self.source.conv;
        let (s, per) = (&conv.shape, self.source.pixel());
        let (kw, step, width) = (s.kernel[2], s.dilation[2], s.input[2] as isize);
        let stride = self.source.step();
        let line = line.wrapping_add(self.group * per);
        let fill = self.source.fill();
        if step == 1 && stride == per as isize {
            // Taps lie side by side: those before the image, inside of it, and after it.
            let low = (-x).clamp(0, kw as isize) as usize;
            let high = (width - x).clamp(low as isize, kw as isize) as usize;
            // SAFETY: taps `low..high` are inside of the line; the row has room for all.
            unsafe {
                if low > 0 {
                    to.write_bytes(fill, low * per);
                }
                copy(
                    line.wrapping_offset((x + low as isize) * stride),
                    to.add(low * per),
                    (high - low) * per,
                );
                if high < kw {
                    to.add(high * per).write_bytes(fill, (kw - high) * per);
                }
            }
            return;
        }
        for tap in 0..kw {
            let x = x + (tap * step) as isize;
            let to = to.wrapping_add(tap * per);
            // SAFETY: the tap is inside of the line where it is read; the row has room for all.
            unsafe {
                if (0..width).contains(&x) {
                    copy(line.wrapping_offset(x * stride), to, per);
                } else {
                    to.write_bytes(fill, per);
                }
            }
        }
    }
}
