//! Convolutions of few input channels in 16 bits by matrix cores: the first layers of networks for images, volumes and sounds. The inner
//! dimension of the product, window points by channels, is too short and too uneven for tiles whose threads copy it from memory: a block
//! instead copies the patch of the input that its results see to shared memory, with the channels of a point filled up with zeros to four or
//! eight, and its threads gather fragments of the left operand from there, each tap of the window one load. Weights stay in shared memory
//! while the block goes from patch to patch.
//!
//! Here: which convolutions qualify and which shapes are tried. The text of the kernels is in `few_inputs_text`. Not here: few output
//! channels (`few_outputs`), groups (`depthwise`), and the gradients to input and weight, which are convolutions of many channels.

use kernel_ir::{Conv, Program};

use crate::conv::depthwise::{div_ceil, round_up};
use crate::conv::few_inputs_text;
use crate::conv::patch::{COLS, DEPTH, Patched, ROWS, Shape, WARPS, WAVE, rounded, sum};
use crate::product::tile::hint;
use crate::{GenError, Target, Variant};

/// Most input channels, and channels of a point of the patch: those of few are filled up to half of it.
const FEW: i64 = 8;
/// Most points of a window: beyond, the weights do not fit beside the patch.
const MAX_TAPS: i64 = 512;
/// Output channels of a block at most.
const COLUMNS: i64 = 64;
/// Floats between the sums of adjacent points in shared memory, which keep stores clear of each other's banks.
pub(crate) const SUMS_GAP: i64 = 4;
/// Bytes of shared memory of the blocks of a multiprocessor.
const SHARED: i64 = 200 * 1024;
/// Threads of a multiprocessor with as few output channels as leave them half of the registers, and with more.
const MANY_THREADS: i64 = 1024;
const FEW_THREADS: i64 = 512;
/// Output channels up to which a thread's sums leave it half of its registers.
const NARROW: i64 = 32;

/// A convolution of few input channels.
pub(crate) struct Few<'a> {
    pub(crate) of: Patched<'a>,
    pub(crate) inputs: i64,
    /// Output channels of a block.
    pub(crate) columns: i64,
    /// Blocks at most that share a set of output channels.
    pub(crate) most: i64,
}

impl<'a> Few<'a> {
    fn of(program: &'a Program, k: &'a Conv, target: &Target) -> Option<Few<'a>> {
        let of = Patched::of(program, k, target)?;
        let inputs = k.input.sizes[1].as_const().filter(|n| (1..=FEW).contains(n))?;
        let columns = round_up(hint(program, &k.epilogue.ranges[1]).clamp(1, COLUMNS), COLS);
        let mut few = Few { of, inputs, columns, most: 1 };
        few.most = i64::from(target.multiprocessors.max(1)) * few.beside();
        // A window of one point is a product.
        let fits = (2..=MAX_TAPS).contains(&few.of.taps()) && few_inputs_text::has_vectors(&few);
        fits.then_some(few)
    }

    /// Channels of a point of the patch.
    pub(crate) fn channels(&self) -> i64 {
        if self.inputs > FEW / 2 { FEW } else { FEW / 2 }
    }

    /// Steps of the inner dimension.
    pub(crate) fn steps(&self) -> i64 {
        div_ceil(self.of.taps() * self.channels(), DEPTH)
    }

    /// Blocks that run beside one another on a multiprocessor.
    pub(crate) fn beside(&self) -> i64 {
        (if self.columns <= NARROW { MANY_THREADS } else { FEW_THREADS }) / (WARPS * WAVE)
    }

    /// Bytes of the weights, of the patch, of the sums of one fragment of each warp, and of the places of the window's points.
    pub(crate) fn parts(&self, shape: &Shape) -> [i64; 4] {
        let weights = self.steps() * DEPTH * self.columns * 2;
        let patch = shape.points(&self.of).saturating_mul(self.channels() * 2);
        let sums = WARPS * ROWS * (self.columns + SUMS_GAP) * 4;
        let places = self.steps() * DEPTH / self.channels() * 4;
        rounded([weights, patch, sums, places])
    }

    /// The shapes, best first.
    fn shapes(&self, target: &Target) -> Vec<Shape> {
        let most = SHARED.min(i64::from(target.lds));
        self.of.shapes(|shape| sum(&self.parts(shape)).saturating_mul(self.beside()) <= most)
    }
}

/// Whether there are candidates; they are then preferred to tiles and to a library's.
pub(crate) fn supports(program: &Program, k: &Conv, target: &Target) -> bool {
    Few::of(program, k, target).is_some_and(|few| !few.shapes(target).is_empty())
}

/// Returns the candidates, best first by rule; none where the convolution does not qualify.
pub(crate) fn variants(program: &Program, k: &Conv, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(few) = Few::of(program, k, target) else { return Ok(Vec::new()) };
    few.shapes(target).into_iter().map(|shape| few_inputs_text::variant(&few, shape)).collect()
}
