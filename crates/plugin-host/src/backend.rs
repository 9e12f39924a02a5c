//! A loaded plugin as a safe handle: description, devices, and the calls that take a program.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use plugin_abi::{
    ABI_MAJOR, ABI_MINOR, DLDevice, FfxCompileRequest, FfxEntry, FfxIrVersion, FfxMemoryEstimate,
    FfxNameValue, FfxProgram, FfxRefusal, FfxStr, Head,
};

use crate::handshake::{self, Slots, call};
use crate::program::for_reader;
use crate::read::{Described, refusal};
use crate::{
    BackendInfo, DeviceInfo, HostError, LoadedExecutable, MemoryEstimate, OptionInfo, Refusal, Source,
    nearest,
};

/// The arguments of a compilation.
#[derive(Clone, Copy, Debug)]
pub struct CompileArgs<'a> {
    /// Form of the bytes.
    pub ir: FfxIrVersion,
    /// The program.
    pub bytes: &'a [u8],
    /// Device to compile for; `None` is that of the backend ([`LoadedBackend::device`]).
    pub device: Option<DLDevice>,
    /// Mode; empty is `default`.
    pub mode: &'a str,
    /// Options by name, values as text.
    pub options: &'a [(&'a str, &'a str)],
}

impl<'a> CompileArgs<'a> {
    /// A program for the backend's device, in default mode, without options.
    pub fn new(ir: FfxIrVersion, bytes: &'a [u8]) -> Self {
        Self { ir, bytes, device: None, mode: "", options: &[] }
    }
    /// Sets the device.
    pub fn device(mut self, device: DLDevice) -> Self {
        self.device = Some(device);
        self
    }
    /// Sets the mode.
    pub fn mode(mut self, mode: &'a str) -> Self {
        self.mode = mode;
        self
    }
    /// Sets the options.
    pub fn options(mut self, options: &'a [(&'a str, &'a str)]) -> Self {
        self.options = options;
        self
    }
}

/// A plugin that passed the handshake, for one of its devices. Cloning shares the plugin.
#[derive(Clone)]
pub struct LoadedBackend {
    pub(crate) plugin: Arc<Inner>,
    /// The device that was asked for by its number, in place of that of this process.
    device: Option<DLDevice>,
}

pub(crate) struct Inner {
    pub(crate) slots: Slots,
    pub(crate) described: Described,
    pub(crate) source: Source,
    /// SHA-256 of the library, where it was needed.
    pub(crate) checksum: OnceLock<String>,
    /// The device of this process, once it was found: to list devices takes a driver milliseconds.
    pub(crate) device: OnceLock<DLDevice>,
}

impl std::fmt::Debug for LoadedBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LoadedBackend({} from {})", self.name(), self.plugin.source)
    }
}

impl LoadedBackend {
    /// Enters a plugin. `name` is the name that it is registered under: the description must say the same one; `None`
    /// takes the description's.
    ///
    /// # Safety
    /// `entry` is the entry function of a plugin that keeps the ABI's contract.
    pub(crate) unsafe fn enter(
        entry: FfxEntry,
        name: Option<&str>,
        source: Source,
    ) -> Result<Self, HostError> {
        let shown = name.map_or_else(|| source.to_string(), str::to_owned);
        // SAFETY: the caller's guarantee about `entry` is passed on unchanged.
        let (slots, described) = unsafe { handshake::perform(entry, &shown) }?;
        if let Some(name) = name.filter(|&n| n != described.name) {
            let reason = format!("it calls itself `{}`, but is registered as `{name}`", described.name);
            return Err(HostError::handshake(name, reason));
        }
        crate::inspection::entered(&slots);
        let (checksum, device) = (OnceLock::new(), OnceLock::new());
        let plugin = Arc::new(Inner { slots, described, source, checksum, device });
        Ok(Self { plugin, device: None })
    }

    /// The same backend for the device of this number.
    ///
    /// # Errors
    /// There is no such device, with the numbers that there are, or it cannot be used, with the reason.
    pub fn on_device(&self, ordinal: i32) -> Result<Self, HostError> {
        let devices = self.devices()?;
        let found = devices.iter().find(|d| d.device.device_id == ordinal);
        let reason = match found {
            None => Some(format!("there is no device {ordinal}; {}", numbers(&devices))),
            Some(device) => device.unavailable_because.clone(),
        };
        if let Some(reason) = reason {
            return Err(HostError::NoDevice { backend: self.name().to_owned(), reason });
        }
        Ok(Self { plugin: Arc::clone(&self.plugin), device: found.map(|d| d.device) })
    }

    /// Name.
    pub fn name(&self) -> &str {
        &self.plugin.described.name
    }
    /// Version of the plugin itself.
    pub fn version(&self) -> &str {
        &self.plugin.described.version
    }
    /// Program forms that it reads.
    pub fn reads(&self) -> &[FfxIrVersion] {
        &self.plugin.described.reads
    }
    /// Compile modes, `default` first.
    pub fn modes(&self) -> &[String] {
        &self.plugin.described.modes
    }
    /// Options of `compile`.
    pub fn options(&self) -> &[OptionInfo] {
        &self.plugin.described.options
    }
    /// Its devices, queried at each call: unusable ones give a reason.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, HostError> {
        handshake::devices(&self.plugin.slots, self.name())
    }

    /// Version of the ABI that the plugin was built with, as `major.minor`.
    pub fn abi(&self) -> String {
        format!("{ABI_MAJOR}.{}", self.plugin.slots.minor)
    }
    /// The effective minor of the ABI between this host and the plugin: neither side uses later additions.
    pub fn effective_minor(&self) -> u16 {
        self.plugin.slots.minor.min(ABI_MINOR)
    }
    /// Whether the plugin has an extension of this name.
    pub fn has_extension(&self, name: &str) -> bool {
        self.extension(name).is_some()
    }
    /// The table of an extension, where the plugin has it.
    pub(crate) fn extension(&self, name: &str) -> Option<*const std::ffi::c_void> {
        let slots = &self.plugin.slots;
        // SAFETY: the slot is the plugin's own; the name lives through the call.
        let table = unsafe { slots.get_extension?(slots.ctx, FfxStr::new(name)) };
        Some(table).filter(|t| !t.is_null())
    }

    /// Everything for a listing. Never fails: errors of queries become the reason.
    pub fn info(&self) -> BackendInfo {
        let d = &self.plugin.described;
        let (devices, unavailable_because) = match self.devices() {
            Ok(devices) => {
                let reason = no_usable(&devices);
                (devices, reason)
            }
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        BackendInfo {
            version: d.version.clone(),
            summary: d.summary.clone(),
            devices,
            modes: d.modes.clone(),
            options: d.options.clone(),
            reads: d.reads.clone(),
            abi: self.abi(),
            unavailable_because,
            ..BackendInfo::new(self.name(), self.plugin.source.clone())
        }
    }

    /// Compiles a program. May be called from many threads at once.
    ///
    /// # Errors
    /// Program form, mode or option that the backend does not take (with near names), also a program of a newer minor
    /// than it reads that uses what came later; no usable device; the plugin's own error.
    pub fn compile(&self, args: &CompileArgs<'_>) -> Result<LoadedExecutable, HostError> {
        let program_interface = crate::program::program_interface(args.ir, args.bytes);
        let mut executable = std::ptr::null_mut();
        self.with_request(args, |request| {
            call(self.name(), "compile", |error| {
                // SAFETY: the request and what it points to, the place and the error struct live through the call.
                unsafe { (self.plugin.slots.compile)(self.plugin.slots.ctx, request, &mut executable, error) }
            })
        })?;
        // SAFETY: a successful `compile` hands over an executable of this plugin, which writes the inputs that its program
        // declares.
        unsafe { LoadedExecutable::adopt(Arc::clone(&self.plugin), executable, program_interface) }
    }

    /// The nodes of a program that the backend refuses, with reasons. A backend without this function refuses none:
    /// only `compile` tells.
    pub fn query_support(&self, args: &CompileArgs<'_>) -> Result<Vec<Refusal>, HostError> {
        type Collected = Vec<Result<Refusal, String>>;
        unsafe extern "C" fn sink(user: *mut c_void, info: *const FfxRefusal) {
            // SAFETY: `user` is the vector below, lent for the call; `info` is the plugin's, checked while it is read.
            unsafe { (*user.cast::<Collected>()).push(refusal(info)) }
        }
        let Some(query) = self.plugin.slots.query_support else { return Ok(Vec::new()) };
        let mut found = Collected::new();
        self.with_request(args, |request| {
            call(self.name(), "query_support", |error| {
                // SAFETY: everything lent lives through the call.
                unsafe { query(self.plugin.slots.ctx, request, sink, (&raw mut found).cast(), error) }
            })
        })?;
        found.into_iter().collect::<Result<_, _>>().map_err(|r| HostError::handshake(self.name(), r))
    }

    /// Device memory that a program will need; `None` where the backend does not report it.
    pub fn memory_estimate(&self, args: &CompileArgs<'_>) -> Result<Option<MemoryEstimate>, HostError> {
        let Some(estimate) = self.plugin.slots.memory_estimate else { return Ok(None) };
        let head = Head::of::<FfxMemoryEstimate>();
        let mut out = FfxMemoryEstimate { head, constant_bytes: 0, peak_bytes: 0, code_bytes: 0 };
        let answer = self.with_request(args, |request| {
            call(self.name(), "memory_estimate", |error| {
                // SAFETY: everything lent lives through the call.
                unsafe { estimate(self.plugin.slots.ctx, request, &mut out, error) }
            })
        });
        match answer {
            Ok(()) => Ok(Some(MemoryEstimate {
                constant_bytes: out.constant_bytes,
                peak_bytes: out.peak_bytes,
                code_bytes: out.code_bytes,
            })),
            Err(HostError::Plugin { failure, .. }) if failure.code == plugin_abi::FFX_ERR_UNSUPPORTED => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Checks the arguments and lends them as C structs.
    fn with_request<T>(
        &self,
        args: &CompileArgs<'_>,
        body: impl FnOnce(*const FfxCompileRequest) -> Result<T, HostError>,
    ) -> Result<T, HostError> {
        self.check_names(args.mode, args.options)?;
        let (ir, bytes) = for_reader(self.name(), self.reads(), args.ir, args.bytes)?;
        let device = self.device_or_own(args.device)?;
        let program =
            FfxProgram { head: Head::of::<FfxProgram>(), ir, bytes: bytes.as_ptr(), n_bytes: bytes.len() };
        let pair = |&(name, value): &(&str, &str)| FfxNameValue {
            name: FfxStr::new(name),
            value: FfxStr::new(value),
        };
        let options: Vec<_> = args.options.iter().map(pair).collect();
        body(&FfxCompileRequest {
            head: Head::of::<FfxCompileRequest>(),
            program: &program,
            device,
            mode: FfxStr::new(args.mode),
            options: options.as_ptr(),
            n_options: options.len(),
        })
    }

    /// Checks a mode and options without compiling anything, values by the kind of each option. What only the plugin knows
    /// about a value, `compile` tells.
    ///
    /// # Errors
    /// A mode or an option that the backend does not have (with near names), a value of another kind.
    pub fn check_settings(&self, mode: &str, options: &[(&str, &str)]) -> Result<(), HostError> {
        self.check_names(mode, options)?;
        for &(name, value) in options {
            let kind = self.options().iter().find(|o| o.name == name).map(|o| &o.kind);
            if let Some(wanted) = kind.and_then(|kind| kind.expected_form(value)) {
                let (backend, option, value) = (self.name().to_owned(), name.to_owned(), value.to_owned());
                return Err(HostError::OptionValue { backend, option, value, wanted });
            }
        }
        Ok(())
    }

    fn check_names(&self, mode: &str, options: &[(&str, &str)]) -> Result<(), HostError> {
        let backend = || self.name().to_owned();
        let modes = self.modes();
        if !mode.is_empty() && !modes.iter().any(|m| m == mode) {
            return Err(HostError::UnknownMode {
                backend: backend(),
                mode: mode.to_owned(),
                near: nearest(mode, modes.iter().map(String::as_str)),
                available: modes.to_vec(),
            });
        }
        for &(name, _) in options {
            if !self.options().iter().any(|o| o.name == name) {
                return Err(HostError::UnknownOption {
                    backend: backend(),
                    option: name.to_owned(),
                    near: nearest(name, self.options().iter().map(|o| o.name.as_str())),
                    available: self.options().iter().map(|o| o.name.clone()).collect(),
                });
            }
        }
        Ok(())
    }

    /// The device given, else that of this backend.
    pub(crate) fn device_or_own(&self, device: Option<DLDevice>) -> Result<DLDevice, HostError> {
        device.map_or_else(|| self.device(), Ok)
    }

    /// The device that programs run on: the one [asked for](Self::on_device), else that of this process, which is the first usable one, or the
    /// one with its [local rank](set_local_rank) where a launcher has started several processes on this machine. It stays the same once it
    /// was found, even where it is lost.
    ///
    /// # Errors
    /// No device is usable; the error has the reason of each.
    pub fn device(&self) -> Result<DLDevice, HostError> {
        if let Some(device) = self.device.as_ref().or_else(|| self.plugin.device.get()) {
            return Ok(*device);
        }
        let device = self.find_device()?;
        Ok(*self.plugin.device.get_or_init(|| device))
    }

    fn find_device(&self) -> Result<DLDevice, HostError> {
        let devices = self.devices()?;
        let usable: Vec<_> = devices.iter().filter(|d| d.unavailable_because.is_none()).collect();
        let own = LOCAL_RANK.load(Ordering::Relaxed).checked_rem(usable.len()).and_then(|n| usable.get(n));
        own.map(|d| d.device).ok_or_else(|| HostError::NoDevice {
            backend: self.name().to_owned(),
            reason: no_usable(&devices).unwrap_or_default(),
        })
    }
}

/// The number of this process among those on its machine.
static LOCAL_RANK: AtomicUsize = AtomicUsize::new(0);

/// Tells which of the processes on this machine this one is, so that each uses a device of its own. Said once, before anything
/// is loaded.
pub fn set_local_rank(rank: usize) {
    LOCAL_RANK.store(rank, Ordering::Relaxed);
}

/// The numbers of a backend's devices, in words.
fn numbers(devices: &[DeviceInfo]) -> String {
    let all: Vec<_> = devices.iter().map(|d| d.device.device_id.to_string()).collect();
    if all.is_empty() { "the backend lists none".to_owned() } else { format!("there are {}", all.join(", ")) }
}

/// Why no device can be used; `None` where one can.
fn no_usable(devices: &[DeviceInfo]) -> Option<String> {
    if devices.is_empty() {
        return Some("it lists no device".to_owned());
    }
    let reason = |d: &DeviceInfo| d.unavailable_because.as_ref().map(|r| format!("{}: {r}", d.name));
    let reasons: Option<Vec<_>> = devices.iter().map(reason).collect();
    reasons.map(|all| all.join("; "))
}
