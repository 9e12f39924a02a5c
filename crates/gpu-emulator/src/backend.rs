//! The backend `gpu-emulator`, for tooling: its device and its options.

use std::sync::Arc;

use gpu_codegen::Target;
use gpu_runtime::{CompilationRequest, DeviceMemory, Driver, GpuBackend, GpuError, Platform};
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
    type Background = ();
    type Caller = ();

    fn caller() {}

    fn options() -> Vec<OptionSpec> {
        let waves = OptionKind::Choice(vec!["32".into(), "64".into()]);
        vec![
            OptionSpec::new("prefer", OptionKind::Text, "", "candidates whose name contains this come first"),
            OptionSpec::new(
                "wave",
                waves,
                "32",
                "lanes of a wave; those of 64 are an AMD GPU's, with HIP's words",
            ),
            OptionSpec::new(
                "architecture",
                OptionKind::Text,
                "",
                "what kernels are made for: `sm_90a`, `gfx1100`",
            ),
        ]
    }

    fn devices() -> Vec<DeviceInfo> {
        let unavailable = crate::available().err().map(|e| e.to_string());
        let one = |device_id| {
            let mut info = DeviceInfo::new(DeviceId { device_type: DL_EXT_DEV, device_id }, "emulated GPU");
            info.unavailable_because.clone_from(&unavailable);
            info
        };
        // Two, so that what is said of one device can be held against another.
        vec![one(0), one(1)]
    }

    fn open(ordinal: i32) -> Result<Emulator, GpuError> {
        Ok(Emulator::default().numbered(ordinal))
    }

    fn begin(_request: &CompilationRequest<'_>) -> Result<(), PluginError> {
        Ok(())
    }

    fn prepare(
        device: Arc<DeviceMemory<Emulator>>,
        _background: (),
        request: &CompilationRequest<'_>,
    ) -> Result<Arc<DeviceMemory<Emulator>>, PluginError> {
        let (prefer, wave) = (request.options.text("prefer")?, request.options.text("wave")?);
        let architecture = request.options.text("architecture")?;
        if prefer.is_empty() && wave == "32" && architecture.is_empty() {
            return Ok(device);
        }
        let target = match (architecture, wave) {
            ("", "64") => Target::CDNA,
            ("", _) => device.driver().target(),
            (name, _) => Target::of_architecture(name).ok_or_else(|| {
                PluginError::invalid(format!("no architecture is named `{name}`: say `sm_90a`, `gfx942`"))
            })?,
        };
        Ok(DeviceMemory::of_host(Arc::new(device.driver().like(target).prefer(prefer)), device.host()))
    }
}
