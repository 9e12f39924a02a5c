//! Products and convolutions of narrow numbers: 8-bit integers with exact sums in `i32`, and `bf16` with sums in `f32`.
//!
//! Both are one algorithm, because both kinds of instructions (`vpdpbusd`, `vdpbf16ps`) multiply groups of four bytes along k
//! and add the products to one 32-bit sum. B is packed in panels of sixteen columns, group after group ([`NarrowWeights`]);
//! rows of A are bytes, read in place or gathered block by block ([`Rows`]); a block of sums is in scratch, and the caller's
//! hook turns it into results. Depthwise convolutions are in `depthwise`.
//!
//! `vpdpbusd` multiplies unsigned by signed bytes. So signed A is moved by 128, and what that adds is subtracted together with
//! the zero point, as a number for each column that sums begin with.
//!
//! Where the processor multiplies tiles of these numbers (AMX), it multiplies the same panels, sixteen groups at a time (`amx`). Where `vdpbf16ps` is
//! slower than the multiplications of `f32`, `bf16` is widened on the way ([`Unit`]).

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod both;
#[cfg(target_arch = "x86_64")]
mod columns;
mod conv;
mod depthwise;
mod dot;
mod pack;
mod product;
mod windows;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(super) use amx::Product as Tiles;
#[cfg(target_arch = "x86_64")]
pub use both::Bf16Product;
#[cfg(target_arch = "x86_64")]
pub(super) use both::Pairs;
pub use conv::NarrowConv;
#[cfg(target_arch = "x86_64")]
pub(super) use dot::{BLOCK, GROUP, PANEL, PIECE, TILE_ROWS};
pub use pack::NarrowWeights;
#[cfg(target_arch = "x86_64")]
pub(super) use pack::Panels;
#[cfg(target_arch = "x86_64")]
pub(super) use product::Laid;
pub use product::{NarrowMatmul, matmul, matmul_group};

use super::{Isa, MicroError};
pub(super) use dot::Unit;
use pack::Form;

/// The numbers of A. Those of B are `i8` for integers, else the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Narrow {
    /// `u8`
    U8,
    /// `i8`
    I8,
    /// `bf16`
    Bf16,
}

impl Narrow {
    /// Bytes of a number.
    pub const fn size(self) -> usize {
        match self {
            Narrow::U8 | Narrow::I8 => 1,
            Narrow::Bf16 => 2,
        }
    }

    /// What is added to each byte of A before it is multiplied (modulo 256).
    const fn bias(self) -> u8 {
        if let Narrow::I8 = self { 128 } else { 0 }
    }

    /// Whether there is a kernel for these numbers, no slower than that of `f32`. Integers are multiplied everywhere.
    pub fn is_fast(self, isa: Isa) -> bool {
        Unit::of(self, isa).is_some()
    }
}

/// Whether products are those of tiles.
pub fn has_tiles() -> bool {
    Unit::of(Narrow::U8, Isa::best()).is_some_and(|unit| unit.piece() > 1)
}

/// Whether this processor multiplies `bf16` at a higher rate than `f32`.
pub fn bf16_pays(isa: Isa) -> bool {
    #[cfg(target_arch = "x86_64")]
    return matches!(Unit::of(Narrow::Bf16, isa), Some(Unit::Tiles | Unit::Bf16));
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = isa;
        false
    }
}

/// The instructions that multiply these numbers along `k` of them.
fn unit((numbers, isa): (Narrow, Isa), form: Form, k: usize) -> Result<Unit, MicroError> {
    isa.require()?;
    let missing = MicroError::Unsupported("products of bf16 without instructions for them");
    let unit = match form {
        // Rows of A shorter than a piece would be copied, and most of a tile be empty; where vectors are slow that is quicker still.
        Form::Panels if numbers != Narrow::Bf16 && k < 4 * dot::PIECE => Unit::of_vectors(numbers, isa),
        Form::Panels => Unit::of(numbers, isa),
        Form::Depthwise => Unit::of_vectors(numbers, isa),
        // Tests compute what the instructions would on any processor.
        #[cfg(all(test, target_arch = "x86_64"))]
        Form::Windows => Some(Unit::Tiles),
        #[cfg(not(all(test, target_arch = "x86_64")))]
        Form::Windows => Unit::of(numbers, isa).filter(|unit| unit.piece() > 1),
    };
    unit.ok_or(missing)
}
