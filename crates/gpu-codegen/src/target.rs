//! The target of code generation: a device described by its properties, never by its model. Each driver fills it in from
//! its vendor's table. Not here: how many devices there are, and where their memory is.

use crate::{Costs, Dialect, Tf32};

/// The target of code generation. Kernels use nothing that the target does not have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The language of the vendor's compiler.
    pub dialect: Dialect,
    /// Threads that run in step and exchange values without memory (a warp, a wave): 32 or 64.
    pub wave: u32,
    /// Its features beyond plain arithmetic.
    pub features: Features,
    /// Number of multiprocessors (compute units), which determines how many blocks fill the device.
    pub multiprocessors: u32,
    /// Maximum bytes of shared memory per block, with the opt-in. AMD calls it the local data share (LDS).
    pub lds: u32,
    /// 32-bit registers per multiprocessor.
    pub registers: u32,
    /// Bytes of the second-level cache.
    pub cache: u64,
    /// Multiplications and additions of 16-bit floats a cycle and multiprocessor on matrix cores, at most.
    pub matrix_rate: u32,
    /// Which float32 operands may be rounded to tf32, for tensor cores.
    pub tf32: Tf32,
    /// Whether sums must not depend on the order in which blocks end.
    pub deterministic: bool,
    /// The cost model of its architecture; `None` where that was not measured: candidates are then ordered by rule.
    pub costs: Option<Costs>,
}

/// The features of a device, named after instructions or properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features {
    /// Matrix products of a warp of 32 with fragments in registers (`mma.sync`), 16-bit floats and tf32, and `ldmatrix`.
    pub mma: bool,
    /// Matrix products of a wave of 64 (`v_mfma`), 16-bit floats and float32.
    pub mfma: bool,
    /// Those of float32 rounded to 10 bits of mantissa (`v_mfma_f32_32x32x4_xf32`).
    pub xf32: bool,
    /// Matrix products of a wave of 32 (`v_wmma`), 16-bit floats.
    pub wmma: bool,
    /// Their factors are shared out over both halves of a wave, which elsewhere have the same.
    pub wmma_halves: bool,
    /// Matrix products of a warpgroup from shared memory (`wgmma`).
    pub wgmma: bool,
    /// The tensor memory accelerator: copies of boxes of tensors that a single thread issues, described by
    /// [`TensorMap`](crate::TensorMap)s, which the driver encodes.
    pub tma: bool,
    /// Asynchronous copies of a few bytes from global to shared memory (`cp.async`). Without them threads copy through
    /// registers.
    pub cp_async: bool,
    /// Clusters of blocks that access each other's shared memory.
    pub clusters: bool,
    /// Programmatic dependent launch: blocks are scheduled before the launch before them has ended.
    pub early_launch: bool,
}

impl Features {
    /// Plain arithmetic only.
    pub const NONE: Features = Features {
        mma: false,
        mfma: false,
        xf32: false,
        wmma: false,
        wmma_halves: false,
        wgmma: false,
        tma: false,
        cp_async: false,
        clusters: false,
        early_launch: false,
    };
    /// The first GPUs with bf16 tensor cores (compute capability 8).
    pub const AMPERE: Features = Features { mma: true, cp_async: true, ..Features::NONE };
    /// Ampere and what Hopper adds.
    pub const HOPPER: Features =
        Features { wgmma: true, tma: true, clusters: true, early_launch: true, ..Features::AMPERE };
}

impl Target {
    /// The lane of a thread in its wave, as text.
    pub(crate) fn lane(&self) -> String {
        format!("threadIdx.x & {}", self.wave - 1)
    }
    /// The wave of a thread in its block, as text.
    pub(crate) fn wave_of_thread(&self) -> String {
        format!("threadIdx.x >> {}", self.wave.trailing_zeros())
    }
    /// Lanes per wave, for arithmetic with sizes.
    pub(crate) fn lanes(&self) -> i64 {
        i64::from(self.wave)
    }

    /// Whether there are products of warpgroups from shared memory that TMA fills.
    pub(crate) fn wgmma(&self) -> bool {
        self.features.wgmma && self.features.tma
    }

    /// A Hopper with 132 multiprocessors, for code generation without a device.
    pub const HOPPER: Target = Target {
        dialect: Dialect::CUDA,
        wave: 32,
        features: Features::HOPPER,
        multiprocessors: 132,
        lds: 227 * 1024,
        registers: 65_536,
        cache: 50 << 20,
        matrix_rate: 2048,
        tf32: Tf32::Off,
        deterministic: false,
        costs: None,
    };
    /// An AMD Instinct MI300X: 304 compute units, waves of 64.
    pub const CDNA: Target = Target {
        dialect: Dialect::HIP,
        wave: 64,
        features: Features { mfma: true, xf32: true, ..Features::NONE },
        multiprocessors: 304,
        lds: 64 * 1024,
        registers: 131_072,
        cache: 4 << 20,
        matrix_rate: 1024,
        tf32: Tf32::Off,
        deterministic: false,
        costs: None,
    };
    /// An AMD Radeon RX 7900 XTX: 96 compute units, waves of 32.
    pub const RDNA: Target = Target {
        dialect: Dialect::HIP,
        wave: 32,
        features: Features { wmma: true, ..Features::NONE },
        multiprocessors: 96,
        registers: 98_304,
        cache: 6 << 20,
        matrix_rate: 256,
        ..Target::CDNA
    };
    /// An Ampere of 108 multiprocessors.
    pub const AMPERE: Target = Target {
        features: Features::AMPERE,
        multiprocessors: 108,
        lds: 163 * 1024,
        matrix_rate: 1024,
        ..Target::HOPPER
    };
}
