//! The plugin: what `gpu_runtime::GpuBackend` asks of CUDA beyond the driver.

use std::sync::{Arc, Mutex};

use gpu_runtime::{Asked, DeviceMemory, GpuBackend, GpuError, Platform};
use plugin_sdk::dlpack::DL_CUDA;
use plugin_sdk::{DeviceId, DeviceInfo, OptionKind, OptionSpec, PluginError};

use crate::ahead::Wanted;
use crate::cache::Cache;
use crate::card::{self, Card};
use crate::driver::Device;
use crate::{Library, find, locate};

/// The `cuda` backend.
pub type CudaBackend = GpuBackend<Device>;

/// What a compilation has begun before the device is open: the libraries that it wants, and where code is kept.
pub struct Begun {
    wanted: Wanted,
    cache: Cache,
}

impl Platform for Device {
    const NAME: &'static str = "cuda";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "NVIDIA GPUs: generated kernels compiled by NVRTC";
    const DEVICE_TYPE: i32 = DL_CUDA;
    const STREAMS: bool = true;
    type Ahead = Begun;

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
        let count = match card::count() {
            Ok(0) => return vec![unavailable("the driver sees no device".into())],
            Ok(count) => count,
            Err(e) => return vec![unavailable(e.to_string())],
        };
        let nvrtc = locate(Library::Nvrtc).or_else(|_| find(Library::Nvrtc)).err().map(|e| e.to_string());
        let info = |ordinal| match Card::of(ordinal).and_then(|card| Ok((card.memory()?, card))) {
            Ok((bytes, card)) => {
                let mut info = DeviceInfo::new(id(ordinal), card.name.clone());
                info.memory_bytes = bytes;
                info.attributes = card.attributes();
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

    fn begin(asked: &Asked<'_>) -> Result<Begun, PluginError> {
        let cache = Cache::named(asked.options.text("cache")?);
        let card = Card::of(asked.ordinal)?;
        let target = asked.settings.target(card.target.clone());
        let wanted = Wanted::of(asked.program, &target, asked.settings.mode);
        wanted.load(card.identity(), Arc::new(Mutex::new(cache.clone())));
        Ok(Begun { wanted, cache })
    }

    fn prepare(
        device: Arc<DeviceMemory<Device>>,
        ahead: Begun,
        asked: &Asked<'_>,
    ) -> Result<Arc<DeviceMemory<Device>>, PluginError> {
        let driver = device.driver();
        ahead.wanted.start(driver.vendor());
        driver.keep_code_in(ahead.cache);
        driver.let_launches_overlap(asked.options.text("overlap")? == "on");
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
