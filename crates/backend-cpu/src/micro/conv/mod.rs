//! Convolutions of 1 to 3 spatial dimensions as products with rows made of taps (`driver`), of transformed tiles
//! (`winograd`), of images (`sums`) or, depthwise, in `depthwise`. The plan holds everything that depends on shapes and strides alone. Transposed convolutions are not here.

mod input;
mod plan;
mod shape;
mod sums;
mod weights;
mod winograd;

use std::ops::Range;

pub use plan::{ConvPlan, ConvWeights};
pub use shape::{ConvShape, Strides5};

use super::depthwise::{Input, MakeLines};
use super::driver::{self, Product, Rows};
use super::epilogue::{COut, Epilogue, EpilogueBlock, Hook};
use super::kernel::panel_width;
use super::transpose::{self, Source};
use super::{MicroError, PackedB, depthwise, scratch, team};
use plan::{Read, Reads, Weights};
use weights::Plain;

/// Most values of weights that are packed for a call at a time, for each thread: a part of its second-level cache.
const FRESH: usize = 384 << 10;

const OTHER_KIND: MicroError = MicroError::Unsupported("weights packed by a plan of another kind");

/// The weights of a call.
#[derive(Clone, Copy)]
enum Given<'a> {
    Kept(&'a ConvWeights),
    Plain(&'a Plain),
}

impl ConvPlan {
    /// Convolves one batch: `output = epilogue(conv(input, weights))`. Rows of the epilogue are the flattened output pixels
    /// of one image, columns the output channels, its batch index the image.
    ///
    /// # Safety
    /// `input` and `output` must cover the shape at the plan's strides, from any thread; output must not overlap the input;
    /// the epilogue's pointers must be good for their described extent.
    ///
    /// # Errors
    /// [`MicroError`] if `weights` were packed by a plan of another shape, or for a bad epilogue.
    pub unsafe fn run(
        &self,
        input: *const f32,
        weights: &ConvWeights,
        output: *mut f32,
        epilogue: &Epilogue<'_>,
    ) -> Result<(), MicroError> {
        self.check_weights(weights)?;
        // SAFETY: the caller's promise.
        unsafe { self.start(input, Given::Kept(weights), output, epilogue) }
    }

    /// Whether [`ConvPlan::run_made`] is there for the plan: a depthwise convolution of images whose lines of channels lie one after another.
    pub(crate) fn takes_lines(&self) -> bool {
        let (s, [d, _, w]) = (&self.input, self.shape.input);
        let dense = s.c == 1 && s.w > 0 && s.h == s.w * w as isize;
        let flat = d == 1 && self.out[0] == 1 && self.shape.kernel[0] == 1 && self.shape.padded()[0] == 1;
        matches!(self.reads, Reads::Depthwise(_)) && self.copy.is_none() && dense && flat
    }

    /// The tasks that share an image's lines where these are made: as few as give each thread as much. Lines at the border of two tasks are
    /// made by both.
    pub(crate) fn parts_of_made(&self, threads: usize) -> usize {
        let common =
            (1..=threads).rev().find(|n| threads.is_multiple_of(*n) && self.shape.batch.is_multiple_of(*n));
        (threads / common.unwrap_or(1)).clamp(1, self.out[1].max(1))
    }

    /// [`ConvPlan::run`] of an input whose lines are made when they are wanted, so that they are read from the cache.
    ///
    /// # Safety
    /// As [`ConvPlan::run`] for all but the input; `make` writes all values of the lines at the plan's strides.
    ///
    /// # Errors
    /// As [`ConvPlan::run`]; the plan does not take lines.
    pub(crate) unsafe fn run_made(
        &self,
        make: &MakeLines<'_>,
        weights: &ConvWeights,
        output: *mut f32,
        epilogue: &Epilogue<'_>,
    ) -> Result<(), MicroError> {
        self.check_weights(weights)?;
        if !self.takes_lines() {
            return Err(MicroError::Unsupported("a convolution of lines that are made, but a depthwise one"));
        }
        epilogue.check(self.shape.out_channels)?;
        // SAFETY: the caller's promise.
        unsafe { self.place(Input::Made(make), Given::Kept(weights), output, epilogue) }
    }

    /// Whether [`ConvPlan::run_pixels`] is there for the plan: its rows are the pixels of its input.
    pub(crate) fn makes_pixels(&self) -> bool {
        let rows = matches!(&self.reads, Reads::Product(read) if read.row_stride.is_some());
        rows && self.copy.is_none() && self.shape.groups == 1 && self.shape.taps() == 1
    }

    /// Some pixels of an image alone; `output` is where the image's first pixel is or would be, in rows of
    /// `row_stride` values, or null as in [`ConvPlan::run_with`]. The epilogue has no residual.
    ///
    /// # Safety
    /// As [`ConvPlan::run`], for these pixels.
    ///
    /// # Errors
    /// As [`ConvPlan::run`]; the plan's rows are no pixels of its input.
    pub(crate) unsafe fn run_pixels(
        &self,
        (image, pixels): (usize, Range<usize>),
        input: *const f32,
        weights: &ConvWeights,
        output: Option<(*mut f32, usize)>,
        epilogue: &Epilogue<'_>,
    ) -> Result<(), MicroError> {
        self.check_weights(weights)?;
        epilogue.check(self.shape.out_channels)?;
        let (Reads::Product(read), Weights::Packed(b)) = (&self.reads, &weights.0) else {
            return Err(MicroError::Unsupported("pixels of a convolution whose rows are no pixels"));
        };
        let (Some(row_stride), true, None) = (read.row_stride, self.makes_pixels(), epilogue.residual) else {
            return Err(MicroError::Unsupported("pixels of a convolution whose rows are no pixels"));
        };
        let first = pixels.start;
        let moved = |block: &EpilogueBlock, hook: &Hook<'_>| {
            let block = EpilogueBlock { row0: block.row0 + first, row1: block.row1 + first, ..*block };
            // SAFETY: the caller's promise of the hook.
            unsafe { hook.call(&block) };
        };
        let hook = epilogue.hook.map(|hook| move |block: &EpilogueBlock| moved(block, &hook));
        let hook = hook.as_ref().map(|hook| Hook::Closure(hook));
        let epilogue = Epilogue { hook, ..*epilogue };
        let call = Call { plan: self, b, first: 0, input, out: COut::Scratch, epilogue: &epilogue };
        let whole = call.product(read, image);
        let c = output.map_or(COut::Scratch, |(ptr, row_stride)| COut::Memory {
            ptr: ptr.wrapping_add(first * row_stride),
            row_stride,
        });
        let a = whole.a.wrapping_offset(first as isize * row_stride);
        let product = Product { m: pixels.len(), a, c, cuts: &[], ..whole };
        // SAFETY: the caller's promise.
        unsafe { driver::run(1, &product, &|_| product) }
    }

    /// The same with a weight `[O, C / groups, KD, KH, KW]` of these strides (in that order), of which nothing is kept. Without an output (a
    /// null pointer) results are blocks that the hook alone reads.
    ///
    /// # Safety
    /// As [`ConvPlan::run`]; all elements of the weight must be readable from any thread.
    ///
    /// # Errors
    /// [`MicroError`] for a bad epilogue.
    pub unsafe fn run_with(
        &self,
        input: *const f32,
        (weight, strides): (*const f32, [isize; 5]),
        output: *mut f32,
        epilogue: &Epilogue<'_>,
    ) -> Result<(), MicroError> {
        let weight = Plain::new(weight, strides, self.shape.kernel);
        // SAFETY: the caller's promise.
        unsafe { self.start(input, Given::Plain(&weight), output, epilogue) }
    }

    unsafe fn start(
        &self,
        input: *const f32,
        weights: Given<'_>,
        output: *mut f32,
        epilogue: &Epilogue<'_>,
    ) -> Result<(), MicroError> {
        epilogue.check(self.shape.out_channels)?;
        if self.shape.batch == 0 {
            return Ok(());
        }
        let sums = self.sums.is_some() && matches!(weights, Given::Plain(_));
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the scratch is as large as
        // the copy's layout.
        unsafe {
            let Some(copy) = self.copy.as_ref().filter(|_| !sums) else {
                return self.place(Input::There(input), weights, output, epilogue);
            };
            scratch::with(copy.len, |buf| {
                copy.fill(&self.shape, &self.input, input, buf);
                self.place(Input::There(buf), weights, output, epilogue)
            })
        }
    }

    /// Chooses the destination of blocks: the output directly, or scratch and a hook that stores them at the output's
    /// strides.
    unsafe fn place(
        &self,
        input: Input<'_>,
        weights: Given<'_>,
        output: *mut f32,
        epilogue: &Epilogue<'_>,
    ) -> Result<(), MicroError> {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            if output.is_null() {
                if epilogue.hook.is_none() {
                    return Err(MicroError::Unsupported(
                        "a convolution without an output and without a hook",
                    ));
                }
                return self.multiply(input, weights, COut::Scratch, epilogue);
            }
            if let Some(row_stride) = self.dense_rows {
                return self.multiply(input, weights, COut::Memory { ptr: output, row_stride }, epilogue);
            }
            let user = epilogue.hook;
            let target = Target { plan: self, output };
            let scatter = |block: &EpilogueBlock| target.scatter(block, user);
            let epilogue = Epilogue { hook: Some(Hook::Closure(&scatter)), ..*epilogue };
            self.multiply(input, weights, COut::Scratch, &epilogue)
        }
    }

    unsafe fn multiply(
        &self,
        input: Input<'_>,
        weights: Given<'_>,
        out: COut,
        epilogue: &Epilogue<'_>,
    ) -> Result<(), MicroError> {
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe {
            if let Reads::Depthwise(d) = &self.reads {
                match weights {
                    Given::Kept(ConvWeights(Weights::Depthwise(w))) => {
                        depthwise::run(self, d, input, w.ptr(), out, epilogue);
                    }
                    Given::Plain(weight) => {
                        scratch::with(self.shape.taps() * self.shape.in_channels, |w| {
                            self.pack_depthwise(weight, w);
                            depthwise::run(self, d, input, w, out, epilogue);
                        });
                    }
                    Given::Kept(_) => return Err(OTHER_KIND),
                }
                return Ok(());
            }
            let Input::There(input) = input else { return Err(OTHER_KIND) };
            match (&self.reads, weights) {
                (Reads::Product(read), Given::Kept(ConvWeights(Weights::Packed(b)))) => {
                    self.products(read, &Call { plan: self, b, first: 0, input, out, epilogue })?;
                }
                (Reads::Product(_), Given::Kept(ConvWeights(Weights::Winograd(w))))
                    if self.winograd.is_some() =>
                {
                    // PROOF: the guard.
                    if let Some(winograd) = &self.winograd {
                        winograd::run(self, winograd, input, w, out, epilogue);
                    }
                }
                (Reads::Product(read), Given::Plain(weight)) => match &self.sums {
                    Some(sums) => sums::run(self, sums, input, weight, out, epilogue),
                    None => self.fresh(read, input, weight, out, epilogue)?,
                },
                _ => return Err(OTHER_KIND),
            }
        }
        Ok(())
    }

    /// The products: one for each image and group.
    unsafe fn products(&self, read: &Read, call: &Call<'_>) -> Result<(), MicroError> {
        let count = self.shape.batch * self.shape.groups / self.merge;
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
        unsafe { driver::run(count, &call.product(read, 0), &|i| call.product(read, i)) }
    }

    /// The products with weights that are packed for this call: of one group some columns at a time, so that all images read them from the
    /// cache.
    unsafe fn fresh(
        &self,
        read: &Read,
        input: *const f32,
        weight: &Plain,
        out: COut,
        epilogue: &Epilogue<'_>,
    ) -> Result<(), MicroError> {
        let (isa, nr, k, n) = (self.isa, panel_width(self.isa), self.depth(), self.columns());
        let groups = self.shape.groups / self.merge;
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the scratch has the panels' size.
        unsafe {
            if groups > 1 || self.merge > 1 {
                let shape = [groups, k, n];
                let values = PackedB::values(isa, shape);
                return scratch::with(values, |buf| {
                    if self.merge > 1 {
                        buf.write_bytes(0, values);
                    }
                    let b = &PackedB::lent(isa, shape, buf);
                    self.pack_groups(weight, b);
                    self.products(read, &Call { plan: self, b, first: 0, input, out, epilogue })
                });
            }
            let panels = n.div_ceil(nr);
            let most = (FRESH * team::threads() / (k * nr)).clamp(1, panels);
            let pieces = panels.div_ceil(most);
            scratch::with(most * k * nr, |buf| {
                for piece in 0..pieces {
                    let panels = driver::part(panels, pieces, piece);
                    let cols = panels.start * nr..(panels.end * nr).min(n);
                    let b = &PackedB::lent(isa, [1, k, cols.len()], buf);
                    self.pack_columns(weight, cols.start, b);
                    self.products(read, &Call { plan: self, b, first: cols.start, input, out, epilogue })?;
                }
                Ok(())
            })
        }
    }
}

struct Call<'a> {
    plan: &'a ConvPlan,
    /// Panels of each group.
    b: &'a PackedB,
    /// The first of their columns among a group's.
    first: usize,
    input: *const f32,
    out: COut,
    epilogue: &'a Epilogue<'a>,
}

// SAFETY: its pointers are used under the promises of `ConvPlan::run`: good from any thread.
unsafe impl Sync for Call<'_> {}

impl<'a> Call<'a> {
    /// The product of one image and group.
    fn product(&self, read: &'a Read, i: usize) -> Product<'a> {
        let plan = self.plan;
        let groups = plan.shape.groups / plan.merge;
        let (image, group) = (i / groups, i % groups);
        let col0 = group * plan.columns() + self.first;
        let c = match self.out {
            COut::Memory { ptr, row_stride } => COut::Memory {
                ptr: ptr.wrapping_offset(image as isize * plan.output.n).wrapping_add(col0),
                row_stride,
            },
            COut::Scratch => COut::Scratch,
        };
        Product {
            isa: plan.isa,
            m: plan.pixels(),
            n: self.b.n(),
            a: self.input.wrapping_offset(image as isize * read.image + group as isize * read.group),
            rows: match read.row_stride {
                Some(row_stride) => Rows::Strided { row_stride, col_stride: 1 },
                None => Rows::Pixels { offsets: &read.offsets, valid: &read.valid },
            },
            taps: &read.taps,
            cuts: &read.cuts,
            kc: read.kc,
            zero: read.zero.ptr(),
            b: self.b.panels(group),
            source: None,
            c,
            epilogue: *self.epilogue,
            batch: image,
            col0,
            cut: self.b.cut(),
        }
    }
}

/// The destination of finished blocks when the output's layout is not rows of channels.
struct Target<'a> {
    plan: &'a ConvPlan,
    output: *mut f32,
}

// SAFETY: as `Call`; blocks are disjoint.
unsafe impl Sync for Target<'_> {}

impl Target<'_> {
    fn scatter(&self, block: &EpilogueBlock, user: Option<Hook<'_>>) {
        // SAFETY: the block is this thread's scratch; its place in the output is the caller's promise.
        unsafe {
            if let Some(hook) = user {
                hook.call(block);
            }
            let image = self.output.wrapping_offset(block.batch as isize * self.plan.output.n);
            self.plan.for_runs(block.row0..block.row1, |row, len, offset| {
                let from = block.ptr.wrapping_add((row - block.row0) * block.row_stride);
                let to = image.wrapping_offset(offset + block.col0 as isize * self.plan.output.c);
                self.store(block, from, to, len);
            });
        }
    }

    /// Stores `len` pixels that are `output.w` apart.
    unsafe fn store(&self, block: &EpilogueBlock, from: *const f32, to: *mut f32, len: usize) {
        let (cols, o) = (block.col1 - block.col0, &self.plan.output);
        // SAFETY: as `scatter`.
        unsafe {
            if o.w == 1 && o.c > 0 {
                let src = Source { ptr: from, row: 1, col: block.row_stride as isize };
                return transpose::copy(src, cols, len, to, o.c as usize);
            }
            for i in 0..len {
                for j in 0..cols {
                    *to.wrapping_offset(i as isize * o.w + j as isize * o.c) =
                        *from.add(i * block.row_stride + j);
                }
            }
        }
    }
}

impl ConvPlan {
    /// Splits a range of output pixels into runs whose pixels are `output.w` apart: calls
    /// `f(first pixel, length, offset of it in the output)`.
    fn for_runs(&self, pixels: Range<usize>, mut f: impl FnMut(usize, usize, isize)) {
        let [_, oh, ow] = self.out;
        let o = &self.output;
        let mut at = pixels.start;
        while at < pixels.end {
            let (x, y, z) = (at % ow, at / ow % oh, at / ow / oh);
            // Where image rows follow each other at the pixel stride, a run goes on to the image's end.
            let line = if o.h == o.w * ow as isize { ow * oh - (y * ow + x) } else { ow - x };
            let len = line.min(pixels.end - at);
            f(at, len, z as isize * o.d + y as isize * o.h + x as isize * o.w);
            at += len;
        }
    }
}
