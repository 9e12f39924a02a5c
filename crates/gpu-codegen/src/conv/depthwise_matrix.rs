//! Depthwise convolutions of 16-bit floats by matrix cores. For one channel and one row of the window, eight adjacent
//! results are a product: the columns of the input that they need, times a band matrix whose column `n` holds the window's
//! row from point `n` on. The 16 rows of a fragment are such pieces of different places: of columns, of bands of
//! rows, of images. A warp walks down the rows of all of them at once, so that a fragment of the input is read once and
//! multiplied by all rows of the window, into the sums of as many results.
//!
//! Here: which convolutions qualify and which shapes are tried. The text of the kernels is in `depthwise_matrix_text`. Not
//! here: plain arithmetic (`depthwise`), gradients to weights (`depthwise_weight`).

use std::collections::BTreeSet;

use ir_core::DType;

use crate::conv::depthwise::{Grouped, Line, div_ceil, round_up};
use crate::conv::depthwise_matrix_text;
use crate::product::tile::is_multiple;
use crate::{GenError, Target, Variant};

/// Pieces in a fragment, and results in a piece; columns of the input in half of a fragment.
pub(crate) const PIECES: i64 = 16;
pub(crate) const COLUMNS: i64 = 8;
/// Channels of a vector of 16 bytes.
pub(crate) const VECTOR: i64 = 8;
/// Threads per warp.
pub(crate) const WAVE: i64 = 32;
/// Warps of a multiprocessor, and those per block that are tried.
const RESIDENT: i64 = 16;
const WARPS: [i64; 3] = [8, 16, 4];
/// Turns whose rows of the input are on their way or in use: the first for which there is memory.
const DEPTHS: [i64; 3] = [8, 4, 2];
/// Registers of a thread for the sums and band matrices of its warp's channels: what is aimed at, and the most.
const REGISTERS: i64 = 96;
const MAX_REGISTERS: i64 = 150;
/// Most bytes of shared memory of the blocks of a multiprocessor.
const MAX_SHARED: i64 = 220 * 1024;
/// Points of a window from which it pays: below, a band matrix is mostly zeros. Measured on an H200 with batches of 64: 3×3
/// takes 1.0 to 1.9 of the time of plain arithmetic, 5×5 and 7×7 0.6 to 0.9 (5×5 on 7×7 pixels 1.4), strides of 2 1.4 to 1.6,
/// and 5×5 with rows two apart, whose sums are of twice as many rows at a time, 1.3.
const MIN_TAPS: i64 = 25;
/// Multiplications of the whole convolution from which these kernels come first: each block has to lay out its weights and
/// fill its ring before it computes.
const MANY: i64 = 110_000_000;
/// Floats between the sums of adjacent points in shared memory, which keep stores clear of each other's banks.
pub(crate) const SUMS_GAP: i64 = 4;
/// Elements between two vectors of channels that are turned, for the same reason.
pub(crate) const VECTOR_GAP: i64 = 32;
/// Maximum number of candidates.
const MAX_CANDIDATES: usize = 3;

/// The shape of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Form {
    /// Images, bands of rows and pieces of columns in a fragment.
    pub(crate) images: i64,
    pub(crate) bands: i64,
    pub(crate) tiles: i64,
    /// Rows of a band.
    pub(crate) high: i64,
    /// Channels of a warp, and warps.
    pub(crate) each: i64,
    pub(crate) warps: i64,
    /// Turns whose rows are on their way or in use.
    pub(crate) depth: i64,
    /// Maximum number of blocks that share a set of channels.
    pub(crate) most: i64,
}

/// A depthwise convolution that matrix cores compute.
pub(crate) struct Banded<'a> {
    pub(crate) of: &'a Grouped<'a>,
    /// Those of a plain convolution; a transposed one with stride 1 is one with its window turned round.
    pub(crate) lines: [Line; 2],
}

impl<'a> Banded<'a> {
    pub(crate) fn of(of: &'a Grouped<'a>, target: &Target) -> Option<Banded<'a>> {
        let dtype = |buf| of.program.buffers[buf].dtype;
        let (k, input) = (of.k, dtype(of.k.input.buf));
        let narrow = matches!(input, DType::F16 | DType::BF16) && dtype(k.weight.buf) == input;
        let depthwise = of.inputs == 1 && of.outputs == 1 && of.depth.is_none();
        let vectors = is_multiple(&k.epilogue.ranges[1], VECTOR) && of.steps_are_multiples(1, VECTOR);
        let features = target.features;
        if !features.mma || !features.cp_async || !narrow || !depthwise || !vectors {
            return None;
        }
        if of.lines.iter().any(|l| l.stride > 1) || of.lines[0].dilation > 1 || of.taps() < MIN_TAPS {
            return None;
        }
        let lines = of.lines.map(|l| {
            let turned = (l.window - 1) * l.dilation - l.before;
            Line { before: if k.transposed { turned } else { l.before }, ..l }
        });
        Some(Banded { of, lines })
    }

    /// Steps of 16 columns of the input in which a band matrix lies.
    pub(crate) fn steps(&self) -> i64 {
        let [_, across] = self.lines;
        div_ceil(COLUMNS + (across.window - 1) * across.dilation, 2 * COLUMNS)
    }

    /// Registers for the sums and band matrices of a channel: the sums of as many rows are open at a time as the window has.
    fn registers(&self) -> i64 {
        let high = self.lines[0].window;
        4 * high + 2 * self.steps() * high + 4 * self.steps()
    }

    /// The shapes, best first by estimate.
    fn forms(&self, target: &Target) -> Vec<Form> {
        let mut found: Vec<(f64, Form)> = Vec::new();
        for form in self.shapes() {
            let (cost, most) = self.estimate(&form, target);
            let (limit, form) = (MAX_SHARED.min(i64::from(target.lds)), Form { most, ..form });
            let deep = DEPTHS.into_iter().map(|depth| Form { depth, ..form });
            let Some(form) = deep.into_iter().find(|f| f.shared(self) * f.beside() <= limit) else {
                continue;
            };
            if !found.iter().any(|(_, f)| *f == form) {
                found.push((cost, form));
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.truncate(MAX_CANDIDATES);
        found.into_iter().map(|(_, form)| form).collect()
    }

    /// All shapes whose registers suffice: any number of bands over the rows, shared out over fragments and patches.
    fn shapes(&self) -> Vec<Form> {
        let fits = |limit: i64| [8, 4, 2].into_iter().find(|n| n * self.registers() <= limit);
        let Some(each) = fits(REGISTERS).or_else(|| fits(MAX_REGISTERS)) else { return Vec::new() };
        let [high, wide] = [0, 1].map(|line| self.of.hinted(&self.of.sizes(line)[1]));
        let all = self.of.hinted(&self.of.k.epilogue.ranges[0]);
        let across = div_ceil(wide, COLUMNS);
        let tiles = div_ceil(across, div_ceil(across, PIECES));
        let rest = PIECES / tiles;
        let mut found = Vec::new();
        for count in (1..=high.min(4 * PIECES)).filter(|n| div_ceil(high, div_ceil(high, *n)) == *n) {
            for bands in [1, 2, 4, 8, rest].into_iter().filter(|n| *n <= rest.min(count)) {
                let (images, high) = ((rest / bands).min(all), div_ceil(high, count));
                let form = Form { images, bands, tiles, high, each, warps: 0, depth: 0, most: 1 };
                found.extend(WARPS.map(|warps| Form { warps, ..form }));
            }
        }
        found
    }

    /// Estimated cycles, and the number of blocks for each set of channels. Measured on an H200: a block takes some 7,000 cycles
    /// until it computes, a turn 600 where eight warps run on a multiprocessor and 1,200 where sixteen do.
    fn estimate(&self, form: &Form, target: &Target) -> (f64, i64) {
        let [high, wide] = [0, 1].map(|line| self.of.hinted(&self.of.sizes(line)[1]));
        let ranges = &self.of.k.epilogue.ranges;
        let groups = div_ceil(self.of.hinted(&ranges[1]), form.channels());
        let patches = div_ceil(self.of.hinted(&ranges[0]), form.images)
            * div_ceil(div_ceil(high, form.high), form.bands)
            * div_ceil(div_ceil(wide, COLUMNS), form.tiles);
        let multiprocessors = i64::from(target.multiprocessors.max(1));
        let slots = multiprocessors * form.beside();
        let most = (slots / groups).clamp(1, patches);
        let turns = div_ceil(patches, most) * (form.high + self.lines[0].window - 1);
        let blocks = groups * most;
        let warps = div_ceil(blocks, multiprocessors).min(form.beside()) * form.warps;
        // Eight channels are half a sector of memory.
        let sectors = if form.channels() > VECTOR { 1.0 } else { 1.5 };
        let turn = sectors * (75 * warps).max(600) as f64;
        (div_ceil(blocks, slots) as f64 * (7000.0 + turns as f64 * turn), most)
    }
}

/// Whether there are candidates.
pub(crate) fn supports(of: &Grouped<'_>, target: &Target) -> bool {
    Banded::of(of, target)
        .is_some_and(|b| depthwise_matrix_text::has_vectors(&b) && !b.forms(target).is_empty())
}

/// Whether the convolution is so large that these kernels come before plain arithmetic.
pub(crate) fn come_first(of: &Grouped<'_>) -> bool {
    let results = of.k.epilogue.ranges.iter().fold(1, |n: i64, e| n.saturating_mul(of.hinted(e)));
    results.saturating_mul(of.taps()) >= MANY
}

/// Returns the candidates, best first by estimate; none where the convolution does not qualify.
pub(crate) fn variants(of: &Grouped<'_>, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(banded) = Banded::of(of, target) else { return Ok(Vec::new()) };
    let forms = banded.forms(target).into_iter();
    let made = forms.filter_map(|form| depthwise_matrix_text::variant(&banded, form).transpose());
    made.collect()
}

impl Form {
    /// Channels of a block.
    pub(crate) fn channels(&self) -> i64 {
        self.each * self.warps
    }

    pub(crate) fn threads(&self) -> i64 {
        self.warps * WAVE
    }

    /// Blocks that run beside one another on a multiprocessor: sixteen warps have 128 registers a thread.
    pub(crate) fn beside(&self) -> i64 {
        RESIDENT / self.warps
    }

    /// Columns of the input that a row of pieces needs.
    pub(crate) fn columns(&self, of: &Banded<'_>) -> i64 {
        COLUMNS * (self.tiles - 1 + 2 * of.steps())
    }

    /// Elements between two rows of a channel: the eight pieces that are read together shall lie in different banks, where
    /// that does not take more than twice the memory.
    pub(crate) fn pitch(&self, of: &Banded<'_>) -> i64 {
        let least = self.columns(of) / COLUMNS;
        let place = |pitch: i64, n: i64| n / self.tiles * pitch + n % self.tiles;
        let banks = |pitch: i64| (0..8).map(|n| place(pitch, n) % 8).collect::<BTreeSet<_>>().len();
        let found = (least..=2 * least).max_by_key(|&pitch| (banks(pitch), -pitch));
        found.unwrap_or(least) * COLUMNS
    }

    /// Elements of the rows of one turn, turned.
    pub(crate) fn turned(&self, of: &Banded<'_>) -> i64 {
        let plane = self.images * self.bands * self.pitch(of);
        self.channels() * plane + self.channels() / VECTOR * VECTOR_GAP
    }

    /// Sums that are stored at once.
    pub(crate) fn width(&self) -> i64 {
        self.each.min(4)
    }

    /// Elements of a row of the window between zeros, from which any column of a band matrix is read.
    pub(crate) fn band(&self, of: &Banded<'_>) -> i64 {
        round_up(COLUMNS + 2 * COLUMNS * of.steps(), 2)
    }

    /// Bytes of the input's rows as they come, of those that are turned, of the window and of the sums of one turn in shared
    /// memory.
    pub(crate) fn parts(&self, of: &Banded<'_>) -> [i64; 4] {
        let rows = self.depth * self.images * self.bands * self.columns(of) * self.channels() * 2;
        let window = self.channels() * of.lines[0].window * 2 * self.band(of);
        let sums = PIECES * (COLUMNS * (self.channels() + SUMS_GAP) + self.width());
        [rows, 2 * self.turned(of) * 2, window * 2, sums * 4].map(|bytes| round_up(bytes, 128))
    }

    /// Bytes of shared memory: sums are stored while those of the turn before are read.
    pub(crate) fn shared(&self, of: &Banded<'_>) -> i64 {
        let [rows, turned, window, sums] = self.parts(of);
        rows + turned + window + 2 * sums
    }

    /// The name in tables.
    pub(crate) fn name(&self) -> String {
        let Form { images, bands, tiles, high, .. } = self;
        format!("depthwise_mma_{images}x{bands}x{tiles}_{high}x{}", self.channels())
    }
}
