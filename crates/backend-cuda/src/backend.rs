//! The plugin: what the host sees of this backend.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gpu_runtime::{Compiled, GpuError};
use kernel_ir::{IR_MAJOR, IR_MINOR};
use plugin_sdk::dlpack::DL_CUDA;
use plugin_sdk::{
    Backend, CompileRequest, Constants, Description, DeviceId, DeviceInfo, Executable, Host, IrVersion,
    OwnedTensor, PluginError, Signature, Stream, TensorView,
};

use crate::driver::{self, Device};

/// The `cuda` backend.
#[derive(Default)]
pub struct CudaBackend {
    /// Devices that were compiled for, opened once.
    open: Mutex<HashMap<i32, Arc<Device>>>,
}

impl CudaBackend {
    fn device(&self, ordinal: i32) -> Result<Arc<Device>, GpuError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.get(&ordinal) {
            return Ok(Arc::clone(device));
        }
        let device = Arc::new(Device::open(ordinal)?);
        open.insert(ordinal, Arc::clone(&device));
        Ok(device)
    }
}

impl Backend for CudaBackend {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(CudaBackend::default())
    }

    fn describe(&self) -> Description {
        Description::new("cuda", env!("CARGO_PKG_VERSION"))
            .summary("NVIDIA GPUs: generated kernels compiled by NVRTC")
            .reads(IrVersion::kernel_ir(IR_MAJOR, IR_MINOR))
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let id = |ordinal| DeviceId { device_type: DL_CUDA, device_id: ordinal };
        let unavailable = |why: String| {
            let mut info = DeviceInfo::new(id(0), "CUDA device");
            info.unavailable_because = Some(why);
            info
        };
        let count = match driver::count() {
            Ok(0) => return vec![unavailable("the driver sees no device".into())],
            Ok(count) => count,
            Err(e) => return vec![unavailable(e.to_string())],
        };
        let nvrtc = crate::find(crate::Library::Nvrtc).err().map(|e| e.to_string());
        let info = |ordinal| match driver::about(ordinal) {
            Ok(about) => {
                let mut info = DeviceInfo::new(id(ordinal), about.name);
                info.memory_bytes = about.memory;
                info.attributes = about.attributes;
                info.unavailable_because = nvrtc.clone();
                info
            }
            Err(e) => unavailable(e.to_string()),
        };
        (0..count).map(info).collect()
    }

    fn has_device_memory(&self) -> bool {
        true
    }

    fn to_device(&self, tensor: &TensorView<'_>, device: DeviceId) -> Result<OwnedTensor, PluginError> {
        Ok(gpu_runtime::to_device(&self.device(device.device_id)?, tensor)?)
    }

    fn to_host(&self, tensor: &TensorView<'_>) -> Result<OwnedTensor, PluginError> {
        Ok(gpu_runtime::to_host(&self.device(tensor.device().device_id)?, tensor)?)
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let device = self.device(request.device.device_id)?;
        Ok(Box::new(CudaExecutable(Compiled::new(device, request.kernels()?)?)))
    }
}

struct CudaExecutable(Compiled<Device>);

impl Executable for CudaExecutable {
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
        Ok(self.0.execute(inputs)?)
    }
}
