//! The plugin: what `gpu_runtime::GpuBackend` asks of ROCm beyond the calls of the runtime.

use std::ffi::c_int;

use gpu_codegen::Target;
use gpu_runtime::{Candidate, CompilationRequest, Device, GpuBackend, GpuError, Module, SharedCache, Vendor};
use kernel_ir::{Program, Step};
use plugin_sdk::dlpack::DL_ROCM;
use plugin_sdk::{DeviceId, DeviceInfo, PluginError};

use crate::api::api;
use crate::compiler;
use crate::device_properties::DeviceProperties;
use crate::hip::Hip;

/// The `rocm` backend.
pub type RocmBackend = GpuBackend<Device<Hip>>;

impl Vendor for Hip {
    const NAME: &'static str = "rocm";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "AMD GPUs: generated kernels compiled by hiprtc or clang";
    const DEVICE_TYPE: i32 = DL_ROCM;
    type Background = ();
    type Caller = Caller;

    fn caller() -> Caller {
        Caller::now()
    }

    fn devices() -> Vec<DeviceInfo> {
        let (api, count) = match api().and_then(|api| Ok((api, api.devices()?))) {
            Ok((_, 0)) => return vec![unavailable(0, "the HIP runtime sees no device".into())],
            Ok(found) => found,
            Err(e) => return vec![unavailable(0, e.to_string())],
        };
        let compiler = compiler::about().err().map(|e| e.to_string());
        let info = |ordinal| match DeviceProperties::of(ordinal) {
            Ok(device) => {
                let mut info = DeviceInfo::new(id(ordinal), device.properties.name.clone());
                info.memory_bytes = device.properties.memory;
                info.attributes = device.attributes(api);
                info.unavailable_because = compiler.clone();
                info
            }
            Err(e) => unavailable(ordinal, e.to_string()),
        };
        (0..count).map(info).collect()
    }

    fn open(ordinal: i32, _cache: &SharedCache) -> Result<Hip, GpuError> {
        let device = DeviceProperties::of(ordinal)?;
        // Said before anything is done.
        compiler::identity()?;
        Hip::new(api()?, ordinal, device)
    }

    fn reset(ordinal: i32) -> Result<(), GpuError> {
        let api = api()?;
        // SAFETY: the device is there. Whoever still holds something of it is told that it is lost.
        unsafe {
            api.done("hipSetDevice", (api.runtime.set_device)(ordinal))?;
            api.done("hipDeviceReset", (api.runtime.device_reset)())
        }
    }

    fn begin(_request: &CompilationRequest<'_>, _cache: &SharedCache) -> Result<(), PluginError> {
        Ok(())
    }

    fn prepare(
        _device: &Device<Hip>,
        _background: (),
        _request: &CompilationRequest<'_>,
    ) -> Result<(), PluginError> {
        Ok(())
    }

    fn architecture(&self) -> &str {
        &self.architecture
    }

    fn target(&self) -> Target {
        self.device.target.clone()
    }

    fn identity(&self) -> String {
        let libraries = crate::libraries::stamps();
        let compiler = compiler::identity().unwrap_or_default();
        format!("{} hip {} {compiler}{libraries}", self.device.identity(), self.context.api.version)
    }

    fn compiler() -> Result<String, GpuError> {
        compiler::identity()
    }

    fn compile(&self, module: &Module) -> Result<Vec<u8>, GpuError> {
        compiler::compile(module, &self.architecture)
    }

    fn candidates(&self, program: &Program, step: &Step, target: &Target) -> Vec<Candidate> {
        self.libraries.candidates(program, step, target)
    }
}

fn id(ordinal: i32) -> DeviceId {
    DeviceId { device_type: DL_ROCM, device_id: ordinal }
}

/// The device that was current in a thread, which becomes current again.
pub struct Caller(Option<c_int>);

impl Caller {
    fn now() -> Caller {
        let mut ordinal = 0;
        // SAFETY: the number is written to a local.
        let found = api().ok().map(|api| unsafe { (api.runtime.get_device)(&mut ordinal) });
        Caller((found == Some(0)).then_some(ordinal))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let (Some(ordinal), Ok(api)) = (self.0, api()) {
            // SAFETY: the device is there.
            let _ = unsafe { (api.runtime.set_device)(ordinal) };
        }
    }
}

fn unavailable(ordinal: i32, why: String) -> DeviceInfo {
    let mut info = DeviceInfo::new(id(ordinal), "ROCm device");
    info.unavailable_because = Some(why);
    info
}
