//! The plugin: the part of `gpu_runtime::GpuBackend` that is specific to CUDA, apart from the driver.

use std::sync::Arc;

use cudarc::driver::{result, sys};
use gpu_codegen::Target;
use gpu_runtime::{Candidate, CompilationRequest, Device, GpuBackend, GpuError, Module, SharedCache, Vendor};
use kernel_ir::{Program, Step};
use plugin_sdk::dlpack::DL_CUDA;
use plugin_sdk::{CollectiveEngine, DeviceId, DeviceInfo, OptionKind, OptionSpec, PluginError};

use crate::cuda::Cuda;
use crate::device_properties::{self, DeviceProperties};
use crate::error::error;
use crate::preload::RequiredLibraries;
use crate::vendor::{Libraries, StreamContext};
use crate::{Library, find, locate, nccl, nvrtc};

/// The `cuda` backend.
pub type CudaBackend = GpuBackend<Device<Cuda>>;

/// What a compilation has begun before the device is open: the libraries that it wants.
pub struct BackgroundWork(RequiredLibraries);

impl Vendor for Cuda {
    const NAME: &'static str = "cuda";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const SUMMARY: &'static str = "NVIDIA GPUs: generated kernels compiled by NVRTC";
    const DEVICE_TYPE: i32 = DL_CUDA;
    type Background = BackgroundWork;
    type Caller = Caller;

    fn caller() -> Caller {
        Caller::now()
    }

    fn options() -> Vec<OptionSpec> {
        let toggle = OptionKind::Choice(vec!["on".into(), "off".into()]);
        vec![OptionSpec::new(
            "overlap",
            toggle,
            "on",
            "whether blocks of a kernel that gains by it are placed while the kernel before still runs; holds for the whole \
             device from then on",
        )]
    }

    fn devices() -> Vec<DeviceInfo> {
        let count = match device_properties::count() {
            Ok(0) => return vec![unavailable(0, "the driver sees no device".into())],
            Ok(count) => count,
            Err(e) => return vec![unavailable(0, e.to_string())],
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
            Err(e) => unavailable(ordinal, e.to_string()),
        };
        (0..count).map(info).collect()
    }

    fn collectives() -> Option<Box<dyn CollectiveEngine>> {
        Some(Box::new(nccl::Engine))
    }

    fn open(ordinal: i32, cache: &SharedCache) -> Result<Cuda, GpuError> {
        let properties = DeviceProperties::of(ordinal)?;
        // Said before anything is done; the library is loaded when something has to be compiled.
        nvrtc::identity()?;
        // SAFETY: the device was given by the driver; the context is kept for the life of the process.
        let context = unsafe { result::primary_ctx::retain(properties.device) }
            .map_err(error("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context) }.map_err(error("cuCtxSetCurrent"))?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)
            .map_err(error("cuStreamCreate"))?;
        let libraries =
            Libraries::new(StreamContext::new(context, stream), properties.identity(), Arc::clone(cache));
        let opened = Cuda { properties, context, stream, libraries: Arc::new(libraries) };
        opened.keep_freed_memory()?;
        Ok(opened)
    }

    fn reset(ordinal: i32) -> Result<(), GpuError> {
        let device = result::device::get(ordinal).map_err(error("cuDeviceGet"))?;
        // SAFETY: the device was given by the driver. Whoever still holds something of it is told that it is lost.
        unsafe { sys::cuDevicePrimaryCtxReset_v2(device) }.result().map_err(error("cuDevicePrimaryCtxReset"))
    }

    fn begin(request: &CompilationRequest<'_>, cache: &SharedCache) -> Result<BackgroundWork, PluginError> {
        let properties = DeviceProperties::of(request.ordinal)?;
        let target = request.settings.target(properties.target.clone());
        let required = RequiredLibraries::of(request.program, &target, request.settings.mode);
        required.load(properties.identity(), Arc::clone(cache));
        Ok(BackgroundWork(required))
    }

    fn prepare(
        device: &Device<Cuda>,
        background: BackgroundWork,
        request: &CompilationRequest<'_>,
    ) -> Result<(), PluginError> {
        background.0.start(&device.vendor().libraries);
        device.let_launches_overlap(request.options.text("overlap")? == "on");
        Ok(())
    }

    fn architecture(&self) -> &str {
        &self.properties.architecture
    }

    fn target(&self) -> Target {
        self.properties.target.clone()
    }

    fn identity(&self) -> String {
        let mut version = 0;
        // SAFETY: the number is written to a local; one that is not told is 0.
        let _ = unsafe { sys::cuDriverGetVersion(&mut version) };
        let compiler = nvrtc::identity().unwrap_or_default();
        let libraries = crate::vendor::versions();
        format!("{} driver {version} {compiler} {libraries}", self.properties.identity())
    }

    fn compiler() -> Result<String, GpuError> {
        nvrtc::identity()
    }

    fn compile(&self, module: &Module) -> Result<Vec<u8>, GpuError> {
        nvrtc::compile(module, &self.properties.architecture)
    }

    fn candidates(&self, program: &Program, step: &Step, target: &Target) -> Vec<Candidate> {
        self.libraries.candidates(program, step, target)
    }
}

fn id(ordinal: i32) -> DeviceId {
    DeviceId { device_type: DL_CUDA, device_id: ordinal }
}

/// The context that was current in a thread, which becomes current again: PyTorch takes the device of the current one for its own.
pub struct Caller(Option<sys::CUcontext>);

impl Caller {
    pub(crate) fn now() -> Caller {
        let mut context = std::ptr::null_mut();
        // The functions of the driver are there once it was found.
        let loaded = find(Library::Driver).is_ok();
        // SAFETY: the context is written to a local; before the driver is initialized the call fails.
        let done = loaded.then(|| unsafe { sys::cuCtxGetCurrent(&mut context) }.result());
        Caller(matches!(done, Some(Ok(()))).then_some(context))
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Some(context) = self.0 {
            // SAFETY: it was current in this thread before. One that was destroyed meanwhile is refused.
            let _ = unsafe { result::ctx::set_current(context) };
        }
    }
}

fn unavailable(ordinal: i32, why: String) -> DeviceInfo {
    let mut info = DeviceInfo::new(id(ordinal), "CUDA device");
    info.unavailable_because = Some(why);
    info
}
