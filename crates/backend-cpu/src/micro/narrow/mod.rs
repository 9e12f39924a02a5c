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
//! Where `vdpbf16ps` is slower than the multiplications of `f32`, `bf16` is widened on the way ([`Unit`]).
//!
//! Instructions for tiles of these numbers (AMX) are not used: they would be one more [`Unit`], with
//! the same groups of four bytes.

mod conv;
mod depthwise;
mod dot;
mod pack;
mod product;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use conv::NarrowConv;
pub use pack::NarrowWeights;
pub use product::{NarrowMatmul, matmul};

use super::{Isa, MicroError};
use dot::Unit;

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

/// Whether this processor multiplies `bf16` at a higher rate than `f32`.
pub fn bf16_pays() -> bool {
    #[cfg(target_arch = "x86_64")]
    return x86::dots_pay();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// The instructions that multiply these numbers.
fn unit(numbers: Narrow, isa: Isa) -> Result<Unit, MicroError> {
    isa.require()?;
    let missing = MicroError::Unsupported("products of bf16 without instructions for them");
    Unit::of(numbers, isa).ok_or(missing)
}
