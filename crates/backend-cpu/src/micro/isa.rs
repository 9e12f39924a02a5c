//! The instruction sets of the kernels, and which of them this processor has. Chosen once, at packing or planning; tests
//! name each one.

use std::sync::OnceLock;

use super::MicroError;

/// The environment variable that names the variant to use.
const VARIABLE: &str = "FERROFLUX_ISA";

/// The name there of AVX-512 with tiles.
const AMX: &str = "amx";

/// Why a named variant is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// No variant has this name.
    #[error(
        "FERROFLUX_ISA is `{0}`; it may be `portable`, `avx2`, `avx512` or `amx`, or unset for the fastest"
    )]
    Unknown(String),
    /// The processor lacks it.
    #[error("FERROFLUX_ISA asks for `{}`, which this processor does not have; unset it", .0.name())]
    Missing(Isa),
}

/// Maker, family, model and stepping of the processor, as far as they tell processors apart whose caches and rates differ.
pub fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::__cpuid;
        // PROOF: every x86-64 processor has these leaves.
        let (maker, version) = (__cpuid(0), __cpuid(1));
        format!("{:x}{:x}{:x} {:x}", maker.ebx, maker.edx, maker.ecx, version.eax)
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::env::consts::ARCH.to_owned()
}

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

    /// The variant that is used: the one that `FERROFLUX_ISA` names, else the fastest that this processor has. An invalid name
    /// counts as none here; [`Isa::chosen`] reports it when a program is compiled.
    pub fn best() -> Isa {
        Isa::chosen().unwrap_or_else(|_| Isa::fastest())
    }

    /// The same, found once.
    ///
    /// # Errors
    /// `FERROFLUX_ISA` is set to something else than a variant that this processor has.
    pub fn chosen() -> Result<Isa, IsaError> {
        static CHOSEN: OnceLock<Result<Isa, IsaError>> = OnceLock::new();
        CHOSEN
            .get_or_init(|| match std::env::var(VARIABLE) {
                Ok(name) if !name.is_empty() => Isa::named(&name),
                _ => Ok(Isa::fastest()),
            })
            .clone()
    }

    /// Whether products of narrow numbers may be those of tiles (AMX), where the processor has them: `FERROFLUX_ISA` is not set, or `amx`.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn tiles() -> bool {
        static TILES: OnceLock<bool> = OnceLock::new();
        *TILES.get_or_init(|| std::env::var(VARIABLE).map_or(true, |name| name.is_empty() || name == AMX))
    }

    /// The variant of a name, as `FERROFLUX_ISA` has it.
    ///
    /// # Errors
    /// There is no variant of this name, or this processor cannot run it.
    pub fn named(name: &str) -> Result<Isa, IsaError> {
        // All kernels but those of tiles are the same.
        let name = if name == AMX { Isa::Avx512.name() } else { name };
        let isa = Isa::ALL.into_iter().find(|isa| isa.name() == name);
        let isa = isa.ok_or_else(|| IsaError::Unknown(name.to_owned()))?;
        if isa.detected() { Ok(isa) } else { Err(IsaError::Missing(isa)) }
    }

    /// Its name in `FERROFLUX_ISA`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    fn fastest() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.detected()).unwrap_or(Isa::Portable)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_errors() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.detected()) {
            assert_eq!(Isa::named(isa.name()), Ok(isa));
        }
        if Isa::Avx512.detected() {
            assert_eq!(Isa::named(AMX), Ok(Isa::Avx512));
        }
        let error = Isa::named("sse9").map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("sse9") && e.contains("avx512")));
    }
}
