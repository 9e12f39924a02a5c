//! What leaves of the two widths have: points of a step, registers and their numbers. Everything else that differs is in `masks`
//! (instructions of a step) and in `zmm` and `ymm` (their machine code). Knows no instructions.

use super::regalloc::Supply;
use crate::micro::Isa;

/// The instructions that a leaf is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// AVX2, FMA and F16C: registers of 256 bits, masks are lanes of ones and zeros in them.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: registers of 512 bits, and registers for masks.
    Avx512,
}

impl Target {
    /// That of this processor where `set` is the widest that may be used.
    pub(crate) fn of(set: Isa) -> Option<Target> {
        let all = [(Isa::Avx512, Target::Avx512), (Isa::Avx2, Target::Avx2)];
        all.into_iter().find(|(least, target)| set >= *least && target.available()).map(|(_, target)| target)
    }

    /// Whether this processor has the instructions.
    pub(crate) fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Target::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Target::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("bmi2")
            }
        };
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Its name in texts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Avx2 => "AVX2",
            Target::Avx512 => "AVX-512",
        }
    }

    /// Points of one step: lanes of 32 bits in a register.
    pub(crate) const fn step(self) -> u32 {
        match self {
            Target::Avx2 => 8,
            Target::Avx512 => 16,
        }
    }
    /// Points of a register of 64-bit lanes.
    pub(super) const fn part(self) -> u32 {
        self.step() / 2
    }
    /// Bytes of a register.
    pub(crate) const fn bytes(self) -> u32 {
        self.step() * 4
    }
    /// Number of vector registers.
    pub(super) const fn vectors(self) -> u8 {
        match self {
            Target::Avx2 => 16,
            Target::Avx512 => 32,
        }
    }
    /// Vector registers for operands that are not in a register: the last ones.
    pub(super) const fn scratch(self) -> &'static [u8] {
        match self {
            Target::Avx2 => &[13, 14, 15],
            Target::Avx512 => &[30, 31],
        }
    }
    /// Registers of accumulators that leave enough for values.
    pub(super) const fn most_accumulators(self) -> usize {
        match self {
            Target::Avx2 => 6,
            Target::Avx512 => 24,
        }
    }
    /// Most registers for copies of accumulators.
    pub(super) const fn most_copies(self) -> usize {
        match self {
            Target::Avx2 => 6,
            Target::Avx512 => 16,
        }
    }
    /// Whether accesses with an address for each point are instructions of a leaf. AVX2 has no scatter, and its gathers are not used; those of
    /// AVX-512 are where they pay, but for tests, which look at their code on every processor.
    pub(super) fn has_spread(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self == Target::Avx512 && (cfg!(test) || super::gathers::pay());
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Whether masks are in registers of their own.
    pub(super) const fn has_mask_registers(self) -> bool {
        matches!(self, Target::Avx512)
    }

    /// The registers that a step may use beside those of accumulators; tests take most of them away, so that values are spilled.
    pub(super) fn supply(self, accumulators: usize) -> Supply {
        let masks: &'static [u8] = if self.has_mask_registers() { super::zmm::MASKS } else { &[] };
        #[cfg(test)]
        if super::tests::few_registers() {
            return Supply { vectors: 4, masks: &masks[..masks.len().min(1)] };
        }
        Supply { vectors: (self.scratch()[0] as usize - accumulators) as u8, masks }
    }
}
