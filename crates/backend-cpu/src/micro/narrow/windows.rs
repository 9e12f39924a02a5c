//! Convolutions of narrow numbers by tiles that read windows where they lie: in a padded copy of some lines of the image. The rows of a tile are
//! windows of neighbouring output pixels, a stride apart, and a line of the kernel, or a tap, is the same rows a distance further.
//!
//! With a stride of 1 pixels are numbered through all lines of the copy, so the last ones of a line are windows that reach into the next one; they
//! are computed and handed to nobody. With other strides each line has tiles of its own. What fits neither gathers its windows (`conv`).

use std::ops::Range;

use super::NarrowWeights;
use super::conv::{Source, joined};
use super::dot::{PIECE, TILE_ROWS};
use super::product::{Block, Grid, Job, Laid, Units};
use crate::micro::driver::part;
use crate::micro::{ConvShape, Hook, scratch, team};

/// Most bytes of a piece.
const BYTES: usize = 4 * PIECE;
/// Fewest: smaller ones leave more of a tile empty than gathering costs.
const FEWEST: usize = 24;
/// Fewest pixels of a line that has tiles of its own.
const LINE: usize = 12;

/// How windows of a shape lie in the copy.
pub(super) struct Layout {
    /// Bytes of a pixel that are multiplied: its channels, filled up to four bytes.
    pub(super) data: usize,
    /// Bytes from pixel to pixel.
    pixel: usize,
    /// Bytes of a piece.
    piece: usize,
    /// Pieces of a run.
    each: usize,
    /// A run is a line of the kernel, else a tap.
    lines: bool,
}

impl Layout {
    /// That of a convolution of pixels (of one group) of so many bytes, where it can be computed here. It does not depend on the image's size: weights
    /// are packed once.
    pub(super) fn of(s: &ConvShape, bytes: usize) -> Option<Layout> {
        let data = bytes.next_multiple_of(4);
        // Filled up channels of several groups would need weights of several layouts.
        if s.kernel[0] != 1 || s.taps() == 1 || (data != bytes && s.groups > 1) {
            return None;
        }
        if data.is_multiple_of(BYTES) {
            // An odd number of cache lines, so that pixels do not evict each other.
            return Some(Layout {
                data,
                pixel: data | BYTES,
                piece: BYTES,
                each: data / BYTES,
                lines: false,
            });
        }
        let lines = s.dilation[2] == 1;
        let run = if lines { s.kernel[2] * data } else { data };
        let each = (run.div_ceil(BYTES)..=run / 4).find(|n| run.is_multiple_of(4 * n))?;
        let piece = run / each;
        (piece >= FEWEST).then_some(Layout { data, pixel: data, piece, each, lines })
    }

    /// Whether lines of the output are long enough for tiles of their own, where they have them.
    pub(super) fn pays(s: &ConvShape) -> bool {
        through(s) || s.output().is_ok_and(|out| out[2] >= LINE)
    }

    /// The distance of each run from the first byte of a window.
    fn runs(&self, s: &ConvShape) -> Vec<usize> {
        let [_, kh, kw] = s.kernel;
        let line = s.padded()[2] * self.pixel * s.dilation[1];
        let tap = self.pixel * s.dilation[2];
        let taps = if self.lines { 1 } else { kw };
        (0..kh * taps).map(|run| run / taps * line + run % taps * tap).collect()
    }
}

/// Whether pixels are numbered through all lines.
fn through(s: &ConvShape) -> bool {
    s.stride[1..] == [1; 2]
}

/// The windows of one slice of an image (there is one where it is flat) and group.
struct Windows<'a> {
    source: &'a Source<'a>,
    layout: &'a Layout,
    image: usize,
    slice: usize,
    group: usize,
}

/// Convolves a batch.
///
/// # Safety
/// As `NarrowConv::run`; the weights are for tiles, with the layout's pixels.
pub(super) unsafe fn run(source: &Source<'_>, layout: &Layout, weights: &NarrowWeights, hook: Hook<'_>) {
    let conv = source.conv;
    let s = &conv.shape;
    let ([slices, lines, width], padded) = (conv.out, s.padded()[2]);
    let jobs = s.batch * slices * s.groups;
    if jobs * lines * width * weights.n() == 0 {
        return;
    }
    let work = jobs * lines * width * weights.n() * weights.k() / weights.unit.speed();
    let rows = if through(s) { padded } else { width.next_multiple_of(TILE_ROWS) };
    let bytes = s.stride[1] * padded * layout.data;
    let units = Units { count: lines, rows, bytes, copied: true };
    let grid = Grid::of_tiles(jobs, &units, weights, team::threads_for(work));
    let each = grid.tasks();
    team::par_for_work(jobs * each, work, &|task| {
        let (job, at) = (task / each, task % each);
        let (job, group) = (job / s.groups, job % s.groups);
        let windows = Windows { source, layout, image: job / slices, slice: job % slices, group };
        let lines = part(lines, grid.rows, at % grid.rows);
        // SAFETY: the caller's promise; blocks are disjoint.
        unsafe { windows.run(lines, grid.panels_of(weights, at / grid.rows), weights, hook) };
    });
}

impl Windows<'_> {
    /// Lines of the output by panels.
    unsafe fn run(&self, lines: Range<usize>, panels: Range<usize>, b: &NarrowWeights, hook: Hook<'_>) {
        let (conv, layout) = (self.source.conv, self.layout);
        let (s, [_, all, width]) = (&conv.shape, conv.out);
        let (padded, pixel) = (s.padded()[2], layout.pixel);
        let height = (lines.len() - 1) * s.stride[1] + (s.kernel[1] - 1) * s.dilation[1] + 1;
        let runs = layout.runs(s);
        scratch::with(height * padded * pixel / 4, |copy| {
            let copy = copy.cast::<u8>();
            let through = through(s);
            let laid = Laid {
                first: copy,
                stride: (s.stride[2] * pixel) as isize,
                count: if through { (lines.len() - 1) * padded + width } else { width },
                lines: if through { 1 } else { lines.len() },
                line_step: s.stride[1] * padded * pixel,
                hook: [if through { padded } else { width.next_multiple_of(TILE_ROWS) }, width],
                runs: (&runs, layout.each),
                piece: layout.piece,
            };
            let job = Job { batch: self.image, group: self.group, column: self.group * b.n() };
            let first = self.slice * all;
            let rows = (first + lines.start) * width..(first + lines.end) * width;
            let block = Block { job, b, hook, rows, panels };
            // SAFETY: the caller's promise; the copy has room for the lines that the windows reach.
            unsafe {
                self.copy(lines.start * s.stride[1], height, copy);
                block.finish(&laid);
            }
        });
    }

    /// Copies lines of the padded image from one on.
    unsafe fn copy(&self, line: usize, height: usize, to: *mut u8) {
        let conv = self.source.conv;
        let (s, pixel) = (&conv.shape, self.layout.pixel);
        let (padded, low, inner) = (s.padded()[2], s.pad_lo[2], s.input[2]);
        let bias = conv.numbers.bias();
        let fill = self.source.fill() ^ bias;
        let slice = (self.slice * s.stride[0]) as isize - s.pad_lo[0] as isize;
        for y in 0..height {
            let to = to.wrapping_add(y * padded * pixel);
            let z = (line + y) as isize - s.pad_lo[1] as isize;
            // SAFETY: the line is inside of the image, and the copy has room for its pixels.
            unsafe {
                let Some(from) = self.source.line(self.image, slice, z) else {
                    to.write_bytes(fill, padded * pixel);
                    continue;
                };
                let inside = to.add(low * pixel);
                to.write_bytes(fill, low * pixel);
                inside.add(inner * pixel).write_bytes(fill, (padded - low - inner) * pixel);
                match conv.numbers.size() {
                    1 => self.pixels::<u8>(from, inside),
                    _ => self.pixels::<u16>(from.cast(), inside.cast()),
                }
                for x in 0..if bias != 0 { inner } else { 0 } {
                    let data = std::slice::from_raw_parts_mut(inside.add(x * pixel), self.layout.data);
                    data.iter_mut().for_each(|b| *b ^= bias);
                }
            }
        }
    }

    /// Copies the pixels of a line, with zeros where channels are filled up.
    unsafe fn pixels<T: Copy + Default>(&self, from: *const T, to: *mut T) {
        let (s, strides) = (&self.source.conv.shape, &self.source.strides);
        let channels = s.in_channels / s.groups;
        let [pixel, data] = [self.layout.pixel, self.layout.data].map(|bytes| bytes / size_of::<T>());
        let from = from.wrapping_offset((self.group * channels) as isize * strides.c);
        // SAFETY: the caller's promise.
        unsafe {
            if strides.c == 1 && channels == data {
                for x in 0..s.input[2] {
                    let from = from.wrapping_offset(x as isize * strides.w);
                    std::ptr::copy_nonoverlapping(from, to.wrapping_add(x * pixel), data);
                }
                return;
            }
            if (channels, data, pixel, strides.w) == (3, 4, 4, 1)
                && joined::<T, 4>(from, to.cast(), s.input[2], strides.c)
            {
                return;
            }
            for c in 0..data {
                let from = from.wrapping_offset(c as isize * strides.c);
                for x in 0..s.input[2] {
                    let value = if c < channels {
                        *from.wrapping_offset(x as isize * strides.w)
                    } else {
                        T::default()
                    };
                    *to.wrapping_add(x * pixel + c) = value;
                }
            }
        }
    }
}
