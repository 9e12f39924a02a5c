//! The backend `gpu-emulator`, for tooling: the plugin table over an emulated device.

use std::sync::{Arc, OnceLock};

use gpu_runtime::{Compiled, DeviceMemory, Mode, Settings};
use kernel_ir::{IR_MAJOR, IR_MINOR};
use plugin_sdk::dlpack::DL_EXT_DEV;
use plugin_sdk::{
    Backend, CompileRequest, Constants, Description, DeviceId, DeviceInfo, Executable, Host, IrVersion,
    OptionKind, OptionSpec, OwnedTensor, PluginError, Signature, Stream, TensorView,
};

use crate::Emulator;

/// The `gpu-emulator` backend: one device.
#[derive(Default)]
pub struct EmulatorBackend {
    device: OnceLock<Arc<DeviceMemory<Emulator>>>,
}

impl EmulatorBackend {
    fn device(&self) -> &Arc<DeviceMemory<Emulator>> {
        self.device.get_or_init(|| DeviceMemory::new(Arc::default()))
    }
}

impl Backend for EmulatorBackend {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(EmulatorBackend::default())
    }

    fn describe(&self) -> Description {
        let description = Description::new("gpu-emulator", env!("CARGO_PKG_VERSION"));
        Mode::OTHERS
            .iter()
            .fold(description, |d, mode| d.mode(mode.name()))
            .summary("generated GPU kernels on the host, by the C++ compiler: slow, for tests")
            .reads(IrVersion::kernel_ir(IR_MAJOR, IR_MINOR))
            .option(OptionSpec::new(
                "prefer",
                OptionKind::Text,
                "",
                "ways whose name contains this come first",
            ))
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let mut info = DeviceInfo::new(DeviceId { device_type: DL_EXT_DEV, device_id: 0 }, "emulated GPU");
        info.unavailable_because = crate::available().err().map(|e| e.to_string());
        vec![info]
    }

    fn has_device_memory(&self) -> bool {
        true
    }

    fn to_device(&self, tensor: &TensorView<'_>, _device: DeviceId) -> Result<OwnedTensor, PluginError> {
        Ok(gpu_runtime::to_device(self.device(), tensor)?)
    }

    fn to_host(&self, tensor: &TensorView<'_>) -> Result<OwnedTensor, PluginError> {
        Ok(gpu_runtime::to_host(self.device(), tensor)?)
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let settings = Settings { mode: request.mode.parse().unwrap_or_default(), ..Settings::default() };
        let device = match request.options.text("prefer")? {
            "" => Arc::clone(self.device()),
            prefer => DeviceMemory::new(Arc::new(self.device().driver().prefer(prefer))),
        };
        let compiled = Compiled::with(&device, request.kernels()?, settings)?;
        Ok(Box::new(EmulatorExecutable(compiled)))
    }
}

struct EmulatorExecutable(Compiled<Emulator>);

impl Executable for EmulatorExecutable {
    fn signature(&self) -> Signature {
        let p = self.0.program();
        Signature { inputs: p.inputs.len(), outputs: p.outputs.len(), constants: p.constants.len() }
    }

    fn bind_constants(&mut self, constants: &Constants<'_>) -> Result<(), PluginError> {
        let all: Vec<_> = constants.iter().collect();
        Ok(self.0.bind(&all)?)
    }

    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        _constants: &Constants<'_>,
        _stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        Ok(self.0.call(inputs)?)
    }
}
