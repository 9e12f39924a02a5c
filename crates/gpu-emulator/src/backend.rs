//! The backend `gpu-emulator`, for tooling: its device and its option.

use std::sync::Arc;

use gpu_runtime::{Asked, DeviceMemory, GpuBackend, GpuError, Platform};
use plugin_sdk::dlpack::DL_EXT_DEV;
use plugin_sdk::{DeviceId, DeviceInfo, OptionKind, OptionSpec, PluginError};

use crate::Emulator;

/// The `gpu-emulator` backend.
pub type EmulatorBackend = GpuBackend<Emulator>;

impl Platform for Emulator {
    const NAME: &'static str = "gpu-emulator";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "generated GPU kernels on the host, by the C++ compiler: slow, for tests";
    const DEVICE_TYPE: i32 = DL_EXT_DEV;
    type Ahead = ();

    fn options() -> Vec<OptionSpec> {
        let help = "ways whose name contains this come first";
        vec![OptionSpec::new("prefer", OptionKind::Text, "", help)]
    }

    fn devices() -> Vec<DeviceInfo> {
        let mut info = DeviceInfo::new(DeviceId { device_type: DL_EXT_DEV, device_id: 0 }, "emulated GPU");
        info.unavailable_because = crate::available().err().map(|e| e.to_string());
        vec![info]
    }

    fn open(_ordinal: i32) -> Result<Emulator, GpuError> {
        Ok(Emulator::default())
    }

    fn begin(_asked: &Asked<'_>) -> Result<(), PluginError> {
        Ok(())
    }

    fn prepare(
        device: Arc<DeviceMemory<Emulator>>,
        _ahead: (),
        asked: &Asked<'_>,
    ) -> Result<Arc<DeviceMemory<Emulator>>, PluginError> {
        Ok(match asked.options.text("prefer")? {
            "" => device,
            prefer => DeviceMemory::new(Arc::new(device.driver().prefer(prefer))),
        })
    }
}
