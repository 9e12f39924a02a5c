//! The plugin of a GPU backend, the same for all vendors. A vendor adds a [`Platform`]: how its devices are found and
//! opened, and its options beyond those of every GPU.
//!
//! Not here: driver calls (`driver`), compiled programs (`compiled`).

use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError};

use gpu_codegen::{Costs, Model, Tf32};
use kernel_ir::{IR_MAJOR, IR_MINOR, Program};
use plugin_sdk::{
    Backend, CollectiveEngine, CompileRequest, Constants, DType, Description, DeviceId, DeviceInfo,
    Executable, Groups, Host, IrVersion, Listing, OptionKind, OptionSpec, Options, OwnedTensor, PluginError,
    Signature, Stream, TensorView,
};

use crate::{Compiled, CostModel, DeviceMemory, Driver, GpuError, Mode, Settings};

/// Makes a driver a backend.
pub trait Platform: Driver + Sized {
    /// The name by which a user picks the backend.
    const NAME: &'static str;
    /// The version of the backend.
    const VERSION: &'static str;
    /// A one-line summary for listings.
    const SUMMARY: &'static str;
    /// The DLPack type of its devices.
    const DEVICE_TYPE: i32;
    /// Whether callers may have streams of their own; [`Driver::stream`], [`Driver::after`] and [`Driver::before`] are
    /// then implemented.
    const STREAMS: bool = false;
    /// Work that was started before the device is open.
    type Background;
    /// Makes the device that was current in a thread current again when it is dropped.
    type Caller;

    /// What is current in this thread.
    fn caller() -> Self::Caller;

    /// The options of a compilation in addition to `tf32`, `deterministic` and `profile`.
    fn options() -> Vec<OptionSpec> {
        Vec::new()
    }
    /// All devices in the order of their ordinals, including unusable ones with the reason.
    fn devices() -> Vec<DeviceInfo>;
    /// Opens a device.
    ///
    /// # Errors
    /// There is no such device, or a library is missing.
    fn open(ordinal: i32) -> Result<Self, GpuError>;
    /// Resets a lost device ([`Driver::is_lost`]), so that it can be opened again.
    ///
    /// # Errors
    /// The device stays lost.
    fn reset(ordinal: i32) -> Result<(), GpuError> {
        let _ = ordinal;
        Ok(())
    }
    /// The engine that exchanges data between ranks, in memory of these devices, where there is one.
    fn collectives() -> Option<Box<dyn CollectiveEngine>> {
        None
    }
    /// Starts work that takes long and does not need the open device.
    ///
    /// # Errors
    /// An option has an invalid value, or there is no such device.
    fn begin(request: &CompilationRequest<'_>) -> Result<Self::Background, PluginError>;
    /// Configures the device for this compilation and continues the work that was started.
    ///
    /// # Errors
    /// An option has an invalid value.
    fn prepare(
        device: Arc<DeviceMemory<Self>>,
        ahead: Self::Background,
        request: &CompilationRequest<'_>,
    ) -> Result<Arc<DeviceMemory<Self>>, PluginError>;
}

/// The request of one compilation.
pub struct CompilationRequest<'a> {
    /// The device's ordinal.
    pub ordinal: i32,
    /// The program.
    pub program: &'a Program,
    /// The part of the request that every GPU backend interprets.
    pub settings: &'a Settings,
    /// Every declared option with its value.
    pub options: &'a Options,
}

/// The backend of a vendor.
///
/// Its functions leave the device that is current in the calling thread as it was: a caller may use several, by other libraries too.
pub struct GpuBackend<D: Platform> {
    host: Host,
    /// Devices that are in use, opened once.
    open: Mutex<HashMap<i32, Arc<DeviceMemory<D>>>>,
}

impl<D: Platform> Default for GpuBackend<D> {
    fn default() -> Self {
        GpuBackend { host: Host::NONE, open: Mutex::default() }
    }
}

impl<D: Platform> GpuBackend<D> {
    /// The memory of a device, which is opened if necessary. A lost device is opened again; its contents are gone.
    fn device(&self, ordinal: i32) -> Result<Arc<DeviceMemory<D>>, GpuError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memory) = open.get(&ordinal) {
            if !memory.driver().is_lost() {
                return Ok(Arc::clone(memory));
            }
            D::reset(ordinal)?;
            open.remove(&ordinal);
        }
        let memory = DeviceMemory::of_host(Arc::new(D::open(ordinal)?), self.host);
        open.insert(ordinal, Arc::clone(&memory));
        Ok(memory)
    }

    /// Adds the memory usage of a device that is in use.
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
fn options() -> [OptionSpec; 4] {
    let toggle = || OptionKind::Choice(vec!["on".into(), "off".into()]);
    [
        OptionSpec::new(
            "tf32",
            OptionKind::Choice(Tf32::ALL.iter().map(|t| t.name().into()).collect()),
            Tf32::Off.name(),
            "whether float32 convolutions, matrix products or both may be computed in tf32, with 10 bits of mantissa",
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
        OptionSpec::new(
            "costs",
            OptionKind::Text,
            "",
            "the cost model of products and convolutions: that of the architecture, `off`, or a file of coefficients",
        ),
    ]
}

/// The cost model that an option names.
fn costs(option: &str) -> Result<CostModel, GpuError> {
    let wrong = |what: String| GpuError::Argument(format!("the option `costs={option}`: {what}"));
    match option {
        "" => Ok(CostModel::BuiltIn),
        "off" => Ok(CostModel::Off),
        path => {
            let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
            let model = Model::parse(&text).map_err(|e| wrong(e.to_string()))?;
            Ok(CostModel::Given(Costs(Arc::new(model))))
        }
    }
}

/// The settings of a request.
fn settings(request: &CompileRequest<'_>) -> Result<Settings, PluginError> {
    let options = &request.options;
    Ok(Settings {
        mode: request.mode.parse().unwrap_or_default(),
        tf32: Tf32::named(options.text("tf32")?),
        deterministic: Some(options.text("deterministic")? == "on"),
        profile: u32::try_from(options.int("profile")?.max(0)).unwrap_or(u32::MAX),
        costs: costs(options.text("costs")?)?,
    })
}

impl<D: Platform> Backend for GpuBackend<D> {
    fn open(host: Host) -> Result<Self, PluginError> {
        Ok(Self { host, ..Self::default() })
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
        let _caller = D::caller();
        Ok(crate::to_device(&self.device(device.device_id)?, tensor)?)
    }

    fn to_host(&self, tensor: &TensorView<'_>) -> Result<OwnedTensor, PluginError> {
        let _caller = D::caller();
        Ok(crate::to_host(&self.device(tensor.device().device_id)?, tensor)?)
    }

    fn allocate(
        &self,
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
        device: DeviceId,
    ) -> Result<OwnedTensor, PluginError> {
        let _caller = D::caller();
        Ok(crate::allocate(&self.device(device.device_id)?, dtype, sizes, strides)?)
    }

    fn copy(&self, from: &TensorView<'_>, to: &TensorView<'_>, stream: Stream) -> Result<(), PluginError> {
        let _caller = D::caller();
        let here = [from, to].into_iter().find(|t| t.device().device_type == D::DEVICE_TYPE);
        let memory = self.device(here.map_or(0, |t| t.device().device_id))?;
        on_stream(&**memory.driver(), stream, || {
            // SAFETY: the host guarantees that `to` is valid for writes.
            unsafe { crate::copy(&memory, from, to) }
        })
    }

    fn has_streams(&self) -> bool {
        D::STREAMS
    }

    fn has_inspection(&self) -> bool {
        true
    }

    /// All work of a device is on one stream, which every caller gets.
    fn create_stream(&self, device: DeviceId) -> Result<Stream, PluginError> {
        let _caller = D::caller();
        Ok(self.device(device.device_id)?.driver().stream())
    }

    fn synchronize(&self, device: DeviceId, stream: Stream) -> Result<(), PluginError> {
        let _caller = D::caller();
        let memory = self.device(device.device_id)?;
        let driver = memory.driver();
        if stream != Stream::DEFAULT && stream != driver.stream() {
            driver.after(stream)?;
        }
        Ok(memory.synchronize()?)
    }

    fn collectives(&self) -> Option<Box<dyn CollectiveEngine>> {
        D::collectives()
    }

    fn runs_collectives(&self) -> bool {
        true
    }

    fn compile(&self, request: &CompileRequest<'_>) -> Result<Box<dyn Executable>, PluginError> {
        let _caller = D::caller();
        let program = request.kernels()?;
        // There are no kernels for products of 8-bit integers.
        let program = program.with_dequantized_weights().unwrap_or(program);
        let program = program.with_float_products().unwrap_or(program);
        let settings = settings(request)?;
        let ordinal = request.device.device_id;
        let request =
            CompilationRequest { ordinal, program: &program, settings: &settings, options: &request.options };
        let ahead = D::begin(&request)?;
        let device = D::prepare(self.device(ordinal)?, ahead, &request)?;
        let compiled = Compiled::with(&device, program, settings)?;
        Ok(Box::new(GpuExecutable(ManuallyDrop::new(compiled))))
    }
}

/// Runs work on the device's own stream, ordered with a caller's stream before and after. For the default stream it waits
/// for the work.
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

struct GpuExecutable<D: Platform>(ManuallyDrop<Compiled<D>>);

impl<D: Platform> Drop for GpuExecutable<D> {
    fn drop(&mut self) {
        let _caller = D::caller();
        // SAFETY: it is dropped here alone, and nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl<D: Platform> Executable for GpuExecutable<D> {
    fn signature(&self) -> Signature {
        let p = self.0.program();
        Signature { inputs: p.inputs.len(), outputs: p.outputs.len(), constants: p.constants.len() }
    }

    fn attach_groups(&mut self, groups: Groups) -> Result<(), PluginError> {
        self.0.attach(groups);
        Ok(())
    }

    fn bind_constants(&mut self, constants: &Constants<'_>) -> Result<(), PluginError> {
        let _caller = D::caller();
        let all: Vec<_> = constants.iter().collect();
        Ok(self.0.bind(&all)?)
    }

    fn reads_constant(&self, index: usize) -> bool {
        self.0.reads_constant(index)
    }

    /// A call on the default stream waits for its work. On other streams it does not: `synchronize`, a copy to the host or
    /// a later call of the program then reports an index that is out of bounds.
    fn execute(
        &self,
        inputs: &[TensorView<'_>],
        _constants: &Constants<'_>,
        stream: Stream,
    ) -> Result<Vec<OwnedTensor>, PluginError> {
        let _caller = D::caller();
        match stream {
            Stream::DEFAULT => Ok(self.0.call(inputs)?),
            stream => Ok(self.0.execute_on(stream, inputs)?),
        }
    }

    fn listings(&self) -> Result<Vec<Listing>, PluginError> {
        Ok(self.0.listings())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_file_of_coefficients_is_an_error_that_names_it() {
        assert_eq!(costs("").ok(), Some(CostModel::BuiltIn));
        assert_eq!(costs("off").ok(), Some(CostModel::Off));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("costs.txt");
        let option = path.display().to_string();
        let said = |text: Option<&str>| {
            text.iter().for_each(|text| std::fs::write(&path, text).unwrap());
            let error = costs(&option).unwrap_err().to_string();
            assert!(error.contains(&option), "{error}");
            error
        };
        assert!(said(None).contains("No such file"));
        assert!(said(Some("\u{0}garbage")).contains("not a file of coefficients"));
        assert!(said(Some("ferroflux costs 1\narchitecture sm_90\nkind mma\nlaunch x\n")).contains("line 4"));
        std::fs::write(&path, "ferroflux costs 1\narchitecture sm_90\n").unwrap();
        assert!(matches!(costs(&option), Ok(CostModel::Given(_))));
    }
}
