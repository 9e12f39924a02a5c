//! What `hipGetDeviceProperties` tells of a device. Its struct grew and was ordered anew in HIP 6, which gave the call another name;
//! of both only these fields are read, at offsets that a C compiler gave for HIP's public headers of 5.0, 5.4, 5.7, 6.0 and 6.2.

use std::ffi::{c_int, c_void};

use gpu_runtime::GpuError;

use crate::api::Api;

/// More than either struct has.
const BYTES: usize = 4096;

/// Where the fields of a struct begin.
pub(crate) struct Offsets {
    memory: usize,
    shared: usize,
    wave: usize,
    multiprocessors: usize,
    cache: usize,
    architecture: usize,
}

/// Of HIP 5.
pub(crate) const HIP_5: Offsets =
    Offsets { memory: 256, shared: 264, wave: 276, multiprocessors: 336, cache: 340, architecture: 396 };
/// Of HIP 6 and 7.
pub(crate) const HIP_6: Offsets =
    Offsets { memory: 288, shared: 296, wave: 308, multiprocessors: 388, cache: 616, architecture: 1160 };
/// The first version with the second struct.
const FIRST_OF_6: c_int = 60_000_000;

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Properties {
    pub(crate) name: String,
    /// As `gfx942:sramecc+:xnack-`.
    pub(crate) architecture: String,
    /// Bytes of its memory.
    pub(crate) memory: u64,
    /// Bytes of the local data share that a block may have.
    pub(crate) shared: u32,
    /// Lanes of a wave.
    pub(crate) wave: u32,
    /// Compute units.
    pub(crate) multiprocessors: u32,
    /// Bytes of the second-level cache.
    pub(crate) cache: u64,
}

impl Properties {
    /// Of a device.
    ///
    /// # Errors
    /// What HIP says.
    pub(crate) fn of(api: &Api, ordinal: c_int) -> Result<Properties, GpuError> {
        let (call, function, offsets) = match api.version < FIRST_OF_6 {
            true => ("hipGetDeviceProperties", api.runtime.properties_5, HIP_5),
            false => ("hipGetDevicePropertiesR0600", api.runtime.properties_6, HIP_6),
        };
        let function = function.ok_or_else(|| Api::absent(call))?;
        let mut bytes = [0u64; BYTES / 8];
        // SAFETY: the struct is shorter than the bytes and aligned as they are.
        let told = unsafe { function(bytes.as_mut_ptr().cast::<c_void>(), ordinal) };
        api.done(call, told)?;
        let bytes: Vec<u8> = bytes.iter().flat_map(|word| word.to_ne_bytes()).collect();
        Ok(Properties::read(&bytes, &offsets))
    }

    fn read(bytes: &[u8], at: &Offsets) -> Properties {
        let word = |from: usize| bytes[from..from + 8].try_into().map_or(0, u64::from_ne_bytes);
        let half = |from: usize| bytes[from..from + 4].try_into().map_or(0, i32::from_ne_bytes).max(0) as u32;
        let text = |from: usize| {
            let bytes = &bytes[from..from + 256];
            let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        };
        Properties {
            name: text(0),
            architecture: text(at.architecture),
            memory: word(at.memory),
            shared: u32::try_from(word(at.shared)).unwrap_or(u32::MAX),
            wave: half(at.wave),
            multiprocessors: half(at.multiprocessors),
            cache: u64::from(half(at.cache)),
        }
    }

    /// The architecture without what stands behind colons: code for it runs with any of these settings.
    pub(crate) fn base(&self) -> &str {
        self.architecture.split(':').next().unwrap_or("")
    }
}
