//! The packing of convolution weights into panels of columns: whole weights that are kept ([`ConvPlan::pack_weights`]), and pieces for one
//! call in scratch.

use std::ops::Range;

use super::ConvPlan;
use super::plan::{ConvWeights, Run, Weights};
use crate::micro::kernel::panel_width;
use crate::micro::scratch::{self, AlignedBuf};
use crate::micro::transpose::{self, Source};
use crate::micro::{PackedB, team};

/// A weight `[O, C / groups, KD, KH, KW]` where it lies.
#[derive(Clone, Copy)]
pub(super) struct Plain {
    ptr: *const f32,
    /// Elements between outputs, and between channels.
    outputs: isize,
    channels: isize,
    spatial: [isize; 3],
    kernel: [usize; 3],
}

// SAFETY: memory behind it is only read, under the promise of whoever passes the weight.
unsafe impl Send for Plain {}
// SAFETY: memory behind it is only read, under the promise of whoever passes the weight.
unsafe impl Sync for Plain {}

/// The rows of a panel that taps and channels have.
#[derive(Clone, Copy)]
pub(super) struct Order {
    /// Rows between taps.
    pub(super) tap: usize,
    /// Rows between channels.
    pub(super) channel: usize,
}

/// Channels that are transposed at a time: with a window of 3×3 their values for a panel of 32 columns take 36 KiB.
const AT_ONCE: usize = 32;
/// Most taps of a window that is transposed for many channels at a time.
const FEW_TAPS: usize = 64;

impl Plain {
    pub(super) fn new(ptr: *const f32, strides: [isize; 5], kernel: [usize; 3]) -> Plain {
        let [outputs, channels, d, h, w] = strides;
        Plain { ptr, outputs, channels, spatial: [d, h, w], kernel }
    }

    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// The place of a tap.
    fn tap(&self, t: usize) -> isize {
        let ([_, kh, kw], [d, h, w]) = (self.kernel, self.spatial);
        (t / kw / kh) as isize * d + (t / kw % kh) as isize * h + (t % kw) as isize * w
    }

    fn at(&self, output: usize, channel: usize, t: usize) -> *const f32 {
        let offset = output as isize * self.outputs + channel as isize * self.channels + self.tap(t);
        self.ptr.wrapping_offset(offset)
    }

    /// Packs the columns `cols`, no more than a panel has, of some channels: row `order.tap * t + order.channel * c` of `to`, counted from the
    /// first channel, and zeros in columns that are missing.
    ///
    /// # Safety
    /// The weight is readable, the rows writable.
    pub(super) unsafe fn panel(
        &self,
        cols: &Range<usize>,
        channels: &Range<usize>,
        to: *mut f32,
        order: Order,
        nr: usize,
    ) {
        let (taps, count) = (self.taps(), channels.len());
        let in_order = (0..taps).all(|t| self.tap(t) == t as isize);
        let backwards = (0..taps).all(|t| self.tap(t) == -(t as isize));
        let row = |t: usize, c: usize| to.wrapping_add((t * order.tap + c * order.channel) * nr);
        // SAFETY: the caller's promise; the pieces copied are disjoint.
        unsafe {
            if self.outputs == 1 || self.channels == 1 {
                for t in 0..taps {
                    let ptr = self.at(cols.start, channels.start, t);
                    let src = Source { ptr, row: self.channels, col: self.outputs };
                    transpose::copy(src, count, cols.len(), row(t, 0), order.channel * nr);
                }
            } else if in_order && self.channels == taps as isize && taps <= FEW_TAPS {
                self.dense(cols, channels, &row, nr);
            } else if in_order {
                for c in 0..count {
                    let ptr = self.at(cols.start, channels.start + c, 0);
                    let src = Source { ptr, row: 1, col: self.outputs };
                    transpose::copy(src, taps, cols.len(), row(0, c), order.tap * nr);
                }
            } else if backwards && taps <= FEW_TAPS {
                self.reversed(cols, channels, &row, nr);
            } else {
                // The taps of a channel and output are near each other in memory.
                for c in 0..count {
                    for t in 0..taps {
                        let ptr = self.at(cols.start, channels.start + c, t);
                        let src = Source { ptr, row: 0, col: self.outputs };
                        transpose::copy(src, 1, cols.len(), row(t, c), nr);
                    }
                }
            }
            if cols.len() < nr {
                for i in 0..taps * count {
                    row(i / count, i % count).add(cols.len()).write_bytes(0, nr - cols.len());
                }
            }
        }
    }

    /// Where `[C / groups, KD, KH, KW]` is dense: some channels of the columns are transposed at a time, and then their rows go to their
    /// places.
    unsafe fn dense(
        &self,
        cols: &Range<usize>,
        channels: &Range<usize>,
        row: &dyn Fn(usize, usize) -> *mut f32,
        nr: usize,
    ) {
        let taps = self.taps();
        scratch::with(AT_ONCE * taps * nr, |buf| {
            for first in (0..channels.len()).step_by(AT_ONCE) {
                let count = (channels.len() - first).min(AT_ONCE);
                let ptr = self.at(cols.start, channels.start + first, 0);
                let src = Source { ptr, row: 1, col: self.outputs };
                // SAFETY: the caller's promise; the scratch holds the rows.
                unsafe {
                    transpose::copy(src, count * taps, cols.len(), buf, nr);
                    for i in 0..count * taps {
                        let from = buf.wrapping_add(i * nr).cast_const();
                        row(i % taps, first + i / taps).copy_from_nonoverlapping(from, cols.len());
                    }
                }
            }
        });
    }

    /// Where the taps of a channel and output are dense and read backwards, as in gradients to inputs: each channel is transposed, and then
    /// its rows go to their places.
    unsafe fn reversed(
        &self,
        cols: &Range<usize>,
        channels: &Range<usize>,
        row: &dyn Fn(usize, usize) -> *mut f32,
        nr: usize,
    ) {
        let taps = self.taps();
        scratch::with(taps * nr, |buf| {
            for c in 0..channels.len() {
                let ptr = self.at(cols.start, channels.start + c, taps - 1);
                let src = Source { ptr, row: 1, col: self.outputs };
                // SAFETY: the caller's promise; the scratch holds the rows.
                unsafe {
                    transpose::copy(src, taps, cols.len(), buf, nr);
                    for t in 0..taps {
                        let from = buf.wrapping_add(t * nr).cast_const();
                        row(taps - 1 - t, c).copy_from_nonoverlapping(from, cols.len());
                    }
                }
            }
        });
    }
}

impl ConvPlan {
    /// Packs a weight `[O, C / groups, KD, KH, KW]` with the given strides (in that order).
    ///
    /// # Safety
    /// All elements of the weight must be readable.
    pub unsafe fn pack_weights(&self, ptr: *const f32, strides: [isize; 5]) -> ConvWeights {
        let shape = &self.shape;
        let weight = Plain::new(ptr, strides, shape.kernel);
        // SAFETY: the caller guarantees that the weight is readable.
        unsafe {
            if self.run == Run::None {
                let buf = AlignedBuf::new(shape.taps() * shape.in_channels);
                self.pack_depthwise(&weight, buf.ptr());
                return ConvWeights(Weights::Depthwise(buf));
            }
            let packed = PackedB::new(self.isa, shape.groups / self.merge, self.depth(), self.columns());
            self.pack_groups(&weight, &packed);
            ConvWeights(Weights::Packed(packed))
        }
    }

    /// Rows of B of a product.
    pub(super) fn depth(&self) -> usize {
        self.shape.taps() * self.shape.in_channels / self.shape.groups * self.merge
    }

    /// Columns of B of a product.
    pub(super) fn columns(&self) -> usize {
        self.shape.out_channels / self.shape.groups * self.merge
    }

    /// The rows of taps and channels of a product.
    pub(super) fn order(&self) -> Order {
        // (D, H, W, C) is the order of k both for taps of channels and for rows of channels.
        match self.run {
            Run::Row => Order { tap: 1, channel: self.shape.taps() },
            _ => Order { tap: self.shape.in_channels / self.shape.groups * self.merge, channel: 1 },
        }
    }

    /// `[taps, C]` of a depthwise convolution.
    ///
    /// # Safety
    /// The weight is readable; `to` has room for it.
    pub(super) unsafe fn pack_depthwise(&self, weight: &Plain, to: *mut f32) {
        let channels = self.shape.in_channels;
        for t in 0..self.shape.taps() {
            let src = Source { ptr: weight.at(0, 0, t), row: 0, col: weight.outputs };
            // SAFETY: the caller's promise.
            unsafe { transpose::copy(src, 1, channels, to.wrapping_add(t * channels), channels) };
        }
    }

    /// Packs the columns of one group from `first` on, as many as `to` has.
    ///
    /// # Safety
    /// The weight is readable; nothing else reads or writes `to`.
    pub(super) unsafe fn pack_columns(&self, weight: &Plain, first: usize, to: &PackedB) {
        let nr = panel_width(self.isa);
        let channels = self.shape.in_channels / self.shape.groups;
        team::par_for_work(to.n().div_ceil(nr), to.k() * to.n(), &|panel| {
            let cols = first + panel * nr..first + ((panel + 1) * nr).min(to.n());
            let dst = to.panels(0).cast_mut().wrapping_add(panel * to.k() * nr);
            // SAFETY: the caller's promise; each task fills a panel of its own.
            unsafe { weight.panel(&cols, &(0..channels), dst, self.order(), nr) };
        });
    }

    /// Packs all groups; columns that products of several groups leave empty must be zeros.
    ///
    /// # Safety
    /// The weight is readable; nothing else reads or writes `to`.
    pub(super) unsafe fn pack_groups(&self, weight: &Plain, to: &PackedB) {
        let (nr, shape) = (panel_width(self.isa), &self.shape);
        let (outputs, channels) = (shape.out_channels / shape.groups, shape.in_channels / shape.groups);
        let order = self.order();
        if self.merge == 1 {
            let panels = outputs.div_ceil(nr);
            team::par_for_work(shape.groups * panels, shape.groups * to.k() * to.n(), &|task| {
                let (group, col) = (task / panels, task % panels * nr);
                let first = group * outputs + col;
                let cols = first..first + (outputs - col).min(nr);
                let dst = to.panels(group).cast_mut().wrapping_add(task % panels * to.k() * nr);
                // SAFETY: the caller's promise; each task fills a panel of its own.
                unsafe { weight.panel(&cols, &(0..channels), dst, order, nr) };
            });
            return;
        }
        for group in 0..shape.groups {
            let (at, col) = (group / self.merge, group % self.merge * outputs);
            for t in 0..shape.taps() {
                let ptr = weight.at(group * outputs, 0, t);
                let src = Source { ptr, row: weight.channels, col: weight.outputs };
                let k = t * order.tap + group % self.merge * channels;
                // SAFETY: every piece of k lies inside the weight and inside the pack.
                unsafe { to.fill(at, k..k + channels, col..col + outputs, src) };
            }
        }
    }
}
