//! The plan of a convolution of given shape and strides: the rows of the product, their taps, and whether the input is
//! copied first. Computed once; `run` in the parent only follows it.

use super::input::Copy;
use super::sums::{self, Sums};
use super::winograd::{Winograd, weights_shape};
use super::{ConvShape, Strides5};
use crate::micro::depthwise::{Depthwise, taps_inside};
use crate::micro::driver::part;
use crate::micro::error::same;
use crate::micro::kernel::{panel_width, tile_rows};
use crate::micro::scratch::AlignedBuf;
use crate::micro::{Isa, MicroError, PackedB, Way};

/// With fewer input channels a run of k is too short; then a row of the kernel window is the run instead.
const FEW_CHANNELS: usize = 8;

/// Everything about a convolution that does not depend on its data. `Send + Sync`; create it once for a shape and strides.
pub struct ConvPlan {
    pub(crate) isa: Isa,
    pub(crate) shape: ConvShape,
    /// Output size.
    pub(crate) out: [usize; 3],
    pub(super) input: Strides5,
    pub(crate) output: Strides5,
    /// The pixel stride of the output if it is rows of channels, else none.
    pub(super) dense_rows: Option<usize>,
    pub(super) copy: Option<Copy>,
    pub(super) reads: Reads,
    /// For transformed weights, where the convolution has them.
    pub(super) winograd: Option<Winograd>,
    /// Groups that one product computes at once (see `merged`).
    pub(super) merge: usize,
    pub(super) run: Run,
    /// For weights that change, where sums of outer products take less time.
    pub(super) sums: Option<Sums>,
}

/// The operand of the kernels.
pub(super) enum Reads {
    Product(Read),
    Depthwise(Depthwise),
}

/// Rows and taps of the product, in the input or its copy.
pub(super) struct Read {
    /// Elements between images, and between groups.
    pub(super) image: isize,
    pub(super) group: isize,
    /// Set if all output pixels are at one stride in the input and there is one tap.
    pub(super) row_stride: Option<isize>,
    /// Otherwise the place of each output pixel's first tap ...
    pub(super) offsets: Vec<isize>,
    /// ... and a bit for each of its taps that is inside; empty if all are.
    pub(super) valid: Vec<u64>,
    pub(super) taps: Vec<isize>,
    /// The first rows of tiles, if not evenly spaced (see `cuts`).
    pub(super) cuts: Vec<usize>,
    pub(super) kc: usize,
    pub(super) zero: AlignedBuf,
}

/// The dimension that k runs along within a tap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Run {
    /// Input channels; taps are kernel positions (D, H, W).
    Channels,
    /// A row of the window, channels last: (W, C); taps are (D, H).
    RowOfChannels,
    /// A row of the window, channels first: W; taps are (C, D, H).
    Row,
    /// Depthwise: no product.
    None,
}

/// Weights packed for plans of one shape and instruction set.
pub struct ConvWeights(pub(super) Weights);

pub(super) enum Weights {
    Packed(PackedB),
    /// `[taps, C]`
    Depthwise(AlignedBuf),
    /// Transformed: one matrix for each product.
    Winograd(PackedB),
}

impl ConvWeights {
    /// Weights as panels.
    pub(crate) fn of_matrix(matrix: PackedB) -> ConvWeights {
        ConvWeights(Weights::Packed(matrix))
    }
    /// Weights `[taps, C]` of a depthwise convolution.
    pub(crate) fn of_depthwise(weights: AlignedBuf) -> ConvWeights {
        ConvWeights(Weights::Depthwise(weights))
    }
    /// Weights that were transformed.
    pub(crate) fn of_winograd(matrices: PackedB) -> ConvWeights {
        ConvWeights(Weights::Winograd(matrices))
    }
    /// The panels; `None` for a depthwise convolution.
    pub(crate) fn matrix(&self) -> Option<&PackedB> {
        match &self.0 {
            Weights::Packed(b) | Weights::Winograd(b) => Some(b),
            Weights::Depthwise(_) => None,
        }
    }
    /// The ways to convolve by them, the rule's own one first; none where there is no choice.
    pub(crate) fn ways(&self) -> Vec<Way> {
        match &self.0 {
            Weights::Packed(b) => b.ways(),
            Weights::Winograd(_) | Weights::Depthwise(_) => Vec::new(),
        }
    }
    /// Chooses one of [`ConvWeights::ways`].
    pub(crate) fn set_way(&mut self, way: Way) {
        if let Weights::Packed(b) = &mut self.0 {
            b.set_way(way);
        }
    }
    /// Whether they were transformed.
    pub(crate) fn is_winograd(&self) -> bool {
        matches!(self.0, Weights::Winograd(_))
    }
    /// The memory of all weights.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Weights::Packed(b) | Weights::Winograd(b) => b.as_bytes(),
            Weights::Depthwise(w) => w.as_bytes(),
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Weights::Packed(b) | Weights::Winograd(b) => b.bytes(),
            Weights::Depthwise(w) => w.len() * size_of::<f32>(),
        }
    }
}

impl ConvPlan {
    /// Plans a convolution of input and output with the given strides.
    ///
    /// # Errors
    /// [`MicroError`] for a bad shape, or if this processor cannot run `isa`.
    pub fn new(
        isa: Isa,
        shape: ConvShape,
        input: Strides5,
        output: Strides5,
    ) -> Result<ConvPlan, MicroError> {
        isa.require()?;
        let out = shape.output()?;
        let [_, oh, ow] = out;
        let dense = output.c == 1
            && output.w > 0
            && (oh == 1 || output.h == output.w * ow as isize)
            && (out[0] == 1 || output.d == output.w * (ow * oh) as isize);
        let (run, copy) = choose(&shape, &input);
        let source = copy.as_ref().map_or(input, |c| c.strides);
        let merge = if run == Run::Channels { merged(&shape, isa) } else { 1 };
        let reads = match run {
            Run::None => Reads::Depthwise(Depthwise { strides: source }),
            _ => {
                let virtual_padding = shape.is_padded() && copy.as_ref().is_none_or(|c| !c.padded());
                let mut read = Read::new(&shape, out, &source, run, merge, virtual_padding);
                if virtual_padding {
                    read.cuts = cuts(&shape, out, tile_rows(isa));
                }
                Reads::Product(read)
            }
        };
        let dense_rows = dense.then_some(output.w.unsigned_abs());
        let padded = copy.as_ref().is_some_and(Copy::padded);
        let winograd = if run == Run::Channels && !padded { Winograd::new(&shape, source) } else { None };
        let sums = match run {
            Run::None => None,
            _ if dense && !sums::fits(&output) => None,
            _ => Sums::new(isa, &shape, out, product_cost(isa, &shape, out, copy.is_some())),
        };
        Ok(ConvPlan { isa, shape, out, input, output, dense_rows, copy, reads, winograd, merge, run, sums })
    }

    /// Output pixels of one image: the rows of the epilogue.
    pub fn pixels(&self) -> usize {
        self.out.iter().product()
    }

    /// Output size (D, H, W).
    pub fn output_size(&self) -> [usize; 3] {
        self.out
    }

    /// Whether weights that are given as they lie are multiplied by sums of outer products.
    pub fn sums_of_outer_products(&self) -> bool {
        self.sums.is_some()
    }

    /// Bytes of scratch for a copied input; 0 if the input is read directly.
    pub fn scratch_bytes(&self) -> usize {
        self.copy.as_ref().map_or(0, |c| c.len * size_of::<f32>())
    }

    /// # Errors
    /// [`MicroError`] if the weights are not of this plan's sizes and instruction set.
    pub(super) fn check_weights(&self, weights: &ConvWeights) -> Result<(), MicroError> {
        let shape = &self.shape;
        match &weights.0 {
            Weights::Packed(b) | Weights::Winograd(b) if b.isa() != self.isa => {
                Err(MicroError::Unsupported("weights packed for another instruction set than the plan's"))
            }
            Weights::Packed(b) => {
                let groups = shape.groups / self.merge;
                b.check(shape.taps() * shape.in_channels / groups, shape.out_channels / groups)
            }
            Weights::Winograd(b) => {
                let [panels, k, n] = weights_shape(shape, self.isa);
                same("transformed weights, panels", panels, b.shape()[0])?;
                b.check(k, n)
            }
            Weights::Depthwise(w) => {
                same("depthwise weight, values", shape.taps() * shape.in_channels, w.len())
            }
        }
    }
}

/// The time of products of the pixels of each image, in units of a row of a tile and a step of k.
fn product_cost(isa: Isa, shape: &ConvShape, out: [usize; 3], copied: bool) -> usize {
    let panels = shape.out_channels.div_ceil(panel_width(isa));
    // A tap takes as long as its channels and some more.
    let depth = shape.taps() * (shape.in_channels + 6);
    let products = shape.batch * tiles_cost(out.iter().product(), tile_rows(isa)) * depth * panels;
    let copy = shape.batch * shape.in_channels * shape.input.iter().product::<usize>();
    products + if copied { copy } else { 0 }
}

/// How many groups of few output channels share a product: as many as fill one vector of columns. Their weights become
/// blocks on a diagonal; the zeros between cost nothing, because their lanes would be empty.
fn merged(shape: &ConvShape, isa: Isa) -> usize {
    let most = panel_width(isa) / 2 / (shape.out_channels / shape.groups);
    (2..=most.min(shape.groups)).rev().find(|d| shape.groups.is_multiple_of(*d)).unwrap_or(1)
}

/// Tiles of rows that skip whole kernel rows where the window reaches over the image's edge: lines of pixels with the same
/// kernel rows are tiled separately. Empty where even tiles are as good.
fn cuts(shape: &ConvShape, out: [usize; 3], most: usize) -> Vec<usize> {
    let pixels = out.iter().product();
    let seen = |i: usize, at: usize| {
        let at = (at * shape.stride[i]) as isize - shape.pad_lo[i] as isize;
        taps_inside(at, shape.dilation[i], shape.kernel[i], shape.input[i])
    };
    let lines = out[0] * out[1];
    let class = |line: usize| (seen(0, line / out[1]), seen(1, line % out[1]));
    let (mut cuts, mut cost, mut first) = (vec![0], 0, 0);
    for line in 1..=lines {
        if line < lines && class(line) == class(first) {
            continue;
        }
        let (start, len) = (first * out[2], (line - first) * out[2]);
        let tiles = len.div_ceil(most);
        let (d, h) = class(first);
        cuts.extend((0..tiles).map(|i| start + part(len, tiles, i).end));
        cost += tiles_cost(len, most) * d.len() * h.len();
        first = line;
    }
    let even = tiles_cost(pixels, most) * shape.kernel[0] * shape.kernel[1];
    if cost < even { cuts } else { Vec::new() }
}

/// Cost of the tiles of `len` rows: a tile of fewer than five rows takes as long as one of five, because there are too few
/// independent sums.
pub(super) fn tiles_cost(len: usize, most: usize) -> usize {
    let tiles = len.div_ceil(most);
    len.max(5 * tiles)
}

/// Chooses the dimension of k, and whether the input is copied first.
fn choose(shape: &ConvShape, input: &Strides5) -> (Run, Option<Copy>) {
    let copy = |last, padded| Some(Copy::new(shape, last, padded));
    let c = shape.in_channels;
    if shape.groups == c && shape.out_channels == c && c > 1 {
        return (Run::None, if input.c == 1 { None } else { copy(true, false) });
    }
    let padded = shape.is_padded();
    if shape.groups == 1 && c < FEW_CHANNELS && shape.kernel[2] > 1 && shape.dilation[2] == 1 {
        let last = (c == 1 || input.c == 1) && input.w == c as isize;
        let first = input.w == 1;
        // Short rows of a plane cost more per tap than transposing the channels to the inside.
        let short = shape.kernel[2] < 5 && c > 1;
        return match (last, first) {
            (true, _) => (Run::RowOfChannels, if padded { copy(true, true) } else { None }),
            (_, true) if !short => (Run::Row, if padded { copy(false, true) } else { None }),
            _ => (Run::RowOfChannels, copy(true, padded)),
        };
    }
    // The validity of a pixel's taps is a 64-bit mask.
    let real = padded && shape.taps() > 64;
    let readable = input.c == 1 || c == 1;
    (Run::Channels, if readable && !real { None } else { copy(true, real) })
}

impl Read {
    /// Rows and taps in a source of the given strides; `virtual_padding` if its padding (if any) is not in memory.
    fn new(
        shape: &ConvShape,
        out: [usize; 3],
        source: &Strides5,
        run: Run,
        merge: usize,
        virtual_padding: bool,
    ) -> Read {
        let s = source.spatial();
        let channels = shape.in_channels / shape.groups * merge;
        let [kd, kh, kw] = shape.kernel;
        let place = |z: usize, y: usize, x: usize| {
            [z, y, x].iter().zip(s).zip(shape.dilation).map(|((i, s), d)| (i * d) as isize * s).sum::<isize>()
        };
        let mut taps = Vec::new();
        let planes = if run == Run::Row { channels } else { 1 };
        let columns = if run == Run::Channels { kw } else { 1 };
        for c in 0..planes {
            for t in 0..kd * kh * columns {
                let (x, y, z) = (t % columns, t / columns % kh, t / columns / kh);
                taps.push(c as isize * source.c + place(z, y, x));
            }
        }
        let kc = match run {
            Run::Row => kw,
            Run::RowOfChannels => kw * channels,
            _ => channels,
        };
        let mut read = Read {
            image: source.n,
            group: channels as isize * source.c,
            row_stride: None,
            offsets: Vec::new(),
            valid: Vec::new(),
            taps,
            cuts: Vec::new(),
            kc,
            zero: AlignedBuf::zeroed(kc),
        };
        read.rows(shape, out, s, virtual_padding);
        read
    }

    /// Fills in the rows: one stride if that is enough, else a table.
    fn rows(&mut self, shape: &ConvShape, out: [usize; 3], s: [isize; 3], padded: bool) {
        let pad = if padded { shape.pad_lo } else { [0; 3] };
        let step: [isize; 3] = std::array::from_fn(|i| shape.stride[i] as isize * s[i]);
        let even = (out[1] == 1 || step[1] == step[2] * out[2] as isize)
            && (out[0] == 1 || step[0] == step[2] * (out[1] * out[2]) as isize);
        if !padded && even && self.taps == [0] {
            self.row_stride = Some(step[2]);
            return;
        }
        for z in 0..out[0] {
            for y in 0..out[1] {
                for x in 0..out[2] {
                    let at = [z, y, x];
                    let first: [isize; 3] =
                        std::array::from_fn(|i| (at[i] * shape.stride[i]) as isize - pad[i] as isize);
                    self.offsets.push((0..3).map(|i| first[i] * s[i]).sum());
                    if padded {
                        self.valid.push(inside(shape, first));
                    }
                }
            }
        }
    }
}

/// A bit for each kernel position that lies inside the input when the window begins at `first`.
fn inside(shape: &ConvShape, first: [isize; 3]) -> u64 {
    let [kd, kh, kw] = shape.kernel;
    let mut bits = 0;
    for t in 0..kd * kh * kw {
        let at = [t / kw / kh, t / kw % kh, t % kw];
        let within = (0..3).all(|i| {
            let x = first[i] + (at[i] * shape.dilation[i]) as isize;
            x >= 0 && (x as usize) < shape.input[i]
        });
        bits |= u64::from(within) << t;
    }
    bits
}
