//! The packed form of quantized weights: blocks of up to four panels of sixteen columns; in a block, group after group of k: the factors
//! of its columns, what zero points add for each unit of A, and the numbers, the panels in turns.

use super::{BLOCK, Bits, NIBBLES, PANEL, Unit};
use crate::micro::scratch::AlignedBuf;
use crate::micro::{Isa, MicroError, team};

/// A strided matrix `[groups, n]` of floats.
#[derive(Clone, Copy)]
pub struct Columns {
    /// Element (0, 0).
    pub ptr: *const f32,
    /// Elements between groups and between columns.
    pub strides: [isize; 2],
}

impl Columns {
    /// # Safety
    /// The element exists.
    unsafe fn at(&self, group: usize, n: usize) -> f32 {
        let at = group as isize * self.strides[0] + n as isize * self.strides[1];
        // SAFETY: the caller's promise.
        unsafe { self.ptr.wrapping_offset(at).read() }
    }
}

/// Weights before they are packed: `(integers[k, n] - zero[k / l, n]) * factor[k / l, n]` with `l = k / groups`.
#[derive(Clone, Copy)]
pub struct Source {
    /// Element (0, 0) of the integers.
    pub ptr: *const u8,
    /// Whether they are `i8` rather than `u8`.
    pub signed: bool,
    /// K and N.
    pub sizes: [usize; 2],
    /// Elements between rows and between columns.
    pub strides: [isize; 2],
    /// Groups of k, a divisor of it.
    pub groups: usize,
    /// One for each group and column.
    pub factor: Columns,
    /// None is 0.
    pub zero: Option<Columns>,
}

// SAFETY: the pointers are read under the promise of `QuantizedWeights::pack`: good from any thread.
unsafe impl Sync for Source {}

impl Source {
    unsafe fn integer(&self, k: usize, n: usize) -> i32 {
        let at = k as isize * self.strides[0] + n as isize * self.strides[1];
        // SAFETY: the element exists, by the caller's promise.
        let byte = unsafe { self.ptr.wrapping_offset(at).read() };
        if self.signed { i32::from(byte.cast_signed()) } else { i32::from(byte) }
    }

    /// The smallest and the largest integer.
    unsafe fn range(&self) -> (i32, i32) {
        let (mut low, mut high) = (i32::MAX, i32::MIN);
        // The inner loop is the one of neighbours.
        let [k, n] = self.sizes;
        let rows = self.strides[1].unsigned_abs() <= self.strides[0].unsigned_abs();
        let (outer, inner) = if rows { (k, n) } else { (n, k) };
        for i in 0..outer {
            for j in 0..inner {
                // SAFETY: the element exists, by the caller's promise.
                let x = unsafe { if rows { self.integer(i, j) } else { self.integer(j, i) } };
                (low, high) = (low.min(x), high.max(x));
            }
            if high - low > 15 {
                break;
            }
        }
        (low, high)
    }

    /// The zero point that all columns have in all groups.
    unsafe fn common_zero(&self) -> Option<f32> {
        let Some(zero) = &self.zero else { return Some(0.0) };
        // SAFETY: the elements exist, by the caller's promise.
        unsafe {
            let first = zero.at(0, 0);
            let all = (0..self.groups).all(|g| (0..self.sizes[1]).all(|n| zero.at(g, n) == first));
            all.then_some(first)
        }
    }
}

/// A matrix `[K, N]` of quantized weights, packed.
pub struct QuantizedWeights {
    pub(super) unit: Unit,
    pub(super) bits: Bits,
    pub(super) k: usize,
    pub(super) n: usize,
    pub(super) groups: usize,
    /// Whether a summand follows each factor.
    pub(super) moved: bool,
    /// What the number 0 of four bits stands for.
    pub(super) lowest: f32,
    buf: AlignedBuf,
}

impl QuantizedWeights {
    /// Packs weights.
    ///
    /// # Safety
    /// All elements of the source must be readable from any thread.
    ///
    /// # Errors
    /// This processor does not have `isa`.
    pub unsafe fn pack(isa: Isa, source: &Source) -> Result<QuantizedWeights, MicroError> {
        isa.require()?;
        let [k, n] = source.sizes;
        let empty = k == 0 || n == 0;
        // SAFETY: the caller's promise; elements are read where there are any.
        let (low, high, zero) = unsafe {
            if empty {
                (0, 0, Some(0.0))
            } else {
                let (low, high) = source.range();
                (low, high, source.common_zero())
            }
        };
        let bits = if high - low <= 15 { Bits::Four } else { Bits::Eight };
        // Bytes are stored as signed ones.
        let base = match bits {
            Bits::Four => low,
            Bits::Eight if source.signed => 0,
            Bits::Eight => 128,
        };
        let (moved, lowest) = match (bits, zero) {
            (Bits::Four, Some(zero)) => (false, base as f32 - zero),
            (Bits::Four, None) => (true, base as f32),
            (Bits::Eight, zero) => (zero != Some(base as f32), 0.0),
        };
        let unit = Unit::of(isa);
        let mut packed = QuantizedWeights {
            unit,
            bits,
            k,
            n,
            groups: source.groups,
            moved,
            lowest,
            buf: AlignedBuf::new(0),
        };
        packed.buf = AlignedBuf::zeroed(packed.words());
        let panels = packed.panels();
        team::par_for_work(panels, k * n, &|panel| {
            // SAFETY: each task fills a panel of its own; elements are readable by the caller's promise.
            unsafe { packed.fill(panel, source, base) };
        });
        Ok(packed)
    }

    /// Restores [`QuantizedWeights::as_bytes`]; `None` where the buffer has another size.
    pub(crate) fn of_file(
        isa: Isa,
        code: u64,
        [k, n, groups]: [usize; 3],
        buf: AlignedBuf,
    ) -> Option<QuantizedWeights> {
        let bits = if code & 1 == 0 { Bits::Four } else { Bits::Eight };
        let lowest = f32::from_bits((code >> 8) as u32);
        let moved = code & 2 != 0;
        let whole = groups > 0 && k.is_multiple_of(groups);
        let packed = QuantizedWeights { unit: Unit::of(isa), bits, k, n, groups, moved, lowest, buf };
        (whole && packed.buf.len() == packed.words()).then_some(packed)
    }

    /// What [`QuantizedWeights::of_file`] must know of the form, apart from the shape.
    pub(crate) fn code(&self) -> u64 {
        let bits = u64::from(self.bits == Bits::Eight);
        bits | u64::from(self.moved) << 1 | u64::from(self.lowest.to_bits()) << 8
    }

    /// How many forms [`QuantizedWeights::code`] tells apart.
    pub(crate) const CODES: u64 = 1 << 40;

    /// K, N and groups.
    pub(crate) fn shape(&self) -> [usize; 3] {
        [self.k, self.n, self.groups]
    }

    /// Everything that is packed.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.buf.as_bytes()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.buf.len() * 4
    }

    pub(super) fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Rows of a group.
    pub(super) fn length(&self) -> usize {
        self.k / self.groups.max(1)
    }

    /// Steps of a group.
    pub(super) fn steps(&self) -> usize {
        match self.bits {
            Bits::Four => self.length().div_ceil(NIBBLES),
            Bits::Eight => self.length(),
        }
    }

    /// Rows of a group, padded to whole steps.
    pub(super) fn padded(&self) -> usize {
        match self.bits {
            Bits::Four => self.steps() * NIBBLES,
            Bits::Eight => self.length(),
        }
    }

    /// Bytes of a group of one panel: its factors and summands, and those of its numbers.
    fn group(&self) -> [usize; 2] {
        let step = if self.bits == Bits::Four { 4 * PANEL } else { PANEL };
        [4 * PANEL * (1 + usize::from(self.moved)), self.steps() * step]
    }

    fn words(&self) -> usize {
        let [head, numbers] = self.group();
        self.panels() * self.groups * (head + numbers) / 4
    }

    /// The first byte of a block, and how many panels it has.
    pub(super) fn block(&self, panel: usize) -> (*const u8, usize) {
        let first = panel / BLOCK * BLOCK;
        let [head, numbers] = self.group();
        let at = first * self.groups * (head + numbers);
        (self.buf.ptr().cast::<u8>().wrapping_add(at), (self.panels() - first).min(BLOCK))
    }

    /// Fills one panel; `base` is subtracted from each integer.
    unsafe fn fill(&self, panel: usize, source: &Source, base: i32) {
        let (block, count) = self.block(panel);
        let within = panel % BLOCK;
        let ([head, numbers], length) = (self.group(), self.length());
        for g in 0..self.groups {
            let at = block.wrapping_add(g * count * (head + numbers)).cast_mut();
            let (factors, data) = (at.wrapping_add(within * 4 * PANEL), at.wrapping_add(count * head));
            for j in 0..PANEL.min(self.n - panel * PANEL) {
                let n = panel * PANEL + j;
                // SAFETY: the elements exist by the caller's promise; their places lie inside of the panel's part of the block.
                unsafe {
                    let factor = source.factor.at(g, n);
                    factors.cast::<f32>().add(j).write(factor);
                    if self.moved {
                        let start = if self.bits == Bits::Four { 0.0 } else { base as f32 };
                        let zero = source.zero.map_or(0.0, |z| z.at(g, n));
                        let summand = (start - zero) * factor;
                        factors.add(count * 4 * PANEL).cast::<f32>().add(j).write(summand);
                    }
                    for k in 0..length {
                        let x = source.integer(g * length + k, n) - base;
                        match self.bits {
                            Bits::Eight => data.add((k * count + within) * PANEL + j).write(x as u8),
                            Bits::Four => {
                                let word = data.cast::<u32>().add((k / NIBBLES * count + within) * PANEL + j);
                                *word |= (x as u32) << (4 * (k % NIBBLES));
                            }
                        }
                    }
                }
            }
        }
    }
}
