//! Convolutions to few output channels in 16 bits by matrix cores: the last layers of networks that make images, masks and flows. A tile of a
//! product has 32 columns at least, of which three or four are used; here a fragment of eight columns is all there is. A block copies the
//! patch of the input that its results see to shared memory, some channels at a time, and multiplies it by the window's points one after
//! another, so that each element is read from memory once for all of them.
//!
//! Here: which convolutions qualify and which shapes are tried. The text of the kernels is in `few_outputs_text`. Not here: few input
//! channels (`few_inputs`), and groups (`depthwise`).

use ir_core::SymExpr;
use kernel_ir::{Conv, Program};

use crate::conv::few_outputs_text;
use crate::conv::patch::{COLS, DEPTH, Patched, Shape, WARPS, WAVE, rounded, sum};
use crate::product::tile::is_multiple;
use crate::{GenError, Target, Variant};

/// Channels of a vector that a thread copies.
pub(crate) const VECTOR: i64 = 8;
/// Channels that are copied at a time: the most that the input's are a multiple of.
const CHUNKS: [i64; 3] = [64, 32, 16];
/// Elements between the channels of adjacent points in shared memory, so that rows of a fragment lie in different banks.
const GAP: i64 = 8;
/// Most points of a window.
const MAX_TAPS: i64 = 128;
/// Bytes of shared memory of a block, so that two and more run beside one another.
const SHARED: i64 = 100 * 1024;
/// Blocks of a multiprocessor that share out the patches.
const BESIDE: i64 = 3;

/// A convolution to few output channels.
pub(crate) struct Few<'a> {
    pub(crate) of: Patched<'a>,
    pub(crate) inputs: i64,
    pub(crate) outputs: i64,
    /// Channels that are copied at a time.
    pub(crate) chunk: i64,
    /// Blocks at most.
    pub(crate) most: i64,
}

impl<'a> Few<'a> {
    fn of(program: &'a Program, k: &'a Conv, target: &Target) -> Option<Few<'a>> {
        let of = Patched::of(program, k, target).filter(|_| target.features.cp_async)?;
        let outputs = k.epilogue.ranges[1].as_const().filter(|n| (1..=COLS).contains(n))?;
        let inputs = k.input.sizes[1].as_const().filter(|n| *n > 0)?;
        let chunk = CHUNKS.into_iter().find(|n| inputs % n == 0)?;
        // Channels are neighbours, and every point begins at a multiple of a vector.
        let x = &k.input;
        let moving = (0..x.sizes.len()).filter(|&d| d != 1 && x.sizes[d] != SymExpr::ONE);
        let vectors = x.strides[1] == SymExpr::ONE
            && is_multiple(&x.offset, VECTOR)
            && moving.into_iter().all(|d| is_multiple(&x.strides[d], VECTOR));
        let fits = vectors && (2..=MAX_TAPS).contains(&of.taps());
        let most = i64::from(target.multiprocessors.max(1)) * BESIDE;
        fits.then_some(Few { of, inputs, outputs, chunk, most })
    }

    /// Elements between adjacent points of the patch.
    pub(crate) fn pitch(&self) -> i64 {
        self.chunk + GAP
    }

    /// Bytes of the weights, of a patch and of the sums.
    pub(crate) fn parts(&self, shape: &Shape) -> [i64; 3] {
        let weights = self.inputs.saturating_mul(self.of.taps() * COLS * 2);
        let patch = shape.points(&self.of).saturating_mul(self.pitch() * 2);
        let sums = COLS * (WARPS * WAVE + DEPTH) * 4;
        rounded([weights, patch, sums])
    }

    /// The shapes, best first.
    fn shapes(&self, target: &Target) -> Vec<Shape> {
        self.of.shapes(|shape| sum(&self.parts(shape)) <= SHARED.min(i64::from(target.lds)))
    }
}

/// Whether there are candidates; they are then preferred to tiles and to a library's.
pub(crate) fn supports(program: &Program, k: &Conv, target: &Target) -> bool {
    Few::of(program, k, target).is_some_and(|few| !few.shapes(target).is_empty())
}

/// Returns the candidates, best first by rule; none where the convolution does not qualify.
pub(crate) fn variants(program: &Program, k: &Conv, target: &Target) -> Result<Vec<Variant>, GenError> {
    let Some(few) = Few::of(program, k, target) else { return Ok(Vec::new()) };
    few.shapes(target).into_iter().map(|shape| few_outputs_text::variant(&few, shape)).collect()
}
