//! Convolutions by a window of 3×3 with stride 1 through Winograd's F(4×4, 3×3): 36 products of transformed tiles and weights in
//! place of 144 for each 4×4 pixels of the output. Products are those of `kernel`; the transforms have channels as lanes. For
//! constant weights alone, because transformed ones take four times the memory.
//!
//! The points are 0, ±5/8, ±3/2 and infinity: with them the error is about twice that of sums in order (largest of
//! 2,000 tiles of 256 channels, relative to the largest output: 2.2e-6 against 1.1e-6; 8.7e-6 with 0, ±1, ±2).

mod transform;

use std::ops::Range;

use super::{ConvPlan, ConvShape, ConvWeights, Strides5};
use crate::micro::driver::{odd_lines, part};
use crate::micro::epilogue::{COut, Epilogue, EpilogueBlock};
use crate::micro::kernel::{
    FEW_ROWS, Finish, MAX_MR, Target, Tile, chain_fn, panel_width, tile_fn, tile_rows,
};
use crate::micro::transpose::Source;
use crate::micro::{Isa, PackedB, scratch, team};
use transform::{Gather, Spread, gather, spread};

/// The address of a weight that several threads read.
#[derive(Clone, Copy)]
struct Shared(*const f32);

// SAFETY: memory behind it is only read, under the promise of whoever packs the weight.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self) -> *const f32 {
        self.0
    }
}

/// Pixels of the output along a tile's side.
const SIDE: usize = 4;
/// Pixels of the input along a tile's side.
const REACH: usize = SIDE + 2;
/// Products of a tile.
const PRODUCTS: usize = REACH * REACH;
/// Values of transformed input that are made before their products: a quarter of a 2 MiB second-level cache, or one row of tiles.
const AHEAD: usize = 512 << 10;
/// Bytes of transformed weights above which a thread should read its own part of them rather than all.
const OWN_WEIGHTS: usize = 512 << 10;

/// Where tiles are read.
pub(super) struct Winograd {
    source: Strides5,
}

impl Winograd {
    /// For convolutions that it can compute, whatever the size of the image.
    pub(super) fn new(shape: &ConvShape, source: Strides5) -> Option<Winograd> {
        let flat = shape.input[0] == 1 && shape.pad_lo[0] == 0 && shape.pad_hi[0] == 0;
        let window = shape.kernel == [1, 3, 3] && shape.stride == [1; 3] && shape.dilation == [1; 3];
        (flat && window && shape.groups == 1 && source.c == 1).then_some(Winograd { source })
    }
}

/// Whether it takes less time than the sums in order, by the number of multiplications, passes over transformed values, and reading
/// the weights, in units of a multiplication in a tile of products.
pub(super) fn pays(shape: &ConvShape, [_, oh, ow]: [usize; 3]) -> bool {
    let (c, o) = (shape.in_channels, shape.out_channels);
    if c < 16 || o < 16 {
        return false;
    }
    let tiles = shape.batch * oh.div_ceil(SIDE) * ow.div_ceil(SIDE);
    // A value of a transform takes as long as 12 multiplications, one of weights that is read from memory as long as 16.
    let transforms = 12 * PRODUCTS * tiles * (c + o);
    let cost = PRODUCTS * c * o * (tiles.max(5) + 16) + transforms;
    let plain = 9 * c * o * (shape.batch * oh * ow + 16);
    cost * 10 < plain * 9
}

/// Groups, rows and columns of transformed weights: a group is a panel of columns, in which the products follow each other, so that it is
/// read from its first value to its last.
pub(super) fn weights_shape(shape: &ConvShape, isa: Isa) -> [usize; 3] {
    let nr = panel_width(isa);
    [shape.out_channels.div_ceil(nr), PRODUCTS * shape.in_channels, nr]
}

/// The weights of one input and output channel at all points, in double precision: `G w Gᵀ`.
fn transformed(w: [[f64; 3]; 3]) -> [[f64; REACH]; REACH] {
    let g = |[x, y, z]: [f64; 3]| -> [f64; REACH] {
        let (a, b) = (transform::A, transform::B);
        let at = |p: f64, q: f64| {
            let f = 2.0 * p * p * (p * p - q * q);
            [(x + p * y + p * p * z) / f, (x - p * y + p * p * z) / f]
        };
        let ([a0, a1], [b0, b1]) = (at(a, b), at(b, a));
        [x / (a * a * b * b), a0, a1, b0, b1, z]
    };
    let rows = w.map(g);
    let mut out = [[0.0; REACH]; REACH];
    for j in 0..REACH {
        let column = g([rows[0][j], rows[1][j], rows[2][j]]);
        column.iter().enumerate().for_each(|(i, x)| out[i][j] = *x);
    }
    out
}

impl ConvPlan {
    /// Packs a constant weight `[O, C / groups, KD, KH, KW]` as [`ConvPlan::pack_weights`] does, or transformed where that is faster at
    /// this plan's sizes. Any plan of the same convolution can use it, whatever the size of its images.
    ///
    /// # Safety
    /// As [`ConvPlan::pack_weights`].
    pub unsafe fn pack_constant(&self, ptr: *const f32, strides: [isize; 5]) -> ConvWeights {
        // SAFETY: the caller's promise.
        unsafe {
            let transformed =
                if pays(&self.shape, self.out) { self.pack_transformed(ptr, strides) } else { None };
            transformed.unwrap_or_else(|| self.pack_weights(ptr, strides))
        }
    }

    /// The same in the form that [`ConvPlan::pack_constant`] does not choose; `None` where there is one form alone.
    ///
    /// # Safety
    /// As [`ConvPlan::pack_weights`].
    pub(crate) unsafe fn pack_otherwise(&self, ptr: *const f32, strides: [isize; 5]) -> Option<ConvWeights> {
        self.winograd.as_ref()?;
        // SAFETY: the caller's promise.
        unsafe {
            match pays(&self.shape, self.out) {
                true => Some(self.pack_weights(ptr, strides)),
                false => self.pack_transformed(ptr, strides),
            }
        }
    }

    /// Transforms a weight; `None` where the convolution is none that this module computes.
    ///
    /// # Safety
    /// As [`ConvPlan::pack_weights`].
    pub(crate) unsafe fn pack_transformed(
        &self,
        ptr: *const f32,
        strides: [isize; 5],
    ) -> Option<ConvWeights> {
        self.winograd.as_ref()?;
        // SAFETY: the caller's promise.
        Some(ConvWeights::of_winograd(unsafe { self.transform_weights(ptr, strides) }))
    }

    /// # Safety
    /// As [`ConvPlan::pack_weights`].
    unsafe fn transform_weights(&self, ptr: *const f32, [so, si, _, sh, sw]: [isize; 5]) -> PackedB {
        let weight = Shared(ptr);
        let (c, o) = (self.shape.in_channels, self.shape.out_channels);
        let [panels, k, block] = weights_shape(&self.shape, self.isa);
        let packed = PackedB::new(self.isa, panels, k, block);
        let to = &packed;
        team::par_for_work(panels, o * c * PRODUCTS, &|n| {
            let cols = n * block..((n + 1) * block).min(o);
            let width = cols.len();
            scratch::with(PRODUCTS * c * width, |buf| {
                for (j, i) in cols.clone().enumerate().flat_map(|(j, _)| (0..c).map(move |i| (j, i))) {
                    let w = weight.get().wrapping_offset((cols.start + j) as isize * so + i as isize * si);
                    let at = |y: usize, x: usize| w.wrapping_offset(y as isize * sh + x as isize * sw);
                    // SAFETY: the caller guarantees that the weight is readable.
                    let read = |y, x| f64::from(unsafe { *at(y, x) });
                    let u = transformed(std::array::from_fn(|y| std::array::from_fn(|x| read(y, x))));
                    for (p, value) in u.iter().flatten().enumerate() {
                        // SAFETY: the place is inside the scratch.
                        unsafe { *buf.add((p * c + i) * width + j) = *value as f32 };
                    }
                }
                let src = Source { ptr: buf, row: width as isize, col: 1 };
                // SAFETY: each task fills a group of its own.
                unsafe { to.fill(n, 0..k, 0..width, src) };
            });
        });
        packed
    }
}

/// Convolves a batch.
///
/// # Safety
/// As [`ConvPlan::run`]; the weights are of this convolution.
pub(super) unsafe fn run(
    plan: &ConvPlan,
    winograd: &Winograd,
    input: *const f32,
    weights: &PackedB,
    out: COut,
    epilogue: &Epilogue<'_>,
) {
    let [_, oh, ow] = plan.out;
    let (down, across) = (oh.div_ceil(SIDE), ow.div_ceil(SIDE));
    let lines = plan.shape.batch * down;
    let few = lines * across <= FEW_ROWS;
    let job = Job { plan, source: winograd.source, input, weights, out, epilogue, down, across, few };
    let (c, o) = (plan.shape.in_channels, plan.shape.out_channels);
    let ld = odd_lines(c);
    let threads = team::threads_for(lines * across * PRODUCTS * c * o);
    let most = if few { lines } else { (AHEAD * threads / (across * PRODUCTS * ld)).clamp(1, lines) };
    let blocks = lines.div_ceil(most);
    let longest = lines.div_ceil(blocks);
    scratch::with(longest * across * PRODUCTS * ld, |buf| {
        for block in 0..blocks {
            let lines = part(lines, blocks, block);
            let values = Values { buf, ld, tiles: lines.len() * across, first: lines.start };
            let parts = if threads == 1 { 1 } else { (4 * threads).min(lines.len()) };
            team::par_for_work(parts, values.tiles * PRODUCTS * c * 4, &|i| {
                let lines = part(lines.len(), parts, i);
                // SAFETY: the caller's promise; parts are disjoint lines of tiles.
                unsafe { job.gather(&values, lines.start + values.first..lines.end + values.first) };
            });
            job.products(&values, &lines, threads);
        }
    });
}

/// Transformed tiles of some lines: value `c` of product `p` and tile `t` is at `(p * tiles + t) * ld + c`.
struct Values {
    buf: *mut f32,
    ld: usize,
    tiles: usize,
    /// The first line.
    first: usize,
}

// SAFETY: written in disjoint tiles, then only read.
unsafe impl Sync for Values {}

struct Job<'a> {
    plan: &'a ConvPlan,
    source: Strides5,
    input: *const f32,
    weights: &'a PackedB,
    out: COut,
    epilogue: &'a Epilogue<'a>,
    /// Lines of tiles of an image, and tiles of a line.
    down: usize,
    across: usize,
    /// Whether all tiles are rows of one tile of registers, which is then never cut, so that it may have several sets of sums. Else
    /// every tile has one chain of sums: how tiles are cut depends on the threads, and results must not.
    few: bool,
}

// SAFETY: pointers are used under the promise of `run`; tasks are disjoint.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// Transforms the input of some lines of tiles.
    unsafe fn gather(&self, values: &Values, lines: Range<usize>) {
        let (shape, s) = (&self.plan.shape, &self.source);
        for line in lines {
            let (image, y) = (line / self.down, line % self.down * SIDE);
            for x in 0..self.across {
                let tile = (line - values.first) * self.across + x;
                let top = y as isize - shape.pad_lo[1] as isize;
                let left = (x * SIDE) as isize - shape.pad_lo[2] as isize;
                let inside = |first: isize, size: usize| {
                    (-first).clamp(0, REACH as isize) as usize
                        ..(size as isize - first).clamp(0, REACH as isize) as usize
                };
                let from = image as isize * s.n + top * s.h + left * s.w;
                let work = Gather {
                    from: self.input.wrapping_offset(from),
                    down: s.h,
                    across: s.w,
                    rows: inside(top, shape.input[1]),
                    columns: inside(left, shape.input[2]),
                    channels: shape.in_channels,
                    to: values.buf.wrapping_add(tile * values.ld),
                    apart: values.tiles * values.ld,
                };
                // SAFETY: the caller's promise: what is inside of the image is readable; the tile has room for its values.
                unsafe { gather(self.plan.isa, &work) };
            }
        }
    }

    /// The products of some lines of tiles and the output that they give.
    fn products(&self, values: &Values, lines: &Range<usize>, threads: usize) {
        let (c, o) = (self.plan.shape.in_channels, self.plan.shape.out_channels);
        let panels = o.div_ceil(panel_width(self.plan.isa));
        let own = PRODUCTS * c * o * size_of::<f32>() > OWN_WEIGHTS;
        let wanted = if threads == 1 { 1 } else { 4 * threads };
        let across = if own { wanted } else { threads }.min(panels);
        let down = if self.few { 1 } else { wanted.div_ceil(across).min(lines.len()) };
        team::par_for_work(across * down, values.tiles * PRODUCTS * c * o, &|task| {
            let lines = part(lines.len(), down, task % down);
            let lines = lines.start + values.first..lines.end + values.first;
            // SAFETY: the caller's promise; tasks are disjoint blocks of the output.
            unsafe { self.block(values, lines, part(panels, across, task / down)) };
        });
    }

    /// The number of the first pixel of a line of tiles, of all images.
    fn pixel(&self, line: usize) -> usize {
        let [_, oh, ow] = self.plan.out;
        let (image, y) = (line / self.down, line % self.down * SIDE);
        image * oh * ow + y * ow
    }

    /// Some lines of tiles and panels of columns, then the hook.
    unsafe fn block(&self, values: &Values, lines: Range<usize>, panels: Range<usize>) {
        let nr = panel_width(self.plan.isa);
        let cols = panels.start * nr..(panels.end * nr).min(self.plan.shape.out_channels);
        let pixels = self.pixel(lines.start)..self.pixel(lines.end);
        // SAFETY: the caller's promise; the scratch holds the block.
        unsafe {
            match self.out {
                COut::Memory { ptr, row_stride } => {
                    let place = |image: usize| {
                        ptr.wrapping_offset(image as isize * self.plan.output.n).wrapping_add(cols.start)
                    };
                    self.block_into(values, lines, &cols, row_stride, &place);
                }
                COut::Scratch => {
                    let ld = cols.len().next_multiple_of(16);
                    scratch::with(pixels.len() * ld, |at| {
                        let all = self.plan.pixels();
                        let place = |image: usize| {
                            at.wrapping_offset((image * all) as isize * ld as isize)
                                .wrapping_offset(-((pixels.start * ld) as isize))
                        };
                        self.block_into(values, lines, &cols, ld, &place);
                    });
                }
            }
        }
    }

    /// `place` is where the first pixel of an image would be, at the block's first column.
    unsafe fn block_into(
        &self,
        values: &Values,
        lines: Range<usize>,
        cols: &Range<usize>,
        ld: usize,
        place: &dyn Fn(usize) -> *mut f32,
    ) {
        let (nr, all) = (panel_width(self.plan.isa), self.plan.pixels());
        let tiles = lines.start * self.across..lines.end * self.across;
        let count = tiles.len().div_ceil(tile_rows(self.plan.isa));
        // SAFETY: the caller's promise; the scratch holds a panel of each product for the rows of a tile of registers.
        unsafe {
            scratch::with(PRODUCTS * MAX_MR * nr, |sums| {
                for col in (cols.start..cols.end).step_by(nr) {
                    let width = (cols.end - col).min(nr);
                    for i in 0..count {
                        let rows = part(tiles.len(), count, i);
                        let rows = tiles.start + rows.start..tiles.start + rows.end;
                        self.multiply(values, &rows, col, width, sums);
                        for (n, tile) in rows.enumerate() {
                            let image = tile / self.across / self.down;
                            let to = place(image).wrapping_add(col - cols.start);
                            self.spread(tile, col, width, sums.wrapping_add(n * nr), to, ld);
                        }
                    }
                }
            });
            let Some(hook) = &self.epilogue.hook else { return };
            let pixels = self.pixel(lines.start)..self.pixel(lines.end);
            for image in lines.start / self.down..=(lines.end - 1) / self.down {
                let row = |pixel: usize| pixel.clamp(image * all, (image + 1) * all) - image * all;
                let (row0, row1) = (row(pixels.start), row(pixels.end));
                let ptr = place(image).wrapping_add(row0 * ld);
                let (col0, col1) = (cols.start, cols.end);
                hook.call(&EpilogueBlock { batch: image, row0, row1, col0, col1, ptr, row_stride: ld });
            }
        }
    }

    /// The products of some tiles, no more than fit a tile of registers, with the columns of a panel.
    unsafe fn multiply(
        &self,
        values: &Values,
        tiles: &Range<usize>,
        col: usize,
        width: usize,
        sums: *mut f32,
    ) {
        let (nr, c) = (panel_width(self.plan.isa), self.plan.shape.in_channels);
        let first = tiles.start - values.first * self.across;
        let kernel = match self.few {
            true => tile_fn(self.plan.isa, tiles.len(), width, false),
            false => chain_fn(self.plan.isa, tiles.len(), width),
        };
        for p in 0..PRODUCTS {
            let row = |i: usize| {
                let tile = first + i.min(tiles.len() - 1);
                values.buf.wrapping_add((p * values.tiles + tile) * values.ld).cast_const()
            };
            let tile = Tile {
                rows: std::array::from_fn(row),
                valid: [0; MAX_MR],
                taps: &0,
                tap_count: 1,
                first_tap: 0,
                zero: values.buf,
                kc: c,
                b: self.weights.panels(col / nr).wrapping_add(p * c * nr),
                to: Target {
                    c: sums.wrapping_add(p * MAX_MR * nr),
                    ldc: nr,
                    cols: if width * 2 > nr { nr } else { nr / 2 },
                    accumulate: false,
                    finish: None,
                },
            };
            // SAFETY: the tile lies inside of the values, the weights and the scratch, whose columns are those of a panel.
            unsafe { kernel(&tile) };
        }
    }

    /// The output of one tile in the columns of a panel. `to`: the image's first pixel.
    unsafe fn spread(
        &self,
        tile: usize,
        col: usize,
        width: usize,
        sums: *const f32,
        to: *mut f32,
        ld: usize,
    ) {
        let [_, oh, ow] = self.plan.out;
        let line = tile / self.across;
        let (image, y, x) = (line / self.down, line % self.down * SIDE, tile % self.across * SIDE);
        let e = self.epilogue;
        let at = |s: Option<&[f32]>| s.map_or(std::ptr::null(), |s| s[col..].as_ptr());
        let pixel = y * ow + x;
        let residual = |r: crate::micro::Residual| {
            r.ptr.wrapping_add(image * r.batch_stride + pixel * r.row_stride + col)
        };
        let work = Spread {
            sums,
            apart: MAX_MR * panel_width(self.plan.isa),
            to: to.wrapping_add(pixel * ld),
            ld,
            down: ow,
            rows: (oh - y).min(SIDE),
            columns: (ow - x).min(SIDE),
            width,
            finish: Finish {
                scale: at(e.scale),
                shift: at(e.shift),
                residual: e.residual.map_or(std::ptr::null(), residual),
                residual_stride: e.residual.map_or(0, |r| r.row_stride),
                clamp: e.activation.bounds(),
            },
        };
        // SAFETY: the caller's promise; the tile's pixels are inside of the image.
        unsafe { spread(self.plan.isa, &work) };
    }
}
