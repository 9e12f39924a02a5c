//! The packed form of B for products of narrow numbers: panels of sixteen columns, four bytes of each column together, and the
//! groups of neighbouring panels in turns.

use super::dot::{BLOCK, GROUP, PANEL, PIECE};
use super::{Narrow, Unit, unit};
use crate::micro::scratch::AlignedBuf;
use crate::micro::{Cut, Isa, MicroError, Way, team};

/// A matrix `[K, N]` for each group, packed, with what each column's sum begins with. For depthwise convolutions it is
/// `[taps, channels]` of 32-bit numbers instead.
pub struct NarrowWeights {
    pub(super) numbers: Narrow,
    pub(super) unit: Unit,
    pub(super) form: Form,
    pub(super) cut: Cut,
    groups: usize,
    k: usize,
    n: usize,
    /// Panels (or rows of taps), followed by the first sums of all columns.
    buf: AlignedBuf,
}

/// The panels of one matrix in memory.
#[derive(Clone, Copy)]
pub(in crate::micro) struct Panels {
    pub(in crate::micro) numbers: Narrow,
    /// The first group of the first panel.
    pub(in crate::micro) ptr: *const u8,
    /// What each column's sum begins with; null is 0.
    pub(in crate::micro) first: *const u32,
    pub(in crate::micro) count: usize,
    /// Groups of four bytes of k.
    pub(in crate::micro) steps: usize,
    /// Groups that a panel has memory for.
    pub(in crate::micro) stored: usize,
}

impl Panels {
    /// Panels of the block of a panel, and its number among them.
    fn block(&self, panel: usize) -> (usize, usize) {
        let first = panel / BLOCK * BLOCK;
        ((self.count - first).min(BLOCK), panel - first)
    }

    /// Bytes between the groups of a panel.
    pub(super) fn step(&self, panel: usize) -> usize {
        self.block(panel).0 * GROUP
    }

    /// The first group of four bytes of a panel.
    pub(super) fn panel(&self, panel: usize) -> *const u8 {
        let (_, within) = self.block(panel);
        self.ptr.wrapping_add((panel - within) * self.stored * GROUP + within * GROUP)
    }

    /// What the sums of a panel's columns begin with; null for floats.
    pub(super) fn first(&self, panel: usize) -> *const u32 {
        if self.first.is_null() { self.first } else { self.first.wrapping_add(panel * PANEL) }
    }
}

/// Joins two lines to pairs; zeros stand for one that is not there.
pub(super) fn join<T: Copy + Default>(to: &mut [[T; 2]], low: Option<&[T]>, high: Option<&[T]>) {
    match (low, high) {
        (Some(low), Some(high)) => {
            to.iter_mut().zip(low.iter().zip(high)).for_each(|(to, (low, high))| *to = [*low, *high]);
        }
        (Some(low), None) => to.iter_mut().zip(low).for_each(|(to, low)| *to = [*low, T::default()]),
        (None, _) => to.fill([T::default(); 2]),
    }
}

/// The layout of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Panels,
    Depthwise,
    /// Panels for windows of pixels whose channels are filled up to four bytes; tiles alone read them.
    Windows,
}

/// One element of B by its group, its row and its column: the byte at which it begins.
pub(super) type Element<'a> = &'a (dyn Fn(usize, usize, usize) -> *const u8 + Sync);

impl NarrowWeights {
    /// Packs the matrix whose element `(k, n)` is at `ptr + k * k_stride + n * n_stride`, in elements; `zero` is the zero point
    /// of A.
    ///
    /// # Safety
    /// All `k * n` elements must be readable from any thread.
    ///
    /// # Errors
    /// This processor does not have `isa`, or no instructions for these numbers.
    pub unsafe fn pack(
        (numbers, isa): (Narrow, Isa),
        ptr: *const u8,
        [k, n]: [usize; 2],
        [k_stride, n_stride]: [isize; 2],
        zero: i32,
    ) -> Result<NarrowWeights, MicroError> {
        let size = numbers.size() as isize;
        let from = ptr as usize;
        let element = |_: usize, k: usize, n: usize| {
            (from as *const u8).wrapping_offset((k as isize * k_stride + n as isize * n_stride) * size)
        };
        // SAFETY: the caller's promise.
        unsafe { NarrowWeights::of((numbers, isa), Form::Panels, [1, k, n], &element, zero) }
    }

    /// Packs matrices of `bf16`: element `(g, k, n)` is at `ptr + g * strides[0] + k * strides[1] + n * strides[2]`.
    ///
    /// # Safety
    /// All elements must be readable from any thread.
    ///
    /// # Errors
    /// This processor does not have `isa`, or no instructions for these numbers.
    pub unsafe fn pack_groups(
        isa: Isa,
        ptr: *const half::bf16,
        sizes: [usize; 3],
        strides: [isize; 3],
    ) -> Result<NarrowWeights, MicroError> {
        let from = ptr as usize;
        let element = |g: usize, k: usize, n: usize| {
            let at = g as isize * strides[0] + k as isize * strides[1] + n as isize * strides[2];
            (from as *const half::bf16).wrapping_offset(at).cast::<u8>()
        };
        // SAFETY: the caller's promise.
        unsafe { NarrowWeights::of((Narrow::Bf16, isa), Form::Panels, sizes, &element, 0) }
    }

    /// Packs the matrices of `[groups, k, n]`, whose elements are at `element(group, k, n)`.
    ///
    /// # Safety
    /// As [`NarrowWeights::pack`].
    pub(super) unsafe fn of(
        (numbers, isa): (Narrow, Isa),
        form: Form,
        [groups, k, n]: [usize; 3],
        element: Element<'_>,
        zero: i32,
    ) -> Result<NarrowWeights, MicroError> {
        let unit = unit((numbers, isa), form, k)?;
        let mut packed = NarrowWeights::in_buffer((numbers, unit, form), [groups, k, n], AlignedBuf::new(0));
        packed.buf = AlignedBuf::zeroed(packed.words());
        let (shift, panels) = (zero + i32::from(numbers.bias()), packed.panels());
        team::par_for_work(groups * panels, groups * k * n, &|i| {
            // SAFETY: each task fills a panel of its own; elements are readable by the caller's promise.
            unsafe { packed.fill(i / panels, i % panels, element, shift) };
        });
        Ok(packed)
    }

    /// Values of the memory of packed matrices `[groups, k, n]` of `bf16`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn words_of(sizes: [usize; 3]) -> usize {
        let empty = AlignedBuf::new(0);
        NarrowWeights::in_buffer((Narrow::Bf16, Unit::Tiles, Form::Panels), sizes, empty).words()
    }

    /// Matrices in memory that the caller gives, packed or to be filled.
    pub(super) fn in_buffer(
        (numbers, unit, form): (Narrow, Unit, Form),
        [groups, k, n]: [usize; 3],
        buf: AlignedBuf,
    ) -> NarrowWeights {
        NarrowWeights { numbers, unit, form, cut: Cut::default(), groups, k, n, buf }
    }

    /// Restores [`NarrowWeights::as_bytes`]; `None` where the buffer has another size.
    pub(crate) fn of_file(code: u64, isa: Isa, [groups, k, n]: [usize; 3], buf: AlignedBuf) -> Option<Self> {
        let (numbers, form) = match code {
            0 => (Narrow::U8, Form::Panels),
            1 => (Narrow::I8, Form::Panels),
            2 => (Narrow::Bf16, Form::Panels),
            3 => (Narrow::U8, Form::Depthwise),
            4 => (Narrow::I8, Form::Depthwise),
            5 => (Narrow::Bf16, Form::Depthwise),
            6 => (Narrow::U8, Form::Windows),
            7 => (Narrow::I8, Form::Windows),
            8 => (Narrow::Bf16, Form::Windows),
            _ => return None,
        };
        let unit = unit((numbers, isa), form, k).ok()?;
        let packed = NarrowWeights::in_buffer((numbers, unit, form), [groups, k, n], buf);
        (packed.buf.len() == packed.words()).then_some(packed)
    }

    /// The ways to multiply by it on this processor, the rule's own one first; none where there is no choice.
    pub(crate) fn ways(&self, isa: Isa) -> Vec<Way> {
        if self.form != Form::Panels {
            return Vec::new();
        }
        let others = Unit::all(self.numbers, isa).into_iter().filter(|unit| *unit != self.unit);
        let others = others.map(|unit| Way { unit: Some(unit), cut: Cut::default() });
        Way::cuts(Some(self.unit)).chain(others).collect()
    }

    /// Chooses one of [`NarrowWeights::ways`].
    pub(crate) fn set_way(&mut self, way: Way) {
        self.unit = way.unit.unwrap_or(self.unit);
        self.cut = way.cut;
    }

    /// The number by which [`NarrowWeights::of_file`] tells numbers and layout.
    pub(crate) fn code(&self) -> u64 {
        match (self.form, self.numbers) {
            (Form::Panels, Narrow::U8) => 0,
            (Form::Panels, Narrow::I8) => 1,
            (Form::Panels, Narrow::Bf16) => 2,
            (Form::Depthwise, Narrow::U8) => 3,
            (Form::Depthwise, Narrow::I8) => 4,
            (Form::Depthwise, Narrow::Bf16) => 5,
            (Form::Windows, Narrow::U8) => 6,
            (Form::Windows, Narrow::I8) => 7,
            (Form::Windows, Narrow::Bf16) => 8,
        }
    }

    /// The same for each unit that multiplies these numbers and that this processor has, if it may use wide registers at all.
    #[cfg(all(test, target_arch = "x86_64"))]
    pub(crate) fn for_each_unit(mut self, isa: Isa, mut f: impl FnMut(&NarrowWeights)) {
        let wide = isa == Isa::Avx512 && is_x86_feature_detected!("avx512bw");
        let floats = self.numbers == Narrow::Bf16;
        let units = [
            // Without the instructions, what they do in plain Rust.
            (Unit::Tiles, isa == Isa::best() && self.form != Form::Depthwise),
            (Unit::Bf16, wide && floats && is_x86_feature_detected!("avx512bf16")),
            (Unit::Widened, wide && floats),
            (Unit::Vnni, wide && !floats && is_x86_feature_detected!("avx512vnni")),
            (Unit::Avx2, isa >= Isa::Avx2 && !floats && is_x86_feature_detected!("avx2")),
            (Unit::Portable, !floats),
        ];
        for (unit, has) in units {
            if has && (self.form != Form::Windows || unit == Unit::Tiles) {
                self.unit = unit;
                f(&self);
            }
        }
    }

    /// There is one unit.
    #[cfg(all(test, not(target_arch = "x86_64")))]
    pub(crate) fn for_each_unit(self, _: Isa, mut f: impl FnMut(&NarrowWeights)) {
        f(&self);
    }

    /// How many numbers of this kind [`NarrowWeights::code`] has.
    pub(crate) const CODES: u64 = 9;

    /// Groups, K and N.
    pub(crate) fn shape(&self) -> [usize; 3] {
        [self.groups, self.k, self.n]
    }

    /// Everything that is packed.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.buf.as_bytes()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.buf.len() * 4
    }

    /// Columns of B (of one group).
    pub fn n(&self) -> usize {
        self.n
    }

    /// Rows of B (of one group).
    pub fn k(&self) -> usize {
        self.k
    }

    fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Groups of four bytes of k (of taps, in the depthwise form, whose numbers have four bytes each).
    pub(super) fn steps(&self) -> usize {
        match self.form {
            Form::Panels | Form::Windows => (self.k * self.numbers.size()).div_ceil(4),
            Form::Depthwise => self.k,
        }
    }

    /// The panels of one group; those of the depthwise form do not take turns in memory.
    pub(super) fn of_group(&self, group: usize) -> Panels {
        let (ptr, each) = (self.buf.ptr().cast::<u8>(), self.panels() * self.stored());
        let first = self.groups * each * PANEL + group * self.panels() * PANEL;
        let floats = self.numbers == Narrow::Bf16;
        Panels {
            numbers: self.numbers,
            ptr: ptr.wrapping_add(group * each * GROUP),
            first: if floats { std::ptr::null() } else { self.buf.ptr().cast::<u32>().wrapping_add(first) },
            count: self.panels(),
            steps: self.steps(),
            stored: self.stored(),
        }
    }

    /// Bytes between the groups of a panel.
    pub(super) fn step(&self, panel: usize) -> usize {
        match self.form {
            Form::Depthwise => GROUP,
            _ => self.of_group(0).step(panel),
        }
    }

    /// Steps that a panel has memory for: whole pieces, filled up with zeros.
    fn stored(&self) -> usize {
        match self.form {
            Form::Panels | Form::Windows => self.steps().next_multiple_of(PIECE),
            Form::Depthwise => self.steps(),
        }
    }

    fn words(&self) -> usize {
        self.groups * self.panels() * (self.stored() * PANEL + PANEL)
    }

    /// The first group of four bytes of a panel.
    pub(super) fn panel(&self, group: usize, panel: usize) -> *const u8 {
        let panels = self.of_group(group);
        match self.form {
            Form::Depthwise => panels.ptr.wrapping_add(panel * self.stored() * GROUP),
            _ => panels.panel(panel),
        }
    }

    /// What the sums of a panel's columns begin with; null for floats.
    pub(super) fn first(&self, group: usize, panel: usize) -> *const u32 {
        self.of_group(group).first(panel)
    }

    /// Fills one panel; `shift` is subtracted from each number of A.
    unsafe fn fill(&self, group: usize, panel: usize, element: Element<'_>, shift: i32) {
        let size = self.numbers.size();
        let (to, step) = (self.panel(group, panel).cast_mut(), self.step(panel));
        for j in 0..PANEL.min(self.n - panel * PANEL) {
            let mut sum = 0i32;
            for k in 0..self.k {
                let from = element(group, k, panel * PANEL + j);
                // SAFETY: the element is readable; its place lies inside of the panel.
                unsafe {
                    match (self.form, self.numbers) {
                        (Form::Panels | Form::Windows, Narrow::Bf16) => {
                            let at = k / 2 * step + 4 * j + k % 2 * size;
                            to.add(at).cast::<u16>().write_unaligned(from.cast::<u16>().read_unaligned());
                        }
                        (Form::Panels | Form::Windows, _) => {
                            to.add(k / 4 * step + 4 * j + k % 4).write(from.read());
                            sum = sum.wrapping_add(i32::from(from.cast::<i8>().read()));
                        }
                        (Form::Depthwise, Narrow::Bf16) => {
                            let bits = u32::from(from.cast::<u16>().read_unaligned()) << 16;
                            to.add(k * step + 4 * j).cast::<u32>().write(bits);
                        }
                        (Form::Depthwise, _) => {
                            let w = i32::from(from.cast::<i8>().read());
                            to.add(k * step + 4 * j).cast::<i32>().write(w);
                            sum = sum.wrapping_add(w);
                        }
                    }
                }
            }
            if self.numbers != Narrow::Bf16 {
                // SAFETY: the column has a place among the first sums.
                unsafe {
                    self.first(group, panel).cast_mut().add(j).cast::<i32>().write(-sum.wrapping_mul(shift))
                };
            }
        }
    }
}
