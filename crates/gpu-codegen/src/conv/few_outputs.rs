//! Convolutions to few output channels in 16 bits by matrix cores: the last layers of networks that make images, masks and flows. A tile of a
//! product has 32 columns at least, of which three or four are used; here a fragment of eight columns is all there is. A block copies the
//! patch of the input that its results see to shared memory, some channels at a time, and multiplies it by the window's points one after
//! another, so that each element is read from memory once for all of them.
//!
//! Here: which convolutions qualify and which shapes are tried. The text of the kernels is in `few_outputs_text`. Not here: few input
//! channels (`few_inputs`), and groups (`depthwise`).

use ir_core::SymExpr;
use kernel_ir::{Conv, Program};

use crate::conv::depthwise::round_up;
use crate::conv::few_inputs::{COLS, DEPTH, EACH, Line, ROWS, WARPS, WAVE, lines};
use crate::conv::few_outputs_text;
use crate::product::tile::{hint, is_multiple};
use crate::{GenError, Target, Variant};

/// Channels of a vector that a thread copies.
pub(crate) const VECTOR: i64 = 8;
/// Channels that are copied at a time: the most that the input's are a multiple of.
const CHUNKS: [i64; 3] = [64, 32, 16];
/// Elements between the channels of adjacent points in shared memory, so that rows of a fragment lie in different banks.
const GAP: i64 = 8;
/// Most points of a window.
const MAX_TAPS: i64 = 128;
/// Rows of a block's patch of results, of as many fragments each as make up a block.
const SHAPES: [i64; 5] = [8, 4, 16, 2, 1];
/// Shapes that are tried.
const MAX_CANDIDATES: usize = 2;
/// Bytes of shared memory of a block, so that two and more run beside one another.
const SHARED: i64 = 100 * 1024;
/// Blocks of a multiprocessor that share out the patches.
const BESIDE: i64 = 3;

/// A convolution to few output channels.
pub(crate) struct Few<'a> {
    pub(crate) program: &'a Program,
    pub(crate) k: &'a Conv,
    pub(crate) inputs: i64,
    pub(crate) outputs: i64,
    /// Channels that are copied at a time.
    pub(crate) chunk: i64,
    /// Slices, rows and columns.
    pub(crate) lines: [Line; 3],
}

/// The shape of a kernel: rows of results, and fragments of sixteen columns in each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Form {
    pub(crate) rows: i64,
    pub(crate) fragments: i64,
    /// Blocks at most.
    pub(crate) most: i64,
}

impl<'a> Few<'a> {
    pub(crate) fn of(program: &'a Program, k: &'a Conv, target: &Target) -> Option<Few<'a>> {
        let lines = lines(program, k, target).filter(|_| target.features.cp_async)?;
        let outputs = k.epilogue.ranges[1].as_const().filter(|n| (1..=COLS).contains(n))?;
        let inputs = k.input.sizes[1].as_const()?;
        let chunk = CHUNKS.into_iter().find(|n| inputs % n == 0)?;
        // Channels are neighbours, and every point begins at a multiple of a vector.
        let x = &k.input;
        let moving = (0..x.sizes.len()).filter(|&d| d != 1 && x.sizes[d] != SymExpr::ONE);
        let vectors = x.strides[1] == SymExpr::ONE
            && is_multiple(&x.offset, VECTOR)
            && moving.into_iter().all(|d| is_multiple(&x.strides[d], VECTOR));
        let few = Few { program, k, inputs, outputs, chunk, lines };
        (vectors && (2..=MAX_TAPS).contains(&few.taps())).then_some(few)
    }

    /// Points of the window.
    pub(crate) fn taps(&self) -> i64 {
        self.lines.iter().map(|line| line.window).product()
    }

    /// Elements between adjacent points of the patch.
    pub(crate) fn pitch(&self) -> i64 {
        self.chunk + GAP
    }

    /// The sizes of the input and of the result along a spatial dimension.
    pub(crate) fn sizes(&self, line: usize) -> [SymExpr; 2] {
        match self.lines[line].dim {
            Some(d) => [self.k.input.sizes[d].clone(), self.k.epilogue.ranges[d].clone()],
            None => [SymExpr::ONE, SymExpr::ONE],
        }
    }

    /// The shapes, best first: those that compute the fewest results that are none, and of these the ones of the smallest patch.
    fn forms(&self, target: &Target) -> Vec<Form> {
        let [high, wide] = [1, 2].map(|line| hint(self.program, &self.sizes(line)[1]));
        let mut found: Vec<(i64, i64, Form)> = Vec::new();
        for rows in SHAPES {
            let most = i64::from(target.multiprocessors.max(1)) * BESIDE;
            let form = Form { rows, fragments: WARPS * EACH / rows, most };
            let computed = round_up(high, rows) * round_up(wide, form.fragments * ROWS);
            if form.shared(self) <= SHARED.min(i64::from(target.lds)) {
                found.push((computed, form.patch(self).iter().product(), form));
            }
        }
        found.sort_by_key(|(computed, patch, _)| (*computed, *patch));
        found.truncate(MAX_CANDIDATES);
        found.into_iter().map(|(.., form)| form).collect()
    }
}

impl Form {
    pub(crate) fn threads(&self) -> i64 {
        WARPS * WAVE
    }

    /// Slices, rows and columns of the input that a block's results see.
    pub(crate) fn patch(&self, of: &Few<'_>) -> [i64; 3] {
        [of.lines[0].reach(1), of.lines[1].reach(self.rows), of.lines[2].reach(self.fragments * ROWS)]
    }

    /// Bytes of the weights, of a patch and of the sums.
    pub(crate) fn parts(&self, of: &Few<'_>) -> [i64; 3] {
        let weights = of.taps() * of.inputs * COLS * 2;
        let patch = self.patch(of).iter().product::<i64>() * of.pitch() * 2;
        let sums = COLS * (self.threads() + DEPTH) * 4;
        [weights, patch, sums].map(|bytes| round_up(bytes, 128))
    }

    pub(crate) fn shared(&self, of: &Few<'_>) -> i64 {
        self.parts(of).iter().sum()
    }

    /// The name in tables.
    pub(crate) fn name(&self) -> String {
        format!("few_outputs_{}x{}", self.rows, self.fragments * ROWS)
    }
}

/// Whether there are candidates; they are then preferred to tiles and to a library's.
pub(crate) fn supports(program: &Program, k: &Conv, target: &Target) -> bool {
    Few::of(program, k, target).is_some_and(|few| !few.forms(target).is_empty())
}

/// Returns the candidates, best first by rule; none where the convolution does not qualify.
pub(crate) fn variants(program: &Program, k: &Conv, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(few) = Few::of(program, k, target) else { return Ok(Vec::new()) };
    few.forms(target).into_iter().map(|form| few_outputs_text::variant(&few, form)).collect()
}
