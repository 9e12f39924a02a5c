//! What the driver says of a device that need not be open.

use cudarc::driver::{result, sys};
use gpu_codegen::Target;
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
pub(crate) struct Card {
    pub(crate) device: sys::CUdevice,
    pub(crate) name: String,
    /// What code is made for: this very card, with what only its generation has (`sm_90a`).
    pub(crate) architecture: String,
    /// What kernels are made for, without options.
    pub(crate) target: Target,
}

impl Card {
    /// # Errors
    /// No driver, no such device.
    pub(crate) fn of(ordinal: i32) -> Result<Card, GpuError> {
        if !(0..count()?).contains(&ordinal) {
            return Err(GpuError::Argument(format!("there is no CUDA device {ordinal}")));
        }
        let device = result::device::get(ordinal).map_err(error("cuDeviceGet"))?;
        let name = result::device::get_name(device).map_err(error("cuDeviceGetName"))?;
        let (architecture, target) = (architecture(device)?, target(device)?);
        Ok(Card { device, name, architecture, target })
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

fn target(device: sys::CUdevice) -> Result<Target, GpuError> {
    use sys::CUdevice_attribute as A;
    let number = |which| attribute(device, which).map(|n| n.max(0) as u32);
    let architecture = 10 * number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
        + number(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Target {
        architecture,
        tensor_maps: architecture >= 90 && tensor_map::are_there(),
        multiprocessors: number(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_memory: number(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        cache: u64::from(number(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        tf32: false,
        deterministic: false,
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
