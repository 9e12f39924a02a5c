//! The inner step of products of narrow numbers in plain Rust, and the choice between it and the instructions of a processor.

use super::Narrow;
use crate::micro::Isa;

/// Columns of a panel.
pub(in crate::micro) const PANEL: usize = 16;
/// Panels of a block: their groups take turns in memory, so that a tile of them reads one stream.
pub(in crate::micro) const BLOCK: usize = 4;
/// Bytes of one group of a panel: four for each column.
pub(in crate::micro) const GROUP: usize = 4 * PANEL;

/// Groups of k to whose multiples panels are filled up with zeros, so that each tile of B is whole: those of a tile.
pub(in crate::micro) const PIECE: usize = 16;
/// Rows of a tile of A.
pub(in crate::micro) const TILE_ROWS: usize = 16;

/// One implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::micro) enum Unit {
    /// Integers in plain Rust.
    Portable,
    /// Integers by products of pairs of 16-bit numbers.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Integers by `vpdpbusd` on 512 bits.
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// `bf16` by `vdpbf16ps`.
    #[cfg(target_arch = "x86_64")]
    Bf16,
    /// Integers and `bf16` by tiles.
    #[cfg(target_arch = "x86_64")]
    Tiles,
    /// `bf16` that are made `f32` on the way: rows of A for a block, columns of B in registers. Its panels are those of `Bf16`.
    #[cfg(target_arch = "x86_64")]
    Widened,
}

impl Unit {
    /// The fastest one for these numbers; none where there is no kernel.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of(numbers: Narrow, isa: Isa) -> Option<Unit> {
        let vectors = Unit::of_vectors(numbers, isa)?;
        let tiles = vectors.panels() == BLOCK && Isa::tiles() && super::amx::permitted();
        Some(if tiles { Unit::Tiles } else { vectors })
    }

    /// The same without tiles, which multiply matrices alone.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of_vectors(numbers: Narrow, isa: Isa) -> Option<Unit> {
        let wide = isa == Isa::Avx512 && is_x86_feature_detected!("avx512bw");
        match numbers {
            // On some processors `vdpbf16ps` has a quarter of the rate of `f32`'s instructions, on others the same one.
            Narrow::Bf16 if wide && super::x86::dots_pay() => Some(Unit::Bf16),
            Narrow::Bf16 => wide.then_some(Unit::Widened),
            _ if wide && is_x86_feature_detected!("avx512vnni") => Some(Unit::Vnni),
            _ if isa >= Isa::Avx2 && is_x86_feature_detected!("avx2") => Some(Unit::Avx2),
            _ => Some(Unit::Portable),
        }
    }

    /// The only one.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn of(numbers: Narrow, _: Isa) -> Option<Unit> {
        (numbers != Narrow::Bf16).then_some(Unit::Portable)
    }

    /// The only one.
    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn of_vectors(numbers: Narrow, isa: Isa) -> Option<Unit> {
        Unit::of(numbers, isa)
    }

    /// Those whose panels are the same and that are no slower in general: tiles and what stands in for them, and for `bf16` both ways by vectors.
    pub(super) fn all(numbers: Narrow, isa: Isa) -> Vec<Unit> {
        let found = [Unit::of(numbers, isa), Unit::of_vectors(numbers, isa)];
        let mut all: Vec<Unit> = found.into_iter().flatten().collect();
        #[cfg(target_arch = "x86_64")]
        if all.contains(&Unit::Bf16) {
            all.push(Unit::Widened);
        }
        all.dedup();
        all
    }

    /// Most panels of one tile.
    pub(super) const fn panels(self) -> usize {
        match self {
            Unit::Portable => 1,
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => 1,
            #[cfg(target_arch = "x86_64")]
            Unit::Vnni | Unit::Bf16 | Unit::Widened | Unit::Tiles => BLOCK,
        }
    }

    /// Most rows of a tile of this many panels.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "there is one unit"))]
    pub(super) const fn rows(self, panels: usize) -> usize {
        match self {
            Unit::Portable => 1,
            // Four rows of two vectors, two of B and two temporaries.
            #[cfg(target_arch = "x86_64")]
            Unit::Avx2 => 4,
            // Enough sums to hide the latency of an instruction, in at most 29 of 32 registers; more than ten rows have no
            // registers for their addresses.
            #[cfg(target_arch = "x86_64")]
            Unit::Vnni | Unit::Bf16 => match panels {
                1 => 10,
                2 | 3 => 8,
                _ => 6,
            },
            // The columns of a group take two registers.
            #[cfg(target_arch = "x86_64")]
            Unit::Widened => match panels {
                1 => 10,
                2 => 8,
                3 => 7,
                _ => 5,
            },
            #[cfg(target_arch = "x86_64")]
            Unit::Tiles => TILE_ROWS,
        }
    }

    /// Groups of k that are multiplied at once: rows of A have whole ones.
    pub(super) const fn piece(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Tiles => PIECE,
            _ => 1,
        }
    }

    /// Multiply-adds of bytes that take as long as one of `f32`, about.
    pub(super) const fn speed(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Tiles => 16,
            _ => 4,
        }
    }

    /// Whether tiles read rows of A in `f32`.
    pub(super) const fn widens(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Widened => true,
            _ => false,
        }
    }
}

/// Rows of the largest tile of vectors.
pub(super) const MAX_ROWS: usize = 10;

/// A tile: `c[i][j] = first[j] + sum over k of a[i][k] * b[k][j]`, with 32-bit sums.
pub(super) struct Tile {
    /// First byte of each row of A, in the form that the unit reads.
    pub(super) rows: [*const u8; MAX_ROWS],
    /// Groups of four bytes of k.
    pub(super) groups: usize,
    /// The first group of the first panel; further panels follow.
    pub(super) b: *const u8,
    /// Bytes from group to group: those of all panels of the block.
    pub(super) step: usize,
    /// What each column's sum begins with; null is 0.
    pub(super) first: *const u32,
    /// Where sums go; columns of whole panels.
    pub(super) c: *mut u32,
    /// Sums between rows of C.
    pub(super) ldc: usize,
}

/// One row and one panel of integers in plain Rust.
///
/// # Safety
/// The tile's pointers cover its sizes.
pub(super) unsafe fn portable(tile: &Tile) {
    let mut sums = [0i32; PANEL];
    // SAFETY: the caller guarantees that the tile's pointers cover its sizes.
    unsafe {
        if !tile.first.is_null() {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = (*tile.first.add(j)).cast_signed();
            }
        }
        for g in 0..tile.groups {
            let a: [u8; 4] = tile.rows[0].add(4 * g).cast::<[u8; 4]>().read_unaligned();
            let b = &*tile.b.add(tile.step * g).cast::<[[i8; 4]; PANEL]>();
            for (sum, b) in sums.iter_mut().zip(b) {
                let product = |k: usize| i32::from(a[k]) * i32::from(b[k]);
                *sum = sum.wrapping_add(product(0) + product(1) + product(2) + product(3));
            }
        }
        tile.c.cast::<[i32; PANEL]>().write_unaligned(sums);
    }
}
