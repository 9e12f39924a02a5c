//! The plugin: what the host sees of this backend.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use gpu_codegen::Target;
use gpu_runtime::{Compiled, DeviceMemory, Driver, GpuError, Mode, Settings};
use kernel_ir::{IR_MAJOR, IR_MINOR};
use plugin_sdk::dlpack::DL_CUDA;
use plugin_sdk::{
    Backend, CompileRequest, Constants, DType, Description, DeviceId, DeviceInfo, Executable, Host,
    IrVersion, OptionKind, OptionSpec, OwnedTensor, PluginError, Signature, Stream, TensorView,
};

use crate::ahead::Wanted;
use crate::cache::Cache;
use crate::card::{self, Card};
use crate::driver::Device;

type Memory = Arc<DeviceMemory<Device>>;

/// The `cuda` backend.
#[derive(Default)]
pub struct CudaBackend {
    /// Devices that are in use, opened once.
    open: Mutex<HashMap<i32, Memory>>,
}

impl CudaBackend {
    /// The memory of a device, opened where it is not. One that was lost is opened anew: what was on it is gone.
    fn device(&self, ordinal: i32) -> Result<Memory, GpuError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = open.get(&ordinal) {
            if !memory.driver().is_lost() {
                return Ok(Arc::clone(memory));
            }
            Device::reset(ordinal)?;
            open.remove(&ordinal);
        }
        let memory = DeviceMemory::new(Arc::new(Device::open(ordinal)?));
        open.insert(ordinal, Arc::clone(&memory));
        Ok(memory)
    }

    /// A device that is in use.
    fn opened(&self, ordinal: i32) -> Option<Memory> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&ordinal).cloned()
    }
}

fn options() -> [OptionSpec; 5] {
    let toggle = || OptionKind::Choice(vec!["on".into(), "off".into()]);
    [
        OptionSpec::new(
            "tf32",
            toggle(),
            "off",
            "whether float32 products may be computed in tf32, with 10 bits of mantissa",
        ),
        OptionSpec::new(
            "deterministic",
            toggle(),
            "off",
            "whether sums must not depend on the order in which blocks end",
        ),
        OptionSpec::new(
            "cache",
            OptionKind::Text,
            "",
            "folder of compiled code; `off` keeps none, nothing is the system's cache folder",
        ),
        OptionSpec::new(
            "overlap",
            toggle(),
            "on",
            "whether blocks of a kernel that gains by it are placed while the kernel before still runs; holds for the whole \
             device from then on",
        ),
        OptionSpec::new(
            "profile",
            OptionKind::Int,
            "0",
            "calls of which every step's time is measured and logged",
        ),
    ]
}

impl Backend for CudaBackend {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(CudaBackend::default())
    }

    fn describe(&self) -> Description {
        let description = Description::new("cuda", env!("CARGO_PKG_VERSION"))
            .summary("NVIDIA GPUs: generated kernels compiled by NVRTC")
            .reads(IrVersion::kernel_ir(IR_MAJOR, IR_MINOR));
        let description = Mode::OTHERS.iter().fold(description, |d, mode| d.mode(mode.name()));
        options().into_iter().fold(description, Description::option)
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        let id = |ordinal| DeviceId { device_type: DL_CUDA, device_id: ordinal };
        let unavailable = |why: String| {
            let mut info = DeviceInfo::new(id(0), "CUDA device");
            info.unavailable_because = Some(why);
            info
        };
        let count = match card::count() {
            Ok(0) => return vec![unavailable("the driver sees no device".into())],
            Ok(count) => count,
            Err(e) => return vec![unavailable(e.to_string())],
        };
        let nvrtc = crate::locate(crate::Library::Nvrtc)
            .or_else(|_| crate::find(crate::Library::Nvrtc))
            .err()
            .map(|e| e.to_string());
        let info = |ordinal| match Card::of(ordinal).and_then(|card| Ok((card.memory()?, card))) {
            Ok((bytes, card)) => {
                let mut info = DeviceInfo::new(id(ordinal), card.name.clone());
                info.memory_bytes = bytes;
                info.attributes = card.attributes();
                if let Some(memory) = self.opened(ordinal) {
                    let usage = memory.usage();
                    let mut add = |name: &str, n: u64| info.attributes.push((name.into(), n.to_string()));
                    add("memory_used_bytes", usage.used);
                    add("memory_peak_bytes", usage.peak);
                    add("memory_reserved_bytes", usage.reserved);
                    add("memory_allocations", usage.allocations);
                }
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

    fn allocate(
        &self,
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
        device: DeviceId,
    ) -> Result<OwnedTensor, PluginError> {
        Ok(gpu_runtime::allocate(&self.device(device.device_id)?, dtype, sizes, strides)?)
    }

    fn copy(&self, from: &TensorView<'_>, to: &TensorView<'_>, stream: Stream) -> Result<(), PluginError> {
        let here = [from, to].into_iter().find(|t| t.device().device_type == DL_CUDA);
        let memory = self.device(here.map_or(0, |t| t.device().device_id))?;
        on_stream(memory.driver(), stream, || {
            // SAFETY: the host vouches for the memory behind `to`.
            unsafe { gpu_runtime::copy(&memory, from, to) }
        })
    }

    fn has_streams(&self) -> bool {
        true
    }

    /// All work of a device is on one stream, so that is what everyone gets.
    fn create_stream(&self, device: DeviceId) -> Result<Stream, PluginError> {
        Ok(Stream(self.device(device.device_id)?.driver().stream().cast()))
    }

    fn synchronize(&self, device: DeviceId, stream: Stream) -> Result<(), PluginError> {
        let memory = self.device(device.device_id)?;
        let driver = memory.driver();
        if stream != Stream::DEFAULT && stream.0 != driver.stream().cast() {
            driver.after(stream.0.cast())?;
        }
        Ok(memory.synchronize()?)
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let program = request.kernels()?;
        let ordinal = request.device.device_id;
        let mode = request.mode.parse().unwrap_or_default();
        let options = &request.options;
        let cache = Cache::named(options.text("cache")?);
        let tf32 = options.text("tf32")? == "on";
        let card = Card::of(ordinal)?;
        let wanted = Wanted::of(&program, &Target { tf32, ..card.target.clone() }, mode);
        wanted.load(card.identity(), Arc::new(Mutex::new(cache.clone())));
        let memory = self.device(ordinal)?;
        wanted.start(memory.driver().vendor());
        memory.driver().keep_code_in(cache);
        memory.driver().let_launches_overlap(options.text("overlap")? == "on");
        let settings = Settings {
            mode,
            tf32: Some(tf32),
            deterministic: Some(options.text("deterministic")? == "on"),
            profile: u32::try_from(options.int("profile")?.max(0)).unwrap_or(u32::MAX),
        };
        Ok(Box::new(CudaExecutable(Compiled::with(&memory, program, settings)?)))
    }
}

/// Puts work on the device's own stream so that a caller's stream sees it in order. The default stream waits for it.
fn on_stream<T>(
    driver: &Device,
    stream: Stream,
    work: impl FnOnce() -> Result<T, GpuError>,
) -> Result<T, PluginError> {
    let own = stream.0 == driver.stream().cast();
    let foreign = stream != Stream::DEFAULT && !own;
    if foreign {
        driver.after(stream.0.cast())?;
    }
    let result = work()?;
    if foreign {
        driver.before(stream.0.cast())?;
    } else if !own {
        driver.synchronize()?;
    }
    Ok(result)
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

    /// On the default stream a call is waited for. On another one it is not: an index that is out of bounds is then reported by
    /// `synchronize`, by a copy to the host or by a later call of the program.
    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        _constants: &Constants<'_>,
        stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        if stream == Stream::DEFAULT {
            return Ok(self.0.call(inputs)?);
        }
        let memory = Arc::clone(self.0.memory());
        on_stream(memory.driver(), stream, || self.0.execute(inputs))
    }
}
