//! The plugin of a GPU backend: what the host sees of the devices of any vendor. A vendor adds a [`Platform`]: how its devices
//! are found and opened, and what options it takes beyond those that every GPU has.
//!
//! Not here: driver calls (`driver`), compiled programs (`compiled`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kernel_ir::{IR_MAJOR, IR_MINOR, Program};
use plugin_sdk::{
    Backend, CompileRequest, Constants, DType, Description, DeviceId, DeviceInfo, Executable, Host,
    IrVersion, OptionKind, OptionSpec, Options, OwnedTensor, PluginError, Signature, Stream, TensorView,
};

use crate::{Compiled, DeviceMemory, Driver, GpuError, Mode, Settings};

/// What makes a driver a backend.
pub trait Platform: Driver + Sized {
    /// The name by which a user picks the backend.
    const NAME: &'static str;
    /// The version of the backend.
    const VERSION: &'static str;
    /// One line for listings.
    const SUMMARY: &'static str;
    /// The DLPack type of its devices.
    const DEVICE_TYPE: i32;
    /// Whether callers may have streams of their own; [`Driver::stream`], [`Driver::after`] and [`Driver::before`] work then.
    const STREAMS: bool = false;
    /// What was begun before the device was open.
    type Background;

    /// The options of a compilation beside `tf32`, `deterministic` and `profile`.
    fn options() -> Vec<OptionSpec> {
        Vec::new()
    }
    /// All devices in the order of their ordinals, also those that cannot be used, with the reason.
    fn devices() -> Vec<DeviceInfo>;
    /// Opens a device.
    ///
    /// # Errors
    /// No such device, a library that is missing.
    fn open(ordinal: i32) -> Result<Self, GpuError>;
    /// Takes back a device that was lost ([`Driver::is_lost`]), so that it may be opened anew.
    ///
    /// # Errors
    /// The device stays lost.
    fn reset(ordinal: i32) -> Result<(), GpuError> {
        let _ = ordinal;
        Ok(())
    }
    /// Begins what takes long and does not need the open device.
    ///
    /// # Errors
    /// An option that means nothing, no such device.
    fn begin(request: &CompilationRequest<'_>) -> Result<Self::Background, PluginError>;
    /// The device as this compilation wants it; what was begun goes on.
    ///
    /// # Errors
    /// An option that means nothing.
    fn prepare(
        device: Arc<DeviceMemory<Self>>,
        ahead: Self::Background,
        request: &CompilationRequest<'_>,
    ) -> Result<Arc<DeviceMemory<Self>>, PluginError>;
}

/// What one compilation asks for.
pub struct CompilationRequest<'a> {
    /// The device's ordinal.
    pub ordinal: i32,
    /// The program.
    pub program: &'a Program,
    /// What every GPU backend understands of the request.
    pub settings: &'a Settings,
    /// Every declared option with its value.
    pub options: &'a Options,
}

/// The backend of a vendor.
pub struct GpuBackend<D: Platform> {
    /// Devices that are in use, opened once.
    open: Mutex<HashMap<i32, Arc<DeviceMemory<D>>>>,
}

impl<D: Platform> Default for GpuBackend<D> {
    fn default() -> Self {
        GpuBackend { open: Mutex::default() }
    }
}

impl<D: Platform> GpuBackend<D> {
    /// The memory of a device, opened where it is not. One that was lost is opened anew: what was on it is gone.
    fn device(&self, ordinal: i32) -> Result<Arc<DeviceMemory<D>>, GpuError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = open.get(&ordinal) {
            if !memory.driver().is_lost() {
                return Ok(Arc::clone(memory));
            }
            D::reset(ordinal)?;
            open.remove(&ordinal);
        }
        let memory = DeviceMemory::new(Arc::new(D::open(ordinal)?));
        open.insert(ordinal, Arc::clone(&memory));
        Ok(memory)
    }

    /// Adds what the memory of a device that is in use has to say.
    fn with_usage(&self, mut info: DeviceInfo) -> DeviceInfo {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = open.get(&info.device.device_id) {
            let usage = memory.usage();
            let mut add = |name: &str, n: u64| info.attributes.push((name.into(), n.to_string()));
            add("memory_used_bytes", usage.used);
            add("memory_peak_bytes", usage.peak);
            add("memory_reserved_bytes", usage.reserved);
            add("memory_allocations", usage.allocations);
        }
        info
    }
}

/// The options of every GPU backend.
fn options() -> [OptionSpec; 3] {
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
            "profile",
            OptionKind::Int,
            "0",
            "calls of which every step's time is measured and logged",
        ),
    ]
}

/// The settings that a request asks for.
fn settings(request: &CompileRequest<'_>) -> Result<Settings, PluginError> {
    let options = &request.options;
    Ok(Settings {
        mode: request.mode.parse().unwrap_or_default(),
        tf32: Some(options.text("tf32")? == "on"),
        deterministic: Some(options.text("deterministic")? == "on"),
        profile: u32::try_from(options.int("profile")?.max(0)).unwrap_or(u32::MAX),
    })
}

impl<D: Platform> Backend for GpuBackend<D> {
    fn open(_host: Host) -> Result<Self, PluginError> {
        Ok(Self::default())
    }

    fn describe(&self) -> Description {
        let description = Description::new(D::NAME, D::VERSION)
            .summary(D::SUMMARY)
            .reads(IrVersion::kernel_ir(IR_MAJOR, IR_MINOR));
        let description = Mode::OTHERS.iter().fold(description, |d, mode| d.mode(mode.name()));
        options().into_iter().chain(D::options()).fold(description, Description::option)
    }

    fn devices(&self) -> Vec<DeviceInfo> {
        D::devices().into_iter().map(|info| self.with_usage(info)).collect()
    }

    fn has_device_memory(&self) -> bool {
        true
    }

    fn to_device(&self, tensor: &TensorView<'_>, device: DeviceId) -> Result<OwnedTensor, PluginError> {
        Ok(crate::to_device(&self.device(device.device_id)?, tensor)?)
    }

    fn to_host(&self, tensor: &TensorView<'_>) -> Result<OwnedTensor, PluginError> {
        Ok(crate::to_host(&self.device(tensor.device().device_id)?, tensor)?)
    }

    fn allocate(
        &self,
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
        device: DeviceId,
    ) -> Result<OwnedTensor, PluginError> {
        Ok(crate::allocate(&self.device(device.device_id)?, dtype, sizes, strides)?)
    }

    fn copy(&self, from: &TensorView<'_>, to: &TensorView<'_>, stream: Stream) -> Result<(), PluginError> {
        let here = [from, to].into_iter().find(|t| t.device().device_type == D::DEVICE_TYPE);
        let memory = self.device(here.map_or(0, |t| t.device().device_id))?;
        on_stream(&**memory.driver(), stream, || {
            // SAFETY: the host vouches for the memory behind `to`.
            unsafe { crate::copy(&memory, from, to) }
        })
    }

    fn has_streams(&self) -> bool {
        D::STREAMS
    }

    /// All work of a device is on one stream, so that is what everyone gets.
    fn create_stream(&self, device: DeviceId) -> Result<Stream, PluginError> {
        Ok(self.device(device.device_id)?.driver().stream())
    }

    fn synchronize(&self, device: DeviceId, stream: Stream) -> Result<(), PluginError> {
        let memory = self.device(device.device_id)?;
        let driver = memory.driver();
        if stream != Stream::DEFAULT && stream != driver.stream() {
            driver.after(stream)?;
        }
        Ok(memory.synchronize()?)
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let program = request.kernels()?;
        let settings = settings(request)?;
        let ordinal = request.device.device_id;
        let request =
            CompilationRequest { ordinal, program: &program, settings: &settings, options: &request.options };
        let ahead = D::begin(&request)?;
        let device = D::prepare(self.device(ordinal)?, ahead, &request)?;
        Ok(Box::new(GpuExecutable(Compiled::with(&device, program, settings)?)))
    }
}

/// Puts work on the device's own stream so that a caller's stream sees it in order. The default stream waits for it.
fn on_stream<D: Driver, T>(
    driver: &D,
    stream: Stream,
    work: impl FnOnce() -> Result<T, GpuError>,
) -> Result<T, PluginError> {
    let foreign = stream != Stream::DEFAULT && stream != driver.stream();
    if foreign {
        driver.after(stream)?;
    }
    let result = work()?;
    if foreign {
        driver.before(stream)?;
    } else if stream == Stream::DEFAULT {
        driver.synchronize()?;
    }
    Ok(result)
}

struct GpuExecutable<D: Driver>(Compiled<D>);

impl<D: Driver> Executable for GpuExecutable<D> {
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
        on_stream(&**memory.driver(), stream, || self.0.execute(inputs))
    }
}
