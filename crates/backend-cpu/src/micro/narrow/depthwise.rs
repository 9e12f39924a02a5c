//! Depthwise convolutions of narrow numbers: lines of the image are copied with their padding, and each window is a sum over
//! its taps of sixteen channels at a time. Sums are 32-bit integers or, of `bf16`, floats.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::columns::{self, Windows};
use super::conv::Source;
use super::dot::PANEL;
use super::{Narrow, NarrowWeights, Unit};
use crate::micro::driver::part;
use crate::micro::{EpilogueBlock, Hook, scratch, team};

/// Pixels whose sums are in registers at once.
pub(super) const PIXELS: usize = 8;

/// Convolves images.
///
/// # Safety
/// As `NarrowConv::run`.
pub(super) unsafe fn run(source: &Source<'_>, weights: &NarrowWeights, hook: Hook<'_>) {
    let conv = source.conv;
    let (lines, channels) = (conv.out[1], conv.shape.out_channels);
    let work = conv.shape.batch * lines * conv.out[2] * channels * conv.shape.taps();
    let threads = team::threads_for(work / 4);
    // Sums of a block stay in the second-level cache.
    let cached = (lines * conv.out[2] * channels * 4).div_ceil(192 * 1024);
    let wanted = if threads == 1 { 1 } else { (4 * threads).div_ceil(conv.shape.batch).min(work >> 17) };
    let blocks = team::even(cached.max(wanted).clamp(1, lines));
    team::par_for_work(conv.shape.batch * blocks, work / 4, &|task| {
        let block =
            Block { source, weights, image: task / blocks, lines: part(lines, blocks, task % blocks) };
        // SAFETY: the caller's promise; blocks are disjoint.
        unsafe { block.run(hook) };
    });
}

/// Output lines of one image.
struct Block<'a> {
    source: &'a Source<'a>,
    weights: &'a NarrowWeights,
    image: usize,
    lines: Range<usize>,
}

/// What the sums of a line are made of.
pub(super) struct Line {
    /// The first byte of the line's windows, sixteen numbers apart from panel to panel.
    pub(super) from: *const u8,
    /// Bytes from pixel to pixel of the output.
    pub(super) step: usize,
    /// For each tap its distance from the window's first byte.
    pub(super) taps: *const usize,
    /// How many.
    pub(super) count: usize,
    /// Taps of sixteen 32-bit weights each.
    pub(super) weights: *const u8,
    /// What the sums begin with; those of floats are 0.
    pub(super) first: *const u32,
    /// Where the sums of the first pixel go.
    pub(super) to: *mut u32,
    /// Sums from pixel to pixel.
    pub(super) ld: usize,
    /// Pixels, at most [`PIXELS`].
    pub(super) pixels: usize,
}

/// Lines of the image with their padding, and the sums of their windows.
struct Lines {
    first: *const u8,
    /// Bytes of a pixel, and pixels of a line.
    pixel: usize,
    width: usize,
    sums: *mut u32,
}

impl Block<'_> {
    /// Channels rounded up to whole panels.
    fn padded(&self) -> usize {
        self.source.conv.shape.out_channels.next_multiple_of(PANEL)
    }

    unsafe fn run(&self, hook: Hook<'_>) {
        let conv = self.source.conv;
        let (s, [_, _, ow]) = (&conv.shape, conv.out);
        let (padded, width) = (self.padded(), s.padded()[2]);
        let height = (self.lines.len() - 1) * s.stride[1] + (s.kernel[1] - 1) * s.dilation[1] + 1;
        let pixel = padded * conv.numbers.size();
        let taps: Vec<usize> = (0..s.taps())
            .map(|t| ((t / s.kernel[2] * s.dilation[1]) * width + t % s.kernel[2] * s.dilation[2]) * pixel)
            .collect();
        scratch::with((height * width * pixel).div_ceil(4), |copy| {
            scratch::with(self.lines.len() * ow * padded, |sums| {
                // SAFETY: scratch has room for the padded lines and for the sums.
                unsafe {
                    self.copy(copy.cast(), height, width);
                    let lines = Lines { first: copy.cast(), pixel, width, sums: sums.cast() };
                    match self.weights.unit {
                        #[cfg(target_arch = "x86_64")]
                        Unit::Vnni => self.columns(&lines),
                        _ => self.taps(&lines, &taps),
                    }
                    hook.call(&EpilogueBlock {
                        batch: self.image,
                        row0: self.lines.start * ow,
                        row1: self.lines.end * ow,
                        col0: 0,
                        col1: s.out_channels,
                        ptr: sums,
                        row_stride: padded,
                    });
                }
            });
        });
    }

    /// The sums of all lines, tap by tap.
    ///
    /// # Safety
    /// As [`Block::run`].
    unsafe fn taps(&self, lines: &Lines, taps: &[usize]) {
        let conv = self.source.conv;
        let sums = conv.out[2] * self.padded();
        for line in 0..self.lines.len() {
            let from = lines.first.wrapping_add(line * conv.shape.stride[1] * lines.width * lines.pixel);
            // SAFETY: the caller's promise.
            unsafe { self.line(from, taps, lines.sums.wrapping_add(line * sums)) };
        }
    }

    /// The sums of all lines of integers, by columns of the windows: some panels at a time, so that their weights stay in the first-level cache.
    ///
    /// # Safety
    /// As [`Block::run`]; AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    unsafe fn columns(&self, lines: &Lines) {
        let s = &self.source.conv.shape;
        let (padded, ow) = (self.padded(), self.source.conv.out[2]);
        let line = lines.width * lines.pixel;
        let windows = Windows::new(
            [s.kernel[1], s.kernel[2]],
            [line * s.dilation[1], lines.pixel],
            [s.stride[2], s.dilation[2]],
        );
        let bytes = windows.weight_bytes();
        scratch::with(columns::PANELS * bytes / size_of::<f32>(), |joined| {
            let joined = joined.cast::<u8>();
            for panel in (0..padded / PANEL).step_by(columns::PANELS) {
                let count = (padded / PANEL - panel).min(columns::PANELS);
                // SAFETY: windows and sums lie inside of the scratch, which has room for the joined weights; packing has checked the unit.
                unsafe {
                    for n in 0..count {
                        windows.join(self.weights.panel(0, panel + n), joined, [n, count]);
                    }
                    let given = (joined.cast_const(), self.weights.first(0, panel));
                    for y in 0..self.lines.len() {
                        let from = lines.first.wrapping_add(y * s.stride[1] * line + panel * PANEL);
                        let to = lines.sums.wrapping_add(y * ow * padded + panel * PANEL);
                        windows.line(from, given, (to, padded), [ow, count]);
                    }
                }
            }
        });
    }

    /// Copies the lines that the windows reach, with their padding.
    unsafe fn copy(&self, to: *mut u8, height: usize, width: usize) {
        let conv = self.source.conv;
        let (s, size, fill) = (&conv.shape, conv.numbers.size(), self.source.fill());
        // In bytes.
        let (padded, channels) = (self.padded() * size, s.in_channels * size);
        let (inner, low) = (s.input[2], s.pad_lo[2]);
        let first = (self.lines.start * s.stride[1]) as isize - s.pad_lo[1] as isize;
        let stride = self.source.strides.w * size as isize;
        for y in 0..height {
            let to = to.wrapping_add(y * width * padded);
            // SAFETY: the line is inside of the image, and the copy has room for its pixels.
            unsafe {
                let Some(line) = self.source.line(self.image, 0, first + y as isize) else {
                    to.write_bytes(fill, width * padded);
                    continue;
                };
                to.write_bytes(fill, low * padded);
                let inside = to.add(low * padded);
                if stride == padded as isize && channels == padded {
                    std::ptr::copy_nonoverlapping(line, inside, inner * padded);
                } else {
                    for x in 0..inner {
                        let from = line.wrapping_offset(x as isize * stride);
                        std::ptr::copy_nonoverlapping(from, inside.add(x * padded), channels);
                    }
                }
                inside.add(inner * padded).write_bytes(fill, (width - low - inner) * padded);
            }
        }
        if conv.numbers == Narrow::I8 {
            // SAFETY: the copy has this many bytes; those of channels that do not exist are used for sums that nobody reads.
            let all = unsafe { std::slice::from_raw_parts_mut(to, height * width * padded) };
            all.iter_mut().for_each(|b| *b ^= Narrow::I8.bias());
        }
    }

    /// The sums of one output line.
    unsafe fn line(&self, from: *const u8, taps: &[usize], to: *mut u32) {
        let conv = self.source.conv;
        let (padded, ow) = (self.padded(), conv.out[2]);
        let size = conv.numbers.size();
        let step = conv.shape.stride[2] * padded * size;
        for x in (0..ow).step_by(PIXELS) {
            for panel in 0..padded / PANEL {
                let line = Line {
                    from: from.wrapping_add(x * step + panel * PANEL * size),
                    step,
                    taps: taps.as_ptr(),
                    count: taps.len(),
                    weights: self.weights.panel(0, panel),
                    first: self.weights.first(0, panel),
                    to: to.wrapping_add(x * padded + panel * PANEL),
                    ld: padded,
                    pixels: (ow - x).min(PIXELS),
                };
                // SAFETY: windows and sums lie inside of the scratch; packing has checked the unit.
                unsafe {
                    match self.weights.unit {
                        #[cfg(target_arch = "x86_64")]
                        Unit::Bf16 | Unit::Widened => super::x86::windows_of_floats(&line),
                        _ => plain(&line),
                    }
                }
            }
        }
    }
}

/// Sums of a line's pixels, of integers, in plain Rust.
///
/// # Safety
/// The line's pointers cover its sizes.
unsafe fn plain(line: &Line) {
    for pixel in 0..line.pixels {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = line.first.cast::<[i32; PANEL]>().read_unaligned();
            for tap in 0..line.count {
                let x = &*line.from.add(pixel * line.step + *line.taps.add(tap)).cast::<[u8; PANEL]>();
                let w = &*line.weights.cast::<[i32; PANEL]>().add(tap);
                for ((sum, x), w) in sums.iter_mut().zip(x).zip(w) {
                    *sum = sum.wrapping_add(i32::from(*x) * w);
                }
            }
            line.to.add(pixel * line.ld).cast::<[i32; PANEL]>().write_unaligned(sums);
        }
    }
}
