//! Convolutions of narrow numbers by tiles that read windows where they lie in the image: with a stride of 1 the rows of a tile are neighbouring
//! pixels of a padded copy of some lines, and each tap is the same rows a distance further.
//!
//! Pixels of the copy are numbered through all lines, so the last ones of a line are windows that reach into the next one; they are computed and
//! handed to nobody. Other convolutions gather their windows (`conv`).

use std::ops::Range;

use super::conv::Source;
use super::dot::PIECE;
use super::pack::Form;
use super::product::{Block, Grid, Job, Laid, Units};
use super::{Narrow, NarrowWeights};
use crate::micro::driver::part;
use crate::micro::{Hook, scratch, team};

/// Bytes of a piece.
const BYTES: usize = 4 * PIECE;

/// The windows of one image and group.
struct Windows<'a> {
    source: &'a Source<'a>,
    image: usize,
    group: usize,
}

/// Whether convolutions of this shape with these weights are computed here: their pixels are whole pieces.
pub(super) fn fit(source: &Source<'_>, weights: &NarrowWeights) -> bool {
    let s = &source.conv.shape;
    let flat = s.kernel[0] == 1 && s.input[0] == 1 && s.padded()[0] == 1;
    let tiles = weights.form == Form::Panels && weights.unit.piece() == PIECE;
    tiles && flat && s.stride == [1; 3] && s.taps() > 1 && source.pixel().is_multiple_of(BYTES)
}

/// Convolves a batch.
///
/// # Safety
/// As `NarrowConv::run`, and [`fit`].
pub(super) unsafe fn run(source: &Source<'_>, weights: &NarrowWeights, hook: Hook<'_>) {
    let conv = source.conv;
    let s = &conv.shape;
    let ([_, lines, width], padded) = (conv.out, s.padded()[2]);
    let jobs = s.batch * s.groups;
    let work = jobs * lines * width * weights.n() * weights.k() / weights.unit.speed();
    let units = Units { count: lines, rows: padded, bytes: padded * source.pixel(), copied: true };
    let grid = Grid::of_tiles(jobs, &units, weights, team::threads_for(work));
    let each = grid.tasks();
    team::par_for_work(jobs * each, work, &|task| {
        let (job, at) = (task / each, task % each);
        let windows = Windows { source, image: job / s.groups, group: job % s.groups };
        let lines = part(lines, grid.rows, at % grid.rows);
        // SAFETY: the caller's promise; blocks are disjoint.
        unsafe { windows.run(lines, grid.panels_of(weights, at / grid.rows), weights, hook) };
    });
}

impl Windows<'_> {
    /// Lines of the output by panels.
    unsafe fn run(&self, lines: Range<usize>, panels: Range<usize>, b: &NarrowWeights, hook: Hook<'_>) {
        let conv = self.source.conv;
        let (s, [_, _, width]) = (&conv.shape, conv.out);
        let padded = s.padded()[2];
        let height = lines.len() + (s.kernel[1] - 1) * s.dilation[1];
        // An odd number of cache lines, so that pixels do not evict each other.
        let pixel = self.source.pixel() | BYTES;
        let taps: Vec<usize> = (0..s.taps())
            .map(|t| (t / s.kernel[2] * s.dilation[1] * padded + t % s.kernel[2] * s.dilation[2]) * pixel)
            .collect();
        scratch::with(height * padded * pixel / 4, |copy| {
            let copy = copy.cast::<u8>();
            let laid = Laid {
                first: copy,
                stride: pixel as isize,
                count: (lines.len() - 1) * padded + width,
                line: [padded, width],
                runs: (&taps, self.source.pixel() / BYTES),
            };
            let job = Job { batch: self.image, group: self.group, column: self.group * b.n() };
            let block = Block { job, b, hook, rows: lines.start * width..lines.end * width, panels };
            // SAFETY: the caller's promise; the copy has room for the lines that the windows reach.
            unsafe {
                self.copy(lines.start, height, copy, pixel);
                block.finish(&laid);
            }
        });
    }

    /// Copies lines with their padding from that on with which the windows of an output line begin.
    unsafe fn copy(&self, line: usize, height: usize, to: *mut u8, pixel: usize) {
        let conv = self.source.conv;
        let (s, bytes) = (&conv.shape, self.source.pixel());
        let (padded, low, inner) = (s.padded()[2], s.pad_lo[2], s.input[2]);
        let bias = conv.numbers.bias();
        let fill = self.source.fill() ^ bias;
        for y in 0..height {
            let to = to.wrapping_add(y * padded * pixel);
            let z = (line + y) as isize - s.pad_lo[1] as isize;
            // SAFETY: the line is inside of the image, and the copy has room for its pixels.
            unsafe {
                let Some(from) = self.source.line(self.image, 0, z) else {
                    to.write_bytes(fill, padded * pixel);
                    continue;
                };
                to.write_bytes(fill, low * pixel);
                to.add((low + inner) * pixel).write_bytes(fill, (padded - low - inner) * pixel);
                let from = from.wrapping_add(self.group * bytes);
                for x in 0..inner {
                    let from = from.wrapping_offset(x as isize * self.source.step());
                    let to = to.add((low + x) * pixel);
                    std::ptr::copy_nonoverlapping(from, to, bytes);
                    if conv.numbers == Narrow::I8 {
                        std::slice::from_raw_parts_mut(to, bytes).iter_mut().for_each(|b| *b ^= bias);
                    }
                }
            }
        }
    }
}
