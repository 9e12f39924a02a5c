//! The instruction sets of the kernels, and which of them this processor has. Chosen once, at packing or planning; tests
//! name each one.

use std::sync::OnceLock;

use super::MicroError;

/// One variant of every kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust on arrays of four; every architecture.
    Portable,
    /// AVX2 and FMA: 8 lanes, 16 registers.
    Avx2,
    /// AVX-512 F: 16 lanes, 32 registers, masked tails.
    Avx512,
}

impl Isa {
    /// All variants, slowest first.
    pub const ALL: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

    /// The fastest variant that this processor has; found once.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| Isa::ALL.into_iter().rev().find(|isa| isa.detected()).unwrap_or(Isa::Portable))
    }

    /// Whether this processor (and its operating system) can run the variant.
    pub fn detected(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// # Errors
    /// [`MicroError::NoIsa`] if this processor cannot run the variant.
    pub(crate) fn require(self) -> Result<(), MicroError> {
        // `best` is cached; only a variant named by a test is detected.
        if self == Isa::best() || self.detected() { Ok(()) } else { Err(MicroError::NoIsa(self)) }
    }
}
