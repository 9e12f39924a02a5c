//! The plugin of a vendor's device: what [`GpuBackend`](crate::GpuBackend) asks beyond the driver, made of what the vendor adds.

use std::sync::{Arc, Mutex};

use plugin_sdk::{CollectiveEngine, DeviceInfo, OptionKind, OptionSpec, PluginError};

use super::{Device, Vendor};
use crate::{Cache, CompilationRequest, DeviceMemory, GpuError, Platform};

impl<V: Vendor> Platform for Device<V> {
    const NAME: &'static str = V::NAME;
    const VERSION: &'static str = V::VERSION;
    const SUMMARY: &'static str = V::SUMMARY;
    const DEVICE_TYPE: i32 = V::DEVICE_TYPE;
    const STREAMS: bool = true;
    type Background = (V::Background, Cache);
    type Caller = V::Caller;

    fn caller() -> V::Caller {
        V::caller()
    }

    fn options() -> Vec<OptionSpec> {
        let cache = OptionSpec::new(
            "cache",
            OptionKind::Text,
            "",
            "folder of compiled code; `off` keeps none, nothing is the system's cache folder",
        );
        std::iter::once(cache).chain(V::options()).collect()
    }

    fn devices() -> Vec<DeviceInfo> {
        V::devices()
    }

    fn open(ordinal: i32) -> Result<Device<V>, GpuError> {
        Device::open(ordinal)
    }

    fn reset(ordinal: i32) -> Result<(), GpuError> {
        V::reset(ordinal)
    }

    fn collectives() -> Option<Box<dyn CollectiveEngine>> {
        V::collectives()
    }

    fn begin(request: &CompilationRequest<'_>) -> Result<Self::Background, PluginError> {
        let cache = Cache::named(V::NAME, request.options.text("cache")?);
        Ok((V::begin(request, &Arc::new(Mutex::new(cache.clone())))?, cache))
    }

    fn prepare(
        device: Arc<DeviceMemory<Device<V>>>,
        (background, cache): Self::Background,
        request: &CompilationRequest<'_>,
    ) -> Result<Arc<DeviceMemory<Device<V>>>, PluginError> {
        let driver = device.driver();
        V::prepare(driver, background, request)?;
        driver.keep_code_in(cache);
        Ok(device)
    }
}
