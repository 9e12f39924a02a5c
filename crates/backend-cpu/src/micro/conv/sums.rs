//! Convolutions with few output pixels as sums of outer products: rows of the product are images, and an output pixel is a product of its
//! own over the taps that lie inside the input, so that nothing is multiplied by padding. So are gradients to weights, whose images are input
//! channels and whose window is as large as the output was. For weights that change from call to call: both operands are packed in scratch,
//! some channels at a time.

use std::ops::Range;

use super::weights::{Order, Plain};
use super::{ConvPlan, ConvShape, Strides5};
use crate::micro::depthwise::taps_inside;
use crate::micro::driver::{odd_lines, part};
use crate::micro::epilogue::{Blocks, COut, Epilogue, EpilogueBlock, Hook, Residual};
use crate::micro::kernel::{Finish, Target, panel_width, tile_rows};
use crate::micro::outer::{Outer, Run, outer};
use crate::micro::transpose::{self, Source};
use crate::micro::{Isa, scratch, team};

/// Most values of the packed input.
const INPUT: usize = 1 << 20;
/// Most values of packed weights for each thread: a part of its second-level cache.
const WEIGHTS: usize = 384 << 10;
/// Steps of k in one pass over C: those of a panel take 48 KiB.
const STEPS: usize = 384;
/// Most lines of the window in one pass.
const LINES: usize = 32;
/// Columns of a block that is to be tall, and rows that it should have.
const NARROW: usize = 16;
const TALL: usize = 256;

/// How such a convolution is computed.
pub(super) struct Sums {
    /// Tiles of images, and the values that a step of a packed tile takes.
    tiles: usize,
    width: usize,
    /// Columns of a packed line: columns whose distance is a multiple of the dilation follow each other.
    columns: usize,
    /// Columns with one remainder.
    per: usize,
    /// Channels that are packed at a time.
    channels: usize,
}

/// Taps inside of the input, of all output positions of a dimension together.
fn inside(shape: &ConvShape, out: [usize; 3], i: usize) -> usize {
    (0..out[i]).map(|at| taps_of(shape, i, at).len()).sum()
}

fn taps_of(shape: &ConvShape, i: usize, at: usize) -> Range<usize> {
    let start = (at * shape.stride[i]) as isize - shape.pad_lo[i] as isize;
    taps_inside(start, shape.dilation[i], shape.kernel[i], shape.input[i])
}

impl Sums {
    /// Where it takes less time than products of the pixels of each image by an estimate: `product` is the time of those.
    pub(super) fn new(isa: Isa, shape: &ConvShape, out: [usize; 3], product: usize) -> Option<Sums> {
        if shape.groups > 1 {
            return None;
        }
        let tiles = shape.batch.div_ceil(tile_rows(isa));
        let width = shape.batch.div_ceil(tiles.max(1)).next_multiple_of(4);
        let dilation = shape.dilation[2];
        let per = shape.input[2].div_ceil(dilation);
        let columns = per * dilation;
        let step = tiles * width * shape.input[0] * shape.input[1] * columns;
        let channels = (INPUT / step.max(1)).clamp(1, shape.in_channels);
        let sums = Sums { tiles, width, columns, per, channels };
        (sums.cost(isa, shape, out) * 10 < product * 9).then_some(sums)
    }

    /// In units of a row of a tile and a step of k.
    fn cost(&self, isa: Isa, shape: &ConvShape, out: [usize; 3]) -> usize {
        let panels = shape.out_channels.div_ceil(panel_width(isa));
        let lines = inside(shape, out, 0) * inside(shape, out, 1);
        let steps = lines * (inside(shape, out, 2) * shape.in_channels + 8 * out[2]);
        let copied = shape.batch * shape.in_channels * shape.input.iter().product::<usize>();
        super::plan::tiles_cost(shape.batch, tile_rows(isa)) * steps * panels + copied
    }

    /// The place of a column in a packed line.
    fn column(&self, x: usize, dilation: usize) -> usize {
        x % dilation * self.per + x / dilation
    }
}

/// Convolves a batch.
///
/// # Safety
/// As [`ConvPlan::run`].
pub(super) unsafe fn run(
    plan: &ConvPlan,
    sums: &Sums,
    input: *const f32,
    weight: &Plain,
    out: COut,
    epilogue: &Epilogue<'_>,
) {
    let (pixels, o) = (plan.pixels(), plan.shape.out_channels);
    // SAFETY: the caller's promise; the scratch holds all of the result.
    unsafe {
        match out {
            COut::Memory { ptr, row_stride } => {
                let to = Place { ptr, image: plan.output.n.unsigned_abs(), pixel: row_stride };
                keeping_residual(plan, epilogue, |epilogue| {
                    run_into(plan, sums, input, weight, &to, epilogue)
                });
            }
            COut::Scratch => {
                let ld = odd_lines(o);
                scratch::with(plan.shape.batch * pixels * ld, |ptr| {
                    let to = Place { ptr, image: pixels * ld, pixel: ld };
                    run_into(plan, sums, input, weight, &to, epilogue);
                });
            }
        }
    }
}

/// Copies the residual first: it may be the result itself, which sums of the first passes overwrite.
unsafe fn keeping_residual(plan: &ConvPlan, epilogue: &Epilogue<'_>, f: impl FnOnce(&Epilogue<'_>)) {
    let Some(r) = epilogue.residual else { return f(epilogue) };
    let (pixels, o) = (plan.pixels(), plan.shape.out_channels);
    scratch::with(plan.shape.batch * pixels * o, |copy| {
        for image in 0..plan.shape.batch {
            let src = Source {
                ptr: r.ptr.wrapping_add(image * r.batch_stride),
                row: r.row_stride as isize,
                col: 1,
            };
            // SAFETY: the residual is readable by the caller's promise; the scratch holds it.
            unsafe { transpose::copy(src, pixels, o, copy.wrapping_add(image * pixels * o), o) };
        }
        let residual = Some(Residual { ptr: copy, row_stride: o, batch_stride: pixels * o });
        f(&Epilogue { residual, ..*epilogue });
    });
}

/// Rows of all columns of C.
struct Place {
    ptr: *mut f32,
    /// Values between images, and between pixels.
    image: usize,
    pixel: usize,
}

impl Place {
    fn row(&self, image: usize, pixel: usize) -> *mut f32 {
        self.ptr.wrapping_add(image * self.image + pixel * self.pixel)
    }
}

unsafe fn run_into(
    plan: &ConvPlan,
    sums: &Sums,
    input: *const f32,
    weight: &Plain,
    to: &Place,
    epilogue: &Epilogue<'_>,
) {
    let shape = &plan.shape;
    let (nr, taps) = (panel_width(plan.isa), shape.taps());
    let panels = shape.out_channels.div_ceil(nr);
    let most = (WEIGHTS * team::threads() / (taps * sums.channels * nr)).clamp(1, panels);
    let (chunks, pieces) = (shape.in_channels.div_ceil(sums.channels), panels.div_ceil(most));
    let step = sums.width * shape.input[0] * shape.input[1] * sums.columns;
    scratch::with(sums.tiles * step * sums.channels, |a| {
        scratch::with(most * taps * sums.channels * nr, |b| {
            for chunk in 0..chunks {
                let channels = part(shape.in_channels, chunks, chunk);
                let (first, last) = (chunk == 0, chunk + 1 == chunks);
                let tile = step * channels.len();
                let job = Job { plan, sums, input, weight, to, epilogue, channels, a, tile, b, first, last };
                job.pack_input();
                for piece in 0..pieces {
                    let panels = part(panels, pieces, piece);
                    job.pack_weight(&panels);
                    job.multiply(&panels);
                }
            }
        });
    });
    if let Some(hook) = &epilogue.hook {
        // SAFETY: the caller's promise; all sums are in their places.
        unsafe { hand_over(plan, to, hook, epilogue.blocks) };
    }
}

/// Calls the hook for all of the result.
unsafe fn hand_over(plan: &ConvPlan, to: &Place, hook: &Hook<'_>, blocks: Blocks) {
    let (pixels, o, batch) = (plan.pixels(), plan.shape.out_channels, plan.shape.batch);
    let joined = blocks == Blocks::Joined && to.image == pixels * to.pixel;
    let images = if joined { TALL.div_ceil(pixels) } else { 1 };
    let cols = if blocks == Blocks::Wide { o } else { NARROW };
    let (across, down) = (o.div_ceil(cols), batch.div_ceil(images).min(4 * team::threads()));
    let shared = Shared(to);
    team::par_for_work(across * down, batch * pixels * o, &|task| {
        let col0 = task / down * cols;
        let mine = part(batch, down, task % down);
        for first in mine.clone().step_by(images) {
            let block = EpilogueBlock {
                batch: first,
                row0: 0,
                row1: (mine.end - first).min(images) * pixels,
                col0,
                col1: (col0 + cols).min(o),
                ptr: shared.place().row(first, 0).wrapping_add(col0),
                row_stride: shared.place().pixel,
            };
            // SAFETY: the caller's promise; blocks are disjoint.
            unsafe { hook.call(&block) };
        }
    });
}

struct Shared<'a>(&'a Place);

// SAFETY: as `Job`.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    fn place(&self) -> &Place {
        self.0
    }
}

/// The products of some input channels.
struct Job<'a> {
    plan: &'a ConvPlan,
    sums: &'a Sums,
    input: *const f32,
    weight: &'a Plain,
    to: &'a Place,
    epilogue: &'a Epilogue<'a>,
    channels: Range<usize>,
    /// Packed input, the values of a tile of it, and packed weights.
    a: *mut f32,
    tile: usize,
    b: *mut f32,
    /// Whether these are the first channels, and the last.
    first: bool,
    last: bool,
}

// SAFETY: pointers are used under the promise of `run`; tasks are disjoint.
unsafe impl Sync for Job<'_> {}

/// A part of the window: some lines, and some columns of each.
struct Pass {
    lines: Range<usize>,
    columns: Range<usize>,
    first: bool,
    last: bool,
}

impl Job<'_> {
    /// The images of a tile.
    fn images(&self, tile: usize) -> Range<usize> {
        part(self.plan.shape.batch, self.sums.tiles, tile)
    }

    fn pack_input(&self) {
        let shape = &self.plan.shape;
        let lines = shape.input[0] * shape.input[1];
        team::par_for_work(self.sums.tiles * lines, self.sums.tiles * self.tile, &|task| {
            let (tile, line) = (task / lines, task % lines);
            // SAFETY: the promise of `run`: the input is readable; each task fills a line of its own.
            unsafe { self.pack_line(tile, line) };
        });
    }

    /// Value `c` of column `x` of image `i` of a tile is at `(column(x) * channels + c) * width + i`.
    unsafe fn pack_line(&self, tile: usize, line: usize) {
        let (shape, s, sums) = (&self.plan.shape, &self.plan.input, self.sums);
        let (count, images) = (self.channels.len(), self.images(tile));
        let to = self.a.wrapping_add(tile * self.tile + line * sums.columns * count * sums.width);
        let at = |c: usize, x: usize| {
            let (z, y) = (line / shape.input[1], line % shape.input[1]);
            let pixel = z as isize * s.d + y as isize * s.h + x as isize * s.w;
            let channel = (self.channels.start + c) as isize * s.c;
            self.input.wrapping_offset(images.start as isize * s.n + channel + pixel)
        };
        // SAFETY: the caller's promise.
        unsafe {
            if s.w == 1 && s.c != 1 && s.n != 1 && shape.dilation[2] == 1 {
                for c in 0..count {
                    let src = Source { ptr: at(c, 0), row: 1, col: s.n };
                    let to = to.wrapping_add(c * sums.width);
                    transpose::copy(src, shape.input[2], images.len(), to, count * sums.width);
                }
                return;
            }
            for x in 0..shape.input[2] {
                let src = Source { ptr: at(0, x), row: s.c, col: s.n };
                let to = to.wrapping_add(sums.column(x, shape.dilation[2]) * count * sums.width);
                transpose::copy(src, count, images.len(), to, sums.width);
            }
        }
    }

    /// Row `t * channels + c` of a panel is tap `t` of channel `c`.
    fn pack_weight(&self, panels: &Range<usize>) {
        let (nr, count, shape) = (panel_width(self.plan.isa), self.channels.len(), &self.plan.shape);
        let panel = shape.taps() * count * nr;
        team::par_for_work(panels.len(), panels.len() * panel, &|i| {
            let col = (panels.start + i) * nr;
            let cols = col..(col + nr).min(shape.out_channels);
            let to = self.b.wrapping_add(i * panel);
            // SAFETY: the promise of `run`: the weight is readable; each task fills a panel of its own.
            unsafe { self.weight.panel(&cols, &self.channels, to, Order { tap: count, channel: 1 }, nr) };
        });
    }

    fn multiply(&self, panels: &Range<usize>) {
        let shape = &self.plan.shape;
        let units = self.plan.pixels() * self.sums.tiles;
        let work = shape.batch * self.plan.pixels() * shape.taps() * self.channels.len() * shape.out_channels;
        let threads = team::threads_for(work);
        let wanted = if threads == 1 { 1 } else { 4 * threads };
        let across = wanted.min(panels.len());
        let down = wanted.div_ceil(across).min(units);
        team::par_for_work(across * down, work, &|task| {
            let mine = part(panels.len(), across, task / down);
            let units = part(units, down, task % down);
            self.passes(|pass| {
                for panel in mine.clone() {
                    // SAFETY: the promise of `run`; tasks are disjoint blocks of C.
                    unsafe { self.tiles(&pass, panels.start, panel, &units) };
                }
            });
        });
    }

    /// Calls `f` for each part of the window in order.
    fn passes(&self, mut f: impl FnMut(Pass)) {
        let kernel = self.plan.shape.kernel;
        let (lines, line) = (kernel[0] * kernel[1], kernel[2] * self.channels.len());
        let groups = lines.div_ceil((STEPS / line).clamp(1, LINES));
        let pieces = if line > STEPS { line.div_ceil(STEPS).min(kernel[2]) } else { 1 };
        for group in 0..groups {
            for piece in 0..pieces {
                let first = self.first && group + piece == 0;
                let last = self.last && group + 1 == groups && piece + 1 == pieces;
                f(Pass {
                    lines: part(lines, groups, group),
                    columns: part(kernel[2], pieces, piece),
                    first,
                    last,
                });
            }
        }
    }

    /// The sums of a pass in the columns of a panel: `units` are tiles of images of each pixel.
    unsafe fn tiles(&self, pass: &Pass, first_panel: usize, panel: usize, units: &Range<usize>) {
        let (plan, sums, nr) = (self.plan, self.sums, panel_width(self.plan.isa));
        let col = (first_panel + panel) * nr;
        let b = self.b.wrapping_add(panel * plan.shape.taps() * self.channels.len() * nr);
        let mut runs = [Run::default(); LINES];
        let mut known = None;
        for unit in units.clone() {
            let (pixel, tile) = (unit / sums.tiles, unit % sums.tiles);
            let count = match known {
                Some((of, count)) if of == pixel => count,
                _ => self.runs(pass, pixel, &mut runs),
            };
            known = Some((pixel, count));
            let images = self.images(tile);
            let work = Outer {
                runs: &runs[..count],
                a: self.a.wrapping_add(tile * self.tile),
                width: sums.width,
                b,
                to: Target {
                    c: self.to.row(images.start, pixel).wrapping_add(col),
                    ldc: self.to.image,
                    cols: (plan.shape.out_channels - col).min(nr),
                    accumulate: !pass.first,
                    finish: if pass.last { self.finish(images.start, pixel, col) } else { None },
                },
            };
            // SAFETY: the caller's promise; runs lie inside of the packed operands.
            unsafe { outer(plan.isa, images.len(), &work) };
        }
    }

    /// The steps of a pass whose taps are inside of the input.
    fn runs(&self, pass: &Pass, pixel: usize, runs: &mut [Run; LINES]) -> usize {
        let (shape, sums, count) = (&self.plan.shape, self.sums, self.channels.len());
        let [_, oh, ow] = self.plan.out;
        let at = [pixel / ow / oh, pixel / ow % oh, pixel % ow];
        let [d, h, w] = std::array::from_fn(|i| taps_of(shape, i, at[i]));
        let columns = w.start.max(pass.columns.start)..w.end.min(pass.columns.end);
        let place =
            |i: usize, tap: usize| at[i] * shape.stride[i] + tap * shape.dilation[i] - shape.pad_lo[i];
        let mut len = 0;
        for line in pass.lines.clone().filter(|_| !columns.is_empty()) {
            let (z, y) = (line / shape.kernel[1], line % shape.kernel[1]);
            if d.contains(&z) && h.contains(&y) {
                let row = place(0, z) * shape.input[1] + place(1, y);
                let x = sums.column(place(2, columns.start), shape.dilation[2]);
                runs[len] = Run {
                    a: (row * sums.columns + x) * count,
                    b: (line * shape.kernel[2] + columns.start) * count,
                    len: columns.len() * count,
                };
                len += 1;
            }
        }
        len
    }

    /// The epilogue of a tile that begins at this image.
    fn finish(&self, image: usize, pixel: usize, col: usize) -> Option<Finish> {
        let e = self.epilogue;
        if !e.in_registers() {
            return None;
        }
        let at = |s: Option<&[f32]>| s.map_or(std::ptr::null(), |s| s[col..].as_ptr());
        let residual = |r: Residual| r.ptr.wrapping_add(image * r.batch_stride + pixel * r.row_stride + col);
        Some(Finish {
            scale: at(e.scale),
            shift: at(e.shift),
            residual: e.residual.map_or(std::ptr::null(), residual),
            residual_stride: e.residual.map_or(0, |r| r.batch_stride),
            clamp: e.activation.bounds(),
        })
    }
}

/// Whether the images of an output lie at distances that the tiles can be stored at.
pub(super) fn fits(output: &Strides5) -> bool {
    output.n >= 0
}
