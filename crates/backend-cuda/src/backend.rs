//! The plugin: what `gpu_runtime::GpuBackend` asks of CUDA beyond the driver.

use std::sync::{Arc, Mutex};

use gpu_runtime::{CompilationRequest, DeviceMemory, GpuBackend, GpuError, Platform};
use plugin_sdk::dlpack::DL_CUDA;
use plugin_sdk::{DeviceId, DeviceInfo, OptionKind, OptionSpec, PluginError};

use crate::cache::Cache;
use crate::device_properties::{self, DeviceProperties};
use crate::driver::Device;
use crate::preload::RequiredLibraries;
use crate::{Library, find, locate};

/// The `cuda` backend.
pub type CudaBackend = GpuBackend<Device>;

/// What a compilation has begun before the device is open: the libraries that it wants, and where code is kept.
pub struct BackgroundWork {
    required: RequiredLibraries,
    cache: Cache,
}

impl Platform for Device {
    const NAME: &'static str = "cuda";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "NVIDIA GPUs: generated kernels compiled by NVRTC";
    const DEVICE_TYPE: i32 = DL_CUDA;
    const STREAMS: bool = true;
    type Background = BackgroundWork;

    fn options() -> Vec<OptionSpec> {
        let toggle = OptionKind::Choice(vec!["on".into(), "off".into()]);
        vec![
            OptionSpec::new(
                "cache",
                OptionKind::Text,
                "",
                "folder of compiled code; `off` keeps none, nothing is the system's cache folder",
            ),
            OptionSpec::new(
                "overlap",
                toggle,
                "on",
                "whether blocks of a kernel that gains by it are placed while the kernel before still runs; holds for the whole \
                 device from then on",
            ),
        ]
    }

    fn devices() -> Vec<DeviceInfo> {
        let count = match device_properties::count() {
            Ok(0) => return vec![unavailable("the driver sees no device".into())],
            Ok(count) => count,
            Err(e) => return vec![unavailable(e.to_string())],
        };
        let nvrtc = locate(Library::Nvrtc).or_else(|_| find(Library::Nvrtc)).err().map(|e| e.to_string());
        let info = |ordinal| match DeviceProperties::of(ordinal)
            .and_then(|properties| Ok((properties.memory()?, properties)))
        {
            Ok((bytes, properties)) => {
                let mut info = DeviceInfo::new(id(ordinal), properties.name.clone());
                info.memory_bytes = bytes;
                info.attributes = properties.attributes();
                info.unavailable_because = nvrtc.clone();
                info
            }
            Err(e) => unavailable(e.to_string()),
        };
        (0..count).map(info).collect()
    }

    fn open(ordinal: i32) -> Result<Device, GpuError> {
        Device::open(ordinal)
    }

    fn reset(ordinal: i32) -> Result<(), GpuError> {
        Device::reset(ordinal)
    }

    fn begin(request: &CompilationRequest<'_>) -> Result<BackgroundWork, PluginError> {
        let cache = Cache::named(request.options.text("cache")?);
        let properties = DeviceProperties::of(request.ordinal)?;
        let target = request.settings.target(properties.target.clone());
        let required = RequiredLibraries::of(request.program, &target, request.settings.mode);
        required.load(properties.identity(), Arc::new(Mutex::new(cache.clone())));
        Ok(BackgroundWork { required, cache })
    }

    fn prepare(
        device: Arc<DeviceMemory<Device>>,
        background: BackgroundWork,
        request: &CompilationRequest<'_>,
    ) -> Result<Arc<DeviceMemory<Device>>, PluginError> {
        let driver = device.driver();
        background.required.start(driver.vendor());
        driver.keep_code_in(background.cache);
        driver.let_launches_overlap(request.options.text("overlap")? == "on");
        Ok(device)
    }
}

fn id(ordinal: i32) -> DeviceId {
    DeviceId { device_type: DL_CUDA, device_id: ordinal }
}

fn unavailable(why: String) -> DeviceInfo {
    let mut info = DeviceInfo::new(id(0), "CUDA device");
    info.unavailable_because = Some(why);
    info
}
