//! Products of floats with quantized weights: 8-bit integers, or those of four bits where all weights lie in a range of sixteen. With
//! few rows a product takes as long as its weights take to read, so they stay as small in memory as they are, and become
//! floats in registers.
//!
//! Weights are packed in panels of sixteen columns ([`QuantizedWeights`]); rows of A are converted to `f32` block by block, together
//! with the sums of each group of k, which zero points multiply. With few rows the sums of each group are scaled; with more the
//! weights are, once for all rows of a tile. Sums are in `f32`.

mod pack;
mod plain;
mod product;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use pack::{Columns, QuantizedWeights, Source};
pub use product::{Floats, QuantizedMatmul, matmul};

use super::Isa;

/// Columns of a panel.
const PANEL: usize = 16;
/// Panels of a block: their parts take turns in memory, so that a tile of them reads one stream.
const BLOCK: usize = 4;
/// Numbers of four bits in a word.
const NIBBLES: usize = 8;
/// Rows of the largest tile.
const MAX_ROWS: usize = 6;
/// Most rows whose sums of each group are scaled, rather than the weights.
const FEW_ROWS: usize = 3;

/// The size of packed weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bits {
    /// Eight numbers of k in each 32-bit word of a column.
    Four,
    /// A byte of each column.
    Eight,
}

/// One implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Plain Rust.
    Portable,
    /// The same, compiled for AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// 512-bit registers; numbers of four bits are looked up.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Unit {
    fn of(isa: Isa) -> Unit {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Unit::Avx512,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Unit::Avx2,
            _ => Unit::Portable,
        }
    }
    /// Most rows and panels of a tile.
    const fn tile(self) -> [usize; 2] {
        match self {
            #[cfg(target_arch = "x86_64")]
            Unit::Avx512 => [MAX_ROWS, BLOCK],
            _ => [1, 1],
        }
    }
}

/// A tile: `c[i][j] = sum over k of a[i][k] * weight(k, j)`.
struct Tile {
    /// Rows of A, each group of k padded to whole steps.
    rows: [*const f32; MAX_ROWS],
    /// The sums of the groups of each row.
    sums: [*const f32; MAX_ROWS],
    /// Groups of k.
    groups: usize,
    /// Steps of a group: k for bytes, eight of k for numbers of four bits.
    steps: usize,
    bits: Bits,
    /// The factors of the first panel in the first group of k, and its numbers there. A group is the factors of all panels of the
    /// block, what they add for each unit of A where it is `moved`, and the numbers, step after step.
    heads: *const u8,
    numbers: *const u8,
    /// Panels of the block.
    block: usize,
    /// Whether there are summands.
    moved: bool,
    /// What a number of four bits stands for, where it is 0; the next ones follow.
    lowest: f32,
    /// Where sums go; columns of whole panels.
    c: *mut f32,
    /// Sums between rows of C.
    ldc: usize,
}

impl Tile {
    /// Bytes of one panel at each step.
    const fn width(&self) -> usize {
        match self.bits {
            Bits::Four => 4 * PANEL,
            Bits::Eight => PANEL,
        }
    }
    /// Bytes between the steps of a panel.
    const fn step(&self) -> usize {
        self.block * self.width()
    }
    /// Bytes between factors and summands of a panel.
    const fn turn(&self) -> usize {
        self.block * 4 * PANEL
    }
    /// Bytes between the groups of a panel.
    const fn group(&self) -> usize {
        let heads = if self.moved { 2 } else { 1 };
        heads * self.turn() + self.steps * self.step()
    }
    /// Numbers of k at each step.
    const fn depth(&self) -> usize {
        match self.bits {
            Bits::Four => NIBBLES,
            Bits::Eight => 1,
        }
    }
}
