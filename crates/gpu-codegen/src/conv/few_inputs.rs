//! Convolutions of few input channels in 16 bits by matrix cores: the first layers of networks for images, volumes and sounds. The inner
//! dimension of the product, window points by channels, is too short and too uneven for tiles whose threads copy it from memory: a block
//! instead copies the patch of the input that its results see to shared memory, with the channels of a point filled up with zeros to four or
//! eight, and its threads gather fragments of the left operand from there, each tap of the window one load. Weights stay in shared memory
//! while the block goes from patch to patch.
//!
//! Here: which convolutions qualify and which shapes are tried. The text of the kernels is in `few_inputs_text`. Not here: few output
//! channels (`few_outputs`), groups (`depthwise`), and the gradients to input and weight, which are convolutions of many channels.

use ir_core::{DType, SymExpr};
use kernel_ir::{Conv, Program};

use crate::conv::depthwise::{div_ceil, round_up};
use crate::conv::few_inputs_text;
use crate::product::tile::hint;
use crate::{GenError, Target, Variant};

/// Most input channels, and channels of a point of the patch: those of few are filled up to half of it.
const FEW: i64 = 8;
/// Most points of a window: beyond, the weights do not fit beside the patch.
const MAX_TAPS: i64 = 512;
/// Output channels of a block at most.
const COLUMNS: i64 = 64;
/// Rows and columns of a fragment's product, and inner points.
pub(crate) const ROWS: i64 = 16;
pub(crate) const COLS: i64 = 8;
pub(crate) const DEPTH: i64 = 16;
/// Warps of a block, and fragments of rows of each.
pub(crate) const WARPS: i64 = 8;
pub(crate) const EACH: i64 = 2;
pub(crate) const WAVE: i64 = 32;
/// Floats between the sums of adjacent points in shared memory, which keep stores clear of each other's banks.
pub(crate) const SUMS_GAP: i64 = 4;
/// Rows of a block's patch of results, of as many fragments each as make up a block.
const SHAPES: [i64; 5] = [8, 4, 16, 2, 1];
/// Shapes that are tried.
const MAX_CANDIDATES: usize = 2;
/// Bytes of shared memory of the blocks of a multiprocessor.
const SHARED: i64 = 200 * 1024;
/// Threads of a multiprocessor with as few output channels as leave them half of the registers, and with more.
const MANY_THREADS: i64 = 1024;
const FEW_THREADS: i64 = 512;
/// Output channels up to which a thread's sums leave it half of its registers.
const NARROW: i64 = 32;

/// A spatial dimension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Its number among the dimensions of input and result; `None` for one that is missing.
    pub(crate) dim: Option<usize>,
    pub(crate) window: i64,
    pub(crate) stride: i64,
    pub(crate) dilation: i64,
    /// Zeros before the first element (padding).
    pub(crate) before: i64,
}

impl Line {
    /// Elements of the input that so many adjacent results see.
    pub(crate) fn reach(&self, results: i64) -> i64 {
        (results - 1) * self.stride + (self.window - 1) * self.dilation + 1
    }
}

/// The spatial dimensions of a plain convolution that matrix cores multiply in 16 bits: slices, rows and columns.
pub(crate) fn lines(program: &Program, k: &Conv, target: &Target) -> Option<[Line; 3]> {
    let dtype = |buf| program.buffers[buf].dtype;
    let input = dtype(k.input.buf);
    let narrow = matches!(input, DType::F16 | DType::BF16) && dtype(k.weight.buf) == input;
    let spatial = k.stride.len();
    let cores = target.features.mma && !target.dialect.through_registers;
    if !cores || !narrow || k.acc != DType::F32 || k.groups != 1 || k.transposed || !(1..=3).contains(&spatial) {
        return None;
    }
    let mut lines = [Line { dim: None, window: 1, stride: 1, dilation: 1, before: 0 }; 3];
    for d in 0..spatial {
        let window = k.weight.sizes[d + 2].as_const().filter(|n| *n >= 1)?;
        let (stride, dilation, before) = (k.stride[d], k.dilation[d], k.padding[d].0);
        lines[3 - spatial + d] = Line { dim: Some(d + 2), window, stride, dilation, before };
    }
    Some(lines)
}

/// A convolution of few input channels.
pub(crate) struct Few<'a> {
    pub(crate) program: &'a Program,
    pub(crate) k: &'a Conv,
    pub(crate) inputs: i64,
    /// Slices, rows and columns.
    pub(crate) lines: [Line; 3],
}

/// The shape of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Form {
    /// Rows of results, and fragments of sixteen columns in each.
    pub(crate) rows: i64,
    pub(crate) fragments: i64,
    /// Output channels.
    pub(crate) columns: i64,
    /// Blocks at most that share a set of output channels.
    pub(crate) most: i64,
}

impl<'a> Few<'a> {
    pub(crate) fn of(program: &'a Program, k: &'a Conv, target: &Target) -> Option<Few<'a>> {
        let lines = lines(program, k, target)?;
        let inputs = k.input.sizes[1].as_const().filter(|n| (1..=FEW).contains(n))?;
        let few = Few { program, k, inputs, lines };
        // A window of one point is a product.
        ((2..=MAX_TAPS).contains(&few.taps()) && few_inputs_text::has_vectors(&few)).then_some(few)
    }

    /// Points of the window.
    pub(crate) fn taps(&self) -> i64 {
        self.lines.iter().map(|line| line.window).product()
    }

    /// Channels of a point of the patch.
    pub(crate) fn channels(&self) -> i64 {
        if self.inputs > FEW / 2 { FEW } else { FEW / 2 }
    }

    /// Steps of the inner dimension.
    pub(crate) fn steps(&self) -> i64 {
        div_ceil(self.taps() * self.channels(), DEPTH)
    }

    /// The sizes of the input and of the result along a spatial dimension.
    pub(crate) fn sizes(&self, line: usize) -> [SymExpr; 2] {
        match self.lines[line].dim {
            Some(d) => [self.k.input.sizes[d].clone(), self.k.epilogue.ranges[d].clone()],
            None => [SymExpr::ONE, SymExpr::ONE],
        }
    }

    fn hinted(&self, line: usize) -> i64 {
        hint(self.program, &self.sizes(line)[1])
    }

    /// The shapes, best first: those that compute the fewest results that are none, and of these the ones of the smallest patch.
    fn forms(&self, target: &Target) -> Vec<Form> {
        let outputs = hint(self.program, &self.k.epilogue.ranges[1]);
        let columns = round_up(outputs, COLS).min(COLUMNS);
        let [high, wide] = [1, 2].map(|line| self.hinted(line));
        let multiprocessors = i64::from(target.multiprocessors.max(1));
        let mut found: Vec<(i64, i64, Form)> = Vec::new();
        for rows in SHAPES {
            let mut form = Form { rows, fragments: WARPS * EACH / rows, columns, most: 1 };
            form.most = multiprocessors * form.beside();
            let across = form.fragments * ROWS;
            let computed = round_up(high, rows) * round_up(wide, across);
            if form.shared(self) * form.beside() <= SHARED.min(i64::from(target.lds)) {
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

    /// Blocks that run beside one another on a multiprocessor.
    pub(crate) fn beside(&self) -> i64 {
        (if self.columns <= NARROW { MANY_THREADS } else { FEW_THREADS }) / self.threads()
    }

    /// Slices, rows and columns of the input that a block's results see.
    pub(crate) fn patch(&self, of: &Few<'_>) -> [i64; 3] {
        [of.lines[0].reach(1), of.lines[1].reach(self.rows), of.lines[2].reach(self.fragments * ROWS)]
    }

    /// Bytes of the weights, of the patch, of the sums of one fragment of each warp, and of the places of the window's points.
    pub(crate) fn parts(&self, of: &Few<'_>) -> [i64; 4] {
        let weights = of.steps() * DEPTH * self.columns * 2;
        let patch = self.patch(of).iter().product::<i64>() * of.channels() * 2;
        let sums = WARPS * ROWS * (self.columns + SUMS_GAP) * 4;
        let places = of.steps() * DEPTH / of.channels() * 4;
        [weights, patch, sums, places].map(|bytes| round_up(bytes, 128))
    }

    pub(crate) fn shared(&self, of: &Few<'_>) -> i64 {
        self.parts(of).iter().sum()
    }

    /// The name in tables.
    pub(crate) fn name(&self) -> String {
        format!("few_mma_{}x{}x{}", self.rows, self.fragments * ROWS, self.columns)
    }
}

/// Whether there are candidates; they are then preferred to tiles and to a library's.
pub(crate) fn supports(program: &Program, k: &Conv, target: &Target) -> bool {
    Few::of(program, k, target).is_some_and(|few| !few.forms(target).is_empty())
}

/// Returns the candidates, best first by rule; none where the convolution does not qualify.
pub(crate) fn variants(program: &Program, k: &Conv, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(few) = Few::of(program, k, target) else { return Ok(Vec::new()) };
    few.forms(target).into_iter().map(|form| few_inputs_text::variant(&few, form)).collect()
}
