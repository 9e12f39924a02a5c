//! What the driver says of a device that need not be open.

use cudarc::driver::{result, sys};
use gpu_codegen::{Dialect, Features, Target};
use gpu_runtime::GpuError;

use crate::driver::error;
use crate::libraries::{Library, find};
use crate::tensor_map;

/// How many devices there are.
pub(crate) fn count() -> Result<i32, GpuError> {
    find(Library::Driver)?;
    result::init().map_err(error("cuInit"))?;
    result::device::get_count().map_err(error("cuDeviceGetCount"))
}

/// A device.
pub(crate) struct DeviceProperties {
    pub(crate) device: sys::CUdevice,
    pub(crate) name: String,
    /// What code is made for: this very card, with what only its generation has (`sm_90a`).
    pub(crate) architecture: String,
    /// What kernels are made for, without options.
    pub(crate) target: Target,
}

impl DeviceProperties {
    /// # Errors
    /// No driver, no such device.
    pub(crate) fn of(ordinal: i32) -> Result<DeviceProperties, GpuError> {
        if !(0..count()?).contains(&ordinal) {
            return Err(GpuError::Argument(format!("there is no CUDA device {ordinal}")));
        }
        let device = result::device::get(ordinal).map_err(error("cuDeviceGet"))?;
        let name = result::device::get_name(device).map_err(error("cuDeviceGetName"))?;
        let (architecture, target) = (architecture(device)?, target(device)?);
        Ok(DeviceProperties { device, name, architecture, target })
    }

    /// On what depends what libraries and the compiler say.
    pub(crate) fn identity(&self) -> String {
        format!("{} {}", self.name, self.architecture)
    }

    /// Bytes of its memory.
    pub(crate) fn memory(&self) -> Result<u64, GpuError> {
        // SAFETY: the device was given by the driver.
        let bytes = unsafe { result::device::total_mem(self.device) }.map_err(error("cuDeviceTotalMem"))?;
        Ok(bytes as u64)
    }

    /// What a listing says of it.
    pub(crate) fn attributes(&self) -> Vec<(String, String)> {
        let own = vec![
            ("architecture".into(), self.architecture.clone()),
            ("multiprocessors".into(), self.target.multiprocessors.to_string()),
        ];
        own.into_iter().chain(crate::vendor::about()).collect()
    }
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, GpuError> {
    // SAFETY: the device was given by the driver.
    unsafe { result::device::get_attribute(device, which) }.map_err(error("cuDeviceGetAttribute"))
}

/// Threads of a warp on every card.
const WARP: u32 = 32;

/// What kernels are made for of which nothing is known but an architecture as `sm_90a`; `None` where that is no name of one.
pub fn target_of(architecture: &str) -> Option<Target> {
    Target::of_architecture(architecture).filter(|target| target.dialect == Dialect::CUDA)
}

fn target(device: sys::CUdevice) -> Result<Target, GpuError> {
    use sys::CUdevice_attribute as A;
    let number = |which| attribute(device, which).map(|n| n.max(0) as u32);
    let (features, _) = Features::of_capability(
        10 * number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    Ok(Target {
        dialect: Dialect::CUDA,
        wave: WARP,
        features: Features { tma: features.tma && tensor_map::are_there(), ..features },
        multiprocessors: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        lds: number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        registers: number(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        cache: u64::from(number(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        ..Target::HOPPER
    })
}

fn architecture(device: sys::CUdevice) -> Result<String, GpuError> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let (major, minor) = (attribute(device, MAJOR)?, attribute(device, MINOR)?);
    Ok(format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn architectures_are_known_by_name() {
        let of = |name: &str| target_of(name).unwrap();
        assert_eq!((of("sm_80").features, of("sm_80").lds), (Features::AMPERE, 163 * 1024));
        assert_eq!((of("sm_86").features, of("sm_86").lds), (Features::AMPERE, 99 * 1024));
        assert_eq!((of("sm_90a").features, of("sm_90a").lds), (Features::HOPPER, 227 * 1024));
        assert!(!of("sm_90").features.tma && !of("sm_90").features.wgmma && of("sm_90").features.clusters);
        assert!(of("sm_100a").features.tma && !of("sm_100a").features.wgmma);
        assert!(!of("sm_75").features.mma);
        assert!(target_of("90").is_none() && target_of("sm_x").is_none());
    }
}
