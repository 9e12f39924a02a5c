//! The architectures of both vendors that compilers name, by what each has. A driver asks the device itself for what this says of the
//! commonest card (multiprocessors, caches); whoever generates without a device takes it from here.

use crate::cost::{Costs, Speeds};
use crate::{Dialect, Features, Target, Tf32};

/// What NVIDIA's cards have from a compute capability (`10 * major + minor`) on: KiB of shared memory that a block may have at most,
/// and features. By the table of compute capabilities in the CUDA programming guide; what is in code for the very card alone
/// (`sm_90a`) is there from 90 on.
const CAPABILITIES: [(u32, u32, Features); 8] = [
    (0, 48, Features::NONE),
    (80, 163, Features::AMPERE),
    (86, 99, Features::AMPERE),
    (87, 163, Features::AMPERE),
    (89, 99, Features::AMPERE),
    (90, 227, Features::HOPPER),
    (100, 227, Features { wgmma: false, ..Features::HOPPER }),
    (120, 99, Features { wgmma: false, ..Features::HOPPER }),
];

/// AMD's architectures. Compute units, caches and rates are those of the card that is named, by its data sheet; registers and
/// the local data share by the instruction set manuals. Of MI200 one of the card's two devices counts.
const PROCESSORS: [(&str, Processor); 5] = [
    // Instinct MI250X.
    ("gfx90a", Processor { wave: 64, features: CDNA2, units: 110, lds: 64, cache: 8, macs: 512 }),
    // Instinct MI300X.
    (
        "gfx942",
        Processor {
            wave: 64,
            features: Features { xf32: true, ..CDNA2 },
            units: 304,
            lds: 64,
            cache: 4,
            macs: 1024,
        },
    ),
    // Instinct MI350X.
    ("gfx950", Processor { wave: 64, features: CDNA2, units: 256, lds: 160, cache: 4, macs: 2048 }),
    // Radeon RX 7900 XTX.
    (
        "gfx1100",
        Processor {
            wave: 32,
            features: Features { wmma: true, ..Features::NONE },
            units: 96,
            lds: 64,
            cache: 6,
            macs: 256,
        },
    ),
    // Radeon RX 9070 XT.
    (
        "gfx1201",
        Processor {
            wave: 32,
            features: Features { wmma: true, wmma_halves: true, ..Features::NONE },
            units: 64,
            lds: 64,
            cache: 8,
            macs: 512,
        },
    ),
];
const CDNA2: Features = Features { mfma: true, ..Features::NONE };

/// An architecture of AMD's.
#[derive(Clone, Copy)]
struct Processor {
    wave: u32,
    features: Features,
    /// Compute units.
    units: u32,
    /// KiB that a block may have of the local data share.
    lds: u32,
    /// MiB of the second-level cache.
    cache: u64,
    /// Multiplications and additions of 16-bit floats a cycle and compute unit on matrix cores.
    macs: u32,
}

impl Features {
    /// What an NVIDIA card of a compute capability has, and the bytes of shared memory that one block of it may have.
    pub fn of_capability(number: u32) -> (Features, u32) {
        let row = CAPABILITIES.iter().rev().find(|row| row.0 <= number).unwrap_or(&CAPABILITIES[0]);
        (row.2, row.1 * 1024)
    }
}

impl Target {
    /// What kernels are made for of which nothing is known but an architecture as compilers name it: `sm_90a`, `gfx942`, also with
    /// what stands behind (`gfx90a:sramecc+:xnack-`); `None` where that is no name of one. What only the card itself has is in code
    /// for the card itself, which the letter behind NVIDIA's number says.
    pub fn of_architecture(name: &str) -> Option<Target> {
        let base = name.split(':').next().unwrap_or(name);
        if let Some((_, p)) = PROCESSORS.iter().find(|(known, _)| *known == base) {
            return Some(Target {
                dialect: Dialect::HIP,
                wave: p.wave,
                features: p.features,
                multiprocessors: p.units,
                lds: p.lds * 1024,
                // Four SIMDs of 512 registers of 64 lanes, or two of 1536 of 32.
                registers: if p.wave == 64 { 131_072 } else { 98_304 },
                cache: p.cache << 20,
                matrix_rate: p.macs,
                tf32: Tf32::Off,
                deterministic: false,
                costs: Costs::built_in(base, Speeds::default()),
            });
        }
        let number = base.strip_prefix("sm_")?;
        let own = number.ends_with(['a', 'f']);
        let (features, lds) = Features::of_capability(number.trim_end_matches(['a', 'f']).parse().ok()?);
        let features = Features { tma: features.tma && own, wgmma: features.wgmma && own, ..features };
        Some(Target { features, lds, costs: Costs::built_in(base, Speeds::default()), ..Target::HOPPER })
    }

    /// The architectures of AMD's that are known.
    pub fn processors() -> impl Iterator<Item = &'static str> {
        PROCESSORS.iter().map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn architectures_are_what_their_manuals_say() {
        let of = |name| Target::of_architecture(name).unwrap();
        let (mi300, radeon) = (of("gfx942:sramecc+:xnack-"), of("gfx1201"));
        assert_eq!(
            (mi300.wave, mi300.lds, mi300.features.mfma, mi300.features.xf32),
            (64, 65_536, true, true)
        );
        assert_eq!((radeon.wave, radeon.features.wmma, radeon.features.mfma), (32, true, false));
        assert_eq!(of("gfx950").lds, 163_840);
        assert!(of("gfx950").features.mfma && !of("gfx950").features.xf32);
        assert_eq!(of("gfx942"), Target::CDNA);
        assert_eq!(of("gfx1100"), Target::RDNA);
        assert_eq!(of("sm_90a").dialect, Dialect::CUDA);
        assert!(of("sm_90a").features.wgmma && !of("sm_90").features.wgmma);
        for other in ["gfx906", "sm_", "90", ""] {
            assert_eq!(Target::of_architecture(other), None, "{other}");
        }
    }
}
