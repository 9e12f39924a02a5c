//! Depthwise convolution (one filter for each channel) on channels-last data: vectors of channels, several output columns at
//! a time in registers, an input vector loaded once for each kernel row where width and stride are common ones and the row is short.
//! The input may be made line by line as it is wanted.

#![expect(
    clippy::needless_range_loop,
    reason = "indexed loops over constant sizes unroll into registers; chains of iterators do not always"
)]

use std::ops::Range;

use super::conv::{ConvPlan, Strides5};
use super::driver::part;
use super::epilogue::{COut, Epilogue, EpilogueBlock};
use super::kernel::{Finish, finish_one};
use super::scratch;
#[cfg(target_arch = "x86_64")]
use super::simd::{Avx2, Avx512};
use super::simd::{Portable, Simd};
use super::{Isa, team};

/// The operand of the kernel: the input or its copy, channels contiguous.
pub(crate) struct Depthwise {
    /// Strides of the source.
    pub(crate) strides: Strides5,
}

/// What makes the lines of an input when they are wanted: `f(image, lines, start)` writes these lines of an image, whose line 0 would be at
/// `start`. Lines that two tasks want are made by both.
pub(crate) type MakeLines<'a> = dyn Fn(usize, Range<usize>, *mut f32) + Sync + 'a;

/// The input of a convolution.
#[derive(Clone, Copy)]
pub(crate) enum Input<'a> {
    /// In memory.
    There(*const f32),
    /// Made line by line.
    Made(&'a MakeLines<'a>),
}

/// Columns that the windows of a block of output columns reach at most: seven windows of nine columns, or of five with a stride of two.
const WIDEST: usize = 17;
/// What is read beside an image: of one vector of channels. A tap there is a product with zero, as in PyTorch's formula: one of infinity gives
/// `NaN`.
#[repr(align(64))]
struct Zeros([f32; 16]);
static ZEROS: Zeros = Zeros([0.0; 16]);
/// Bytes of lines that a task has at once: a part of the second-level cache.
const LINES: usize = 256 << 10;

/// Convolves a batch. Lines that are made are those of images of one plane.
///
/// # Safety
/// As [`ConvPlan::run`]; `weights` is `[taps, C]`.
pub(crate) unsafe fn run(
    plan: &ConvPlan,
    depthwise: &Depthwise,
    input: Input<'_>,
    weights: *const f32,
    out: COut,
    epilogue: &Epilogue<'_>,
) {
    let lines = plan.out[0] * plan.out[1];
    let work = plan.pixels() * plan.shape.in_channels * plan.shape.taps();
    // Below 64 Ki multiply-adds (some microseconds) a task is not worth scheduling.
    let threads = team::threads_for(work * plan.shape.batch);
    let (there, make) = match input {
        Input::There(ptr) => (ptr, None),
        Input::Made(make) => (std::ptr::null(), Some(make)),
    };
    let most = if threads == 1 { 1 } else { (4 * threads).div_ceil(plan.shape.batch) };
    let blocks = match make {
        None => team::even((work >> 16).clamp(1, most).min(lines)),
        Some(_) => plan.parts_of_made(threads),
    };
    let job = Job { plan, strides: depthwise.strides, input: there, weights, out, epilogue };
    team::par_for_work(plan.shape.batch * blocks, work * plan.shape.batch, &|task| {
        let (image, lines) = (task / blocks, part(lines, blocks, task % blocks));
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; tasks are disjoint lines of
        // the output.
        unsafe {
            match make {
                None => job.block(image, lines),
                Some(make) => job.blocks_of_made(image, lines, make),
            }
        };
    });
}

#[derive(Clone, Copy)]
struct Job<'a> {
    plan: &'a ConvPlan,
    strides: Strides5,
    input: *const f32,
    weights: *const f32,
    out: COut,
    epilogue: &'a Epilogue<'a>,
}

// SAFETY: pointers are used under the promise of `run`; tasks are disjoint.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// Some lines of one image, a strip after the other: the lines that the windows of a strip reach are made in memory of the task, and
    /// those that the next strip's windows reach too are kept there.
    unsafe fn blocks_of_made(&self, image: usize, lines: Range<usize>, make: &MakeLines<'_>) {
        let shape = &self.plan.shape;
        let line = self.strides.h.unsigned_abs();
        let most = (LINES / (line * size_of::<f32>())).max(2 * shape.window_lines(1));
        let strip = (1..).take_while(|n| shape.window_lines(*n) <= most / 2).last().unwrap_or(1);
        scratch::with(most * line, |buf| {
            // The lines that there are, and the line at the beginning of the memory.
            let (mut there, mut first) = (0..0, 0);
            for start in lines.clone().step_by(strip) {
                let own = start..(start + strip).min(lines.end);
                let wanted = shape.lines_of(own.clone());
                if wanted.start >= there.end {
                    (first, there) = (wanted.start, wanted.start..wanted.start);
                } else if wanted.end > first + most {
                    let kept = buf.wrapping_add((wanted.start - first) * line);
                    // SAFETY: the lines from the first that is wanted on are in the memory.
                    unsafe { std::ptr::copy(kept, buf, (there.end - wanted.start) * line) };
                    (first, there.start) = (wanted.start, wanted.start);
                }
                let origin = buf.wrapping_sub(first * line);
                if there.end < wanted.end {
                    make(image, there.end..wanted.end, origin);
                    there.end = wanted.end;
                }
                let input = origin.wrapping_offset(-(image as isize * self.strides.n)).cast_const();
                // SAFETY: the caller's promise; the lines that the windows reach are there.
                unsafe { Job { input, ..*self }.block(image, own) };
            }
        });
    }

    /// Some lines of one image; as many at once as the hook finds in the cache.
    unsafe fn block(&self, image: usize, lines: Range<usize>) {
        let bytes = self.plan.out[2] * self.plan.shape.in_channels * size_of::<f32>();
        let most = if self.epilogue.hook.is_some() { (LINES / bytes).max(1) } else { lines.len().max(1) };
        for start in lines.clone().step_by(most) {
            // SAFETY: the caller's promise.
            unsafe { self.strip(image, start..(start + most).min(lines.end)) };
        }
    }

    /// Some lines of one image, then the hook.
    unsafe fn strip(&self, image: usize, lines: Range<usize>) {
        let (ow, c) = (self.plan.out[2], self.plan.shape.in_channels);
        let first = lines.start * ow;
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the scratch holds the
        // lines.
        unsafe {
            match self.out {
                COut::Memory { ptr, row_stride } => {
                    let at = ptr
                        .wrapping_offset(image as isize * self.plan.output.n)
                        .wrapping_add(first * row_stride);
                    self.block_into(image, lines, at, row_stride);
                }
                COut::Scratch => {
                    scratch::with(lines.len() * ow * c, |at| self.block_into(image, lines, at, c))
                }
            }
        }
    }

    unsafe fn block_into(&self, image: usize, lines: Range<usize>, c: *mut f32, ldc: usize) {
        let ow = self.plan.out[2];
        let (row0, row1) = (lines.start * ow, lines.end * ow);
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            for line in lines.clone() {
                let at = c.add((line - lines.start) * ow * ldc);
                columns(self.plan.isa, &self.line(image, line, at, ldc));
            }
            if let Some(hook) = &self.epilogue.hook {
                let col1 = self.plan.shape.in_channels;
                hook.call(&EpilogueBlock {
                    batch: image,
                    row0,
                    row1,
                    col0: 0,
                    col1,
                    ptr: c,
                    row_stride: ldc,
                });
            }
        }
    }

    /// One output line: all columns, all channels.
    fn line(&self, image: usize, line: usize, c: *mut f32, ldc: usize) -> Line {
        let shape = &self.plan.shape;
        let [_, oh, ow] = self.plan.out;
        let inside = |i: usize, at: usize| {
            let start = (at * shape.stride[i]) as isize - shape.pad_lo[i] as isize;
            taps_inside(start, shape.dilation[i], shape.kernel[i], shape.input[i])
        };
        let (z, y) = (line / oh, line % oh);
        let (d, h) = (inside(0, z), inside(1, y));
        let s = &self.strides;
        let origin = [(z, 0), (y, 1), (0, 2)]
            .iter()
            .zip(s.spatial())
            .map(|((at, i), s)| ((at * shape.stride[*i]) as isize - shape.pad_lo[*i] as isize) * s)
            .sum::<isize>();
        let e = self.epilogue;
        let at = |s: Option<&[f32]>| s.map_or(std::ptr::null(), <[f32]>::as_ptr);
        Line {
            input: self.input.wrapping_offset(image as isize * s.n + origin),
            weights: self.weights,
            channels: shape.in_channels,
            kernel: shape.kernel,
            steps: std::array::from_fn(|i| shape.dilation[i] as isize * s.spatial()[i]),
            column: shape.stride[2] as isize * s.w,
            d,
            h,
            c,
            ldc,
            ow,
            width: shape.input[2],
            pad: shape.pad_lo[2],
            stride: shape.stride[2],
            dilation: shape.dilation[2],
            finish: Finish {
                scale: at(e.scale),
                shift: at(e.shift),
                residual: e.residual.map_or(std::ptr::null(), |r| {
                    r.ptr.wrapping_add(image * r.batch_stride + line * ow * r.row_stride)
                }),
                residual_stride: e.residual.map_or(0, |r| r.row_stride),
                clamp: e.activation.bounds(),
            },
        }
    }
}

/// The taps, of `kernel` ones from `start`, that are in `0..size`.
pub(crate) fn taps_inside(start: isize, dilation: usize, kernel: usize, size: usize) -> Range<usize> {
    let lo = (-start).max(0).unsigned_abs().div_ceil(dilation).min(kernel);
    let hi = (size as isize - start).max(0).unsigned_abs().div_ceil(dilation).min(kernel);
    lo..hi.max(lo)
}

/// One output line.
struct Line {
    /// The position of tap (0, 0, 0) of column 0, possibly outside.
    input: *const f32,
    weights: *const f32,
    channels: usize,
    kernel: [usize; 3],
    /// Elements between taps of each dimension.
    steps: [isize; 3],
    /// Elements between the windows of neighbouring columns.
    column: isize,
    d: Range<usize>,
    h: Range<usize>,
    c: *mut f32,
    ldc: usize,
    finish: Finish,
    /// Output and input columns, padding before, stride, dilation.
    ow: usize,
    width: usize,
    pad: usize,
    stride: usize,
    dilation: usize,
}

impl Line {
    /// The taps of output column `x` that are inside.
    #[inline(always)]
    fn taps(&self, x: usize) -> Range<usize> {
        taps_inside((x * self.stride) as isize - self.pad as isize, self.dilation, self.kernel[2], self.width)
    }
}

unsafe fn columns(isa: Isa, line: &Line) {
    // SAFETY: the plan has checked the instruction set.
    unsafe {
        match isa {
            Isa::Portable => run_isa::<Portable>(line),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => run_avx2(line),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => run_avx512(line),
            #[cfg(not(target_arch = "x86_64"))]
            _ => run_isa::<Portable>(line),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn run_avx2(line: &Line) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run_isa::<Avx2>(line) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn run_avx512(line: &Line) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe { run_isa::<Avx512>(line) }
}

#[inline(always)]
unsafe fn run_isa<S: Simd>(line: &Line) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        match (line.kernel[2], line.stride, line.dilation) {
            (3, 1, 1) => sliding::<S, 3, 1>(line),
            (3, 2, 1) => sliding::<S, 3, 2>(line),
            (5, 1, 1) => sliding::<S, 5, 1>(line),
            (5, 2, 1) => sliding::<S, 5, 2>(line),
            (7, 1, 1) => sliding::<S, 7, 1>(line),
            (9, 1, 1) => sliding::<S, 9, 1>(line),
            _ => any::<S>(line),
        }
    }
}

/// Any kernel width, stride and dilation.
#[inline(always)]
unsafe fn any<S: Simd>(line: &Line) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        for c in (0..line.channels).step_by(S::LANES) {
            let mask = S::mask((line.channels - c).min(S::LANES));
            let mut x = 0;
            while x < line.ow {
                let taps = line.taps(x);
                if x + 4 <= line.ow && line.taps(x + 3) == taps {
                    block::<S, 4>(line, x, c, mask, &taps);
                    x += 4;
                } else {
                    block::<S, 1>(line, x, c, mask, &taps);
                    x += 1;
                }
            }
        }
    }
}

/// Kernel width `K` and stride `T` known: in short kernel rows an input vector is loaded once and used by all columns whose window holds
/// it, in long ones once for each tap (`taps`).
#[inline(always)]
unsafe fn sliding<S: Simd, const K: usize, const T: usize>(line: &Line) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        let mut x = 0;
        // Multiples of 7 by a power of two are the most common widths: blocks of seven columns leave no remainder there.
        while x + 7 <= line.ow {
            all_channels::<S, K, T, 7>(line, x);
            x += 7;
        }
        if x + 4 <= line.ow {
            all_channels::<S, K, T, 4>(line, x);
            x += 4;
        }
        if x + 2 <= line.ow {
            all_channels::<S, K, T, 2>(line, x);
            x += 2;
        }
        if x < line.ow {
            all_channels::<S, K, T, 1>(line, x);
        }
    }
}

/// `B` columns from `x`, channels inside, so that memory is read in order.
#[inline(always)]
unsafe fn all_channels<S: Simd, const K: usize, const T: usize, const B: usize>(line: &Line, x: usize) {
    for c in (0..line.channels).step_by(S::LANES) {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe { window::<S, K, T, B>(line, x, c, S::mask((line.channels - c).min(S::LANES))) };
    }
}

/// `B` columns from `x`, of one vector of channels.
#[inline(always)]
unsafe fn window<S: Simd, const K: usize, const T: usize, const B: usize>(
    line: &Line,
    x: usize,
    c: usize,
    mask: S::M,
) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; input columns are checked,
    // lanes in the mask lie inside the channels.
    unsafe {
        let mut acc = [S::splat(0.0); B];
        let first = (x * T) as isize - line.pad as isize;
        let inside = first >= 0 && first as usize + (B - 1) * T + K <= line.width;
        for d in line.d.clone() {
            for h in line.h.clone() {
                let row = (d * line.kernel[1] + h) * K;
                let at = d as isize * line.steps[0] + h as isize * line.steps[1] + x as isize * line.column;
                let input = line.input.wrapping_offset(at + c as isize);
                let weights = line.weights.wrapping_add(row * line.channels + c);
                if K > 5 || K > 3 && T > 1 {
                    let columns: [*const f32; WIDEST] = std::array::from_fn(|j| {
                        let there = first >= -(j as isize) && ((first + j as isize) as usize) < line.width;
                        if there {
                            input.wrapping_offset(j as isize * line.steps[2])
                        } else {
                            ZEROS.0.as_ptr()
                        }
                    });
                    taps::<S, K, T, B>(line, &columns, weights, mask, &mut acc);
                    continue;
                }
                let mut w = [S::splat(0.0); K];
                for (k, w) in w.iter_mut().enumerate() {
                    *w = S::load_masked(weights.wrapping_add(k * line.channels), mask);
                }
                if inside {
                    slide::<S, K, T, B>(line, input, &w, mask, &mut acc, 0..usize::MAX);
                } else {
                    let lo = (-first).max(0).unsigned_abs();
                    let hi = (line.width as isize - first).max(0).unsigned_abs();
                    slide::<S, K, T, B>(line, input, &w, mask, &mut acc, lo..hi);
                }
            }
        }
        for (b, acc) in acc.into_iter().enumerate() {
            let v = finish_one::<S>(&line.finish, x + b, c, mask, acc);
            S::store_masked(line.c.add((x + b) * line.ldc + c), mask, v);
        }
    }
}

/// One kernel row over input columns that lie at these places: a load for each tap of each output column. Fewer loads, each for all the
/// output columns that read it, are code that compilers do not keep in registers for long rows.
#[inline(always)]
unsafe fn taps<S: Simd, const K: usize, const T: usize, const B: usize>(
    line: &Line,
    columns: &[*const f32; WIDEST],
    weights: *const f32,
    mask: S::M,
    acc: &mut [S::V; B],
) {
    for k in 0..K {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            let w = S::load_masked(weights.wrapping_add(k * line.channels), mask);
            for b in 0..B {
                acc[b] = S::fma(w, S::load_masked(columns[b * T + k], mask), acc[b]);
            }
        }
    }
}

/// One kernel row over the input columns in `valid` (counted from the first window's start).
#[inline(always)]
unsafe fn slide<S: Simd, const K: usize, const T: usize, const B: usize>(
    line: &Line,
    input: *const f32,
    w: &[S::V; K],
    mask: S::M,
    acc: &mut [S::V; B],
    valid: Range<usize>,
) {
    let at = |j: usize| input.wrapping_offset(j as isize * line.steps[2]);
    let inside = |j: usize| j >= valid.start && j < valid.end;
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        if T > 1 {
            // Windows overlap little: one load per tap.
            for k in 0..K {
                for b in 0..B {
                    if inside(b * T + k) {
                        acc[b] = S::fma(w[k], S::load_masked(at(b * T + k), mask), acc[b]);
                    }
                }
            }
            return;
        }
        for j in 0..B - 1 + K {
            if inside(j) {
                let v = S::load_masked(at(j), mask);
                for k in 0..K {
                    if j >= k && j - k < B {
                        acc[j - k] = S::fma(w[k], v, acc[j - k]);
                    }
                }
            }
        }
    }
}

/// `B` columns of one vector of channels.
#[inline(always)]
unsafe fn block<S: Simd, const B: usize>(line: &Line, x: usize, c: usize, mask: S::M, taps: &Range<usize>) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; taps in the ranges lie inside
    // the input, lanes in the mask inside the channels.
    unsafe {
        let mut acc = [S::splat(0.0); B];
        for d in line.d.clone() {
            for h in line.h.clone() {
                let row = (d * line.kernel[1] + h) * line.kernel[2];
                let at = d as isize * line.steps[0] + h as isize * line.steps[1] + x as isize * line.column;
                let input = line.input.wrapping_offset(at + c as isize);
                for w in taps.clone() {
                    let weight =
                        S::load_masked(line.weights.wrapping_add((row + w) * line.channels + c), mask);
                    let input = input.wrapping_offset(w as isize * line.steps[2]);
                    for (b, acc) in acc.iter_mut().enumerate() {
                        let v = S::load_masked(input.wrapping_offset(b as isize * line.column), mask);
                        *acc = S::fma(weight, v, *acc);
                    }
                }
            }
        }
        for (b, acc) in acc.into_iter().enumerate() {
            let v = finish_one::<S>(&line.finish, x + b, c, mask, acc);
            S::store_masked(line.c.add((x + b) * line.ldc + c), mask, v);
        }
    }
}
