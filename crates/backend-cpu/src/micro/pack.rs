//! The packed form of B: panels of as many columns as a register tile, k after k, so that the kernel reads one stream.
//! Created once for a weight ([`PackedB`]) or block by block in scratch (`pack_panel`).

use std::ops::Range;

use super::error::same;
use super::kernel::panel_width;
use super::scratch::AlignedBuf;
use super::transpose::{self, Source};
use super::{Cut, Isa, MicroError, Way};

/// A `[K, N]` matrix (or a convolution weight: `[taps * C_in, C_out]` for each group) in panels of one instruction set.
/// Columns beyond N in the last panel are zeros.
pub struct PackedB {
    isa: Isa,
    groups: usize,
    k: usize,
    n: usize,
    buf: AlignedBuf,
    cut: Cut,
}

impl PackedB {
    /// Packs element `(k, n)` from `ptr + k * k_stride + n * n_stride`: `[K, N]` row-major is `(N, 1)`, `[N, K]` is `(1, K)`.
    ///
    /// # Safety
    /// All `k * n` elements must be readable.
    ///
    /// # Errors
    /// [`MicroError::NoIsa`] if this processor cannot run `isa`.
    pub unsafe fn pack(
        isa: Isa,
        ptr: *const f32,
        k: usize,
        n: usize,
        k_stride: isize,
        n_stride: isize,
    ) -> Result<PackedB, MicroError> {
        isa.require()?;
        let packed = PackedB::new(isa, 1, k, n);
        let src = Source { ptr, row: k_stride, col: n_stride };
        // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given; the buffer has k rows for
        // every panel.
        unsafe { packed.fill(0, 0..k, 0..n, src) };
        Ok(packed)
    }

    /// Packs matrices: element `(g, k, n)` is at `ptr + g * strides[0] + k * strides[1] + n * strides[2]`.
    ///
    /// # Safety
    /// All elements must be readable from any thread.
    ///
    /// # Errors
    /// [`MicroError::NoIsa`] if this processor cannot run `isa`.
    pub unsafe fn pack_groups(
        isa: Isa,
        ptr: *const f32,
        [groups, k, n]: [usize; 3],
        strides: [isize; 3],
    ) -> Result<PackedB, MicroError> {
        isa.require()?;
        let packed = PackedB::new(isa, groups, k, n);
        let first = ptr as usize;
        super::team::par_for_work(groups, groups * k * n, &|g| {
            let ptr = (first as *const f32).wrapping_offset(g as isize * strides[0]);
            let src = Source { ptr, row: strides[1], col: strides[2] };
            // SAFETY: the caller guarantees that elements are readable; each task fills a group of its own.
            unsafe { packed.fill(g, 0..k, 0..n, src) };
        });
        Ok(packed)
    }

    /// Zeros, for `fill`.
    pub(crate) fn new(isa: Isa, groups: usize, k: usize, n: usize) -> PackedB {
        let buf = AlignedBuf::zeroed(PackedB::values(isa, [groups, k, n]));
        PackedB { isa, groups, k, n, buf, cut: Cut::default() }
    }

    /// Values that panels of this shape take.
    pub(crate) fn values(isa: Isa, [groups, k, n]: [usize; 3]) -> usize {
        groups * n.div_ceil(panel_width(isa)) * k * panel_width(isa)
    }

    /// Panels in memory of somebody else, to be filled.
    ///
    /// # Safety
    /// As [`AlignedBuf::lent`], of [`PackedB::values`] values.
    pub(crate) unsafe fn lent(isa: Isa, [groups, k, n]: [usize; 3], ptr: *mut f32) -> PackedB {
        // SAFETY: the caller's promise.
        let buf = unsafe { AlignedBuf::lent(ptr, PackedB::values(isa, [groups, k, n])) };
        PackedB { isa, groups, k, n, buf, cut: Cut::default() }
    }

    /// Restores [`PackedB::as_bytes`] of this shape; `None` where the buffer has another size.
    pub(crate) fn of_file(isa: Isa, [groups, k, n]: [usize; 3], buf: AlignedBuf) -> Option<PackedB> {
        let width = panel_width(isa);
        let len = n.div_ceil(width).checked_mul(k)?.checked_mul(width)?.checked_mul(groups)?;
        (buf.len() == len).then_some(PackedB { isa, groups, k, n, buf, cut: Cut::default() })
    }

    /// The ways to multiply by it, the rule's own one first.
    pub(crate) fn ways(&self) -> Vec<Way> {
        Way::cuts(None).collect()
    }

    /// Chooses one of [`PackedB::ways`].
    pub(crate) fn set_way(&mut self, way: Way) {
        self.cut = way.cut;
    }

    /// How products by it are cut.
    pub(super) fn cut(&self) -> Cut {
        self.cut
    }

    /// Groups, K and N.
    pub(crate) fn shape(&self) -> [usize; 3] {
        [self.groups, self.k, self.n]
    }

    /// The panels of all groups.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.buf.as_bytes()
    }

    /// Packs some rows and columns of one group; `src` points at the first of each.
    ///
    /// # Safety
    /// `rows * cols` elements of `src` must be readable; nothing else may read or write the group meanwhile.
    pub(crate) unsafe fn fill(&self, group: usize, rows: Range<usize>, cols: Range<usize>, src: Source) {
        let nr = panel_width(self.isa);
        let mut col = cols.start;
        while col < cols.end {
            let (panel, at) = (col / nr, col % nr);
            let len = (cols.end - col).min(nr - at);
            // SAFETY: the piece lies inside a panel of the buffer, and inside the source.
            unsafe {
                let dst = self.panels(group).cast_mut().add((panel * self.k + rows.start) * nr + at);
                transpose::copy(src.at(0, col - cols.start), rows.len(), len, dst, nr);
            }
            col += len;
        }
    }

    /// First panel of a group; panel `p` is `p * k * panel width` further.
    pub(crate) fn panels(&self, group: usize) -> *const f32 {
        debug_assert!(group < self.groups);
        self.buf.ptr().wrapping_add(group * self.buf.len() / self.groups.max(1))
    }

    /// Rows of B (of one group).
    pub fn k(&self) -> usize {
        self.k
    }

    /// Columns of B (of one group).
    pub fn n(&self) -> usize {
        self.n
    }

    /// The instruction set that the panels are for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.buf.len() * size_of::<f32>()
    }

    /// # Errors
    /// [`MicroError::Mismatch`] unless B is `[k, n]`.
    pub(crate) fn check(&self, k: usize, n: usize) -> Result<(), MicroError> {
        same("packed B, rows", k, self.k)?;
        same("packed B, columns", n, self.n)
    }
}

/// Packs `rows` rows of at most `nr` columns; missing columns become zeros.
///
/// # Safety
/// `rows * cols` elements of `src` must be readable, `rows * nr` of `dst` writable.
pub(crate) unsafe fn pack_panel(src: Source, rows: usize, cols: usize, dst: *mut f32, nr: usize) {
    // SAFETY: the caller guarantees that every pointer is valid for the sizes and strides given.
    unsafe {
        transpose::copy(src, rows, cols, dst, nr);
        if cols < nr {
            for i in 0..rows {
                dst.add(i * nr + cols).write_bytes(0, nr - cols);
            }
        }
    }
}
