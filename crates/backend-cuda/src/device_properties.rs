//! The properties of a device that the driver gives without opening it.

use cudarc::driver::{result, sys};
use gpu_codegen::{Costs, Dialect, Features, Speeds, Target};
use gpu_runtime::GpuError;

use crate::error::error;
use crate::libraries::{Library, find};
use crate::tensor_map;

/// Number of devices.
pub(crate) fn count() -> Result<i32, GpuError> {
    find(Library::Driver)?;
    result::init().map_err(error("cuInit"))?;
    result::device::get_count().map_err(error("cuDeviceGetCount"))
}

/// The properties of a device.
pub(crate) struct DeviceProperties {
    pub(crate) device: sys::CUdevice,
    pub(crate) name: String,
    /// The architecture that code is compiled for, with the features of its generation (`sm_90a`).
    pub(crate) architecture: String,
    /// The target of code generation, without options.
    pub(crate) target: Target,
    pub(crate) speeds: Speeds,
}

impl DeviceProperties {
    /// # Errors
    /// There is no driver or no such device.
    pub(crate) fn of(ordinal: i32) -> Result<DeviceProperties, GpuError> {
        if !(0..count()?).contains(&ordinal) {
            return Err(GpuError::Argument(format!("there is no CUDA device {ordinal}")));
        }
        let device = result::device::get(ordinal).map_err(error("cuDeviceGet"))?;
        let name = result::device::get_name(device).map_err(error("cuDeviceGetName"))?;
        let (architecture, target) = (architecture(device)?, target(device)?);
        Ok(DeviceProperties { device, name, architecture, target, speeds: speeds(device) })
    }

    /// The identity that answers of libraries and the compiler depend on.
    pub(crate) fn identity(&self) -> String {
        format!("{} {}", self.name, self.architecture)
    }

    /// Bytes of its memory.
    pub(crate) fn memory(&self) -> Result<u64, GpuError> {
        // SAFETY: the driver returned this device handle.
        let bytes = unsafe { result::device::total_mem(self.device) }.map_err(error("cuDeviceTotalMem"))?;
        Ok(bytes as u64)
    }

    /// The attributes for listings.
    pub(crate) fn attributes(&self) -> Vec<(String, String)> {
        let own = vec![
            ("architecture".into(), self.architecture.clone()),
            ("multiprocessors".into(), self.target.multiprocessors.to_string()),
            ("clock_mhz".into(), self.speeds.clock.to_string()),
            ("bandwidth_gb_s".into(), self.speeds.bandwidth.to_string()),
        ];
        own.into_iter().chain(crate::vendor::about()).collect()
    }
}

fn attribute(device: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<i32, GpuError> {
    // SAFETY: the driver returned this device handle.
    unsafe { result::device::get_attribute(device, which) }.map_err(error("cuDeviceGetAttribute"))
}

/// Threads per warp on every device.
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
        costs: Costs::built_in(&architecture(device)?, speeds(device)),
        ..Target::HOPPER
    })
}

/// How fast it is at most; a driver that does not say so leaves it open.
fn speeds(device: sys::CUdevice) -> Speeds {
    use sys::CUdevice_attribute as A;
    let number = |which| attribute(device, which).map_or(0, |n| u64::from(n.max(0) as u32));
    let bits = number(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
    // Clocks are in kHz. Memory transfers twice in a cycle of its clock.
    let bandwidth = 2 * number(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE) * bits / 8 / 1_000_000;
    Speeds { clock: (number(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE) / 1000) as u32, bandwidth: bandwidth as u32 }
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
