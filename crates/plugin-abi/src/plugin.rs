//! The plugin's table and the structs its slots take.
//! It is not the safe interface: authors in Rust use `plugin-sdk`.

use core::ffi::c_void;

use crate::dlpack::{DLDevice, DLManagedTensorVersioned, DLTensor};
use crate::error::FfxError;
use crate::host::FfxHost;
use crate::table::{Head, tables};

/// Program level: a whole fx graph (as a custom Dynamo backend takes it).
pub const FFX_LEVEL_FX_IR: u32 = 1;
/// Program level: fused loop kernels and their execution plan.
pub const FFX_LEVEL_KERNEL_IR: u32 = 2;

/// Option kind: `true` or `false`.
pub const FFX_OPTION_BOOL: u32 = 1;
/// Option kind: a signed 64-bit integer in decimal.
pub const FFX_OPTION_INT: u32 = 2;
/// Option kind: a decimal floating-point number.
pub const FFX_OPTION_FLOAT: u32 = 3;
/// Option kind: any text.
pub const FFX_OPTION_TEXT: u32 = 4;
/// Option kind: one of the option's `choices`.
pub const FFX_OPTION_CHOICE: u32 = 5;

/// UTF-8 text without a closing NUL. Frozen. A null `data` with `len` 0 is the empty text.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxStr {
    /// First byte.
    pub data: *const u8,
    /// Bytes.
    pub len: usize,
}

impl FfxStr {
    /// The empty text.
    pub const EMPTY: Self = Self { data: core::ptr::null(), len: 0 };

    /// Borrows `text`; the result is valid as long as `text` is.
    pub const fn new(text: &str) -> Self {
        Self { data: text.as_ptr(), len: text.len() }
    }

    /// The bytes after the pair; empty where `data` is null.
    ///
    /// # Safety
    /// `data` is null or points to `len` readable bytes that outlive `'a`.
    pub const unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.data.is_null() || self.len > isize::MAX as usize {
            return &[];
        }
        // SAFETY: the pointer is not null, the length is in range, and the caller promises that the bytes are readable.
        unsafe { core::slice::from_raw_parts(self.data, self.len) }
    }
}

/// A named text: an option given to `compile`, an attribute of a device. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxNameValue {
    /// Name.
    pub name: FfxStr,
    /// Value as text; see the `FFX_OPTION_*` kinds for its form.
    pub value: FfxStr,
}

/// One program form that a plugin reads: all minors of `major` from 0 to `minor`. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FfxIrVersion {
    /// `FFX_LEVEL_*`.
    pub level: u32,
    /// Major version of the IR.
    pub major: u16,
    /// Newest minor that is read; for a program the minor that it is written in.
    pub minor: u16,
}

impl FfxIrVersion {
    /// A version of fx-ir.
    pub const fn fx_ir(major: u16, minor: u16) -> Self {
        Self { level: FFX_LEVEL_FX_IR, major, minor }
    }
    /// A version of kernel-ir.
    pub const fn kernel_ir(major: u16, minor: u16) -> Self {
        Self { level: FFX_LEVEL_KERNEL_IR, major, minor }
    }
    /// Whether a reader of `self` reads a program of `program`.
    pub const fn reads(self, program: Self) -> bool {
        self.level == program.level && self.major == program.major && self.minor >= program.minor
    }
}

impl core::fmt::Display for FfxIrVersion {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.level {
            FFX_LEVEL_FX_IR => f.write_str("fx-ir")?,
            FFX_LEVEL_KERNEL_IR => f.write_str("kernel-ir")?,
            other => write!(f, "level {other}")?,
        }
        write!(f, " {}.{}", self.major, self.minor)
    }
}

/// An option that `compile` takes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxOptionSpec {
    /// Size and version.
    pub head: Head,
    /// `FFX_OPTION_*`.
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Name, unique within the plugin.
    pub name: FfxStr,
    /// One line for the user.
    pub help: FfxStr,
    /// The default value.
    pub default_value: FfxStr,
    /// Choices of `FFX_OPTION_CHOICE`.
    pub choices: *const FfxStr,
    /// Length of `choices`.
    pub n_choices: usize,
}

/// The description of a plugin: constant for the life of the process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxDescription {
    /// Size and version.
    pub head: Head,
    /// Name by which a user picks the backend.
    pub name: FfxStr,
    /// Version of the plugin itself.
    pub version: FfxStr,
    /// One line for listings.
    pub summary: FfxStr,
    /// Program forms that are read.
    pub irs: *const FfxIrVersion,
    /// Length of `irs`.
    pub n_irs: usize,
    /// Compile modes beyond `default`, which every plugin takes.
    pub modes: *const FfxStr,
    /// Length of `modes`.
    pub n_modes: usize,
    /// Options that `compile` takes.
    pub options: *const *const FfxOptionSpec,
    /// Length of `options`.
    pub n_options: usize,
}

/// One device, borrowed for one call of an [`FfxDeviceSink`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxDeviceInfo {
    /// Size and version.
    pub head: Head,
    /// DLPack type and ordinal.
    pub device: DLDevice,
    /// Model name for the user.
    pub name: FfxStr,
    /// Empty where the device is usable, else why it is not and what to do.
    pub unavailable_because: FfxStr,
    /// Memory in bytes; 0 where unknown.
    pub memory_bytes: u64,
    /// Capabilities by name (`cores`, `vector_bits`, `shared_memory_bytes`, `templates`, …).
    pub attributes: *const FfxNameValue,
    /// Length of `attributes`.
    pub n_attributes: usize,
}

/// A program as bytes. The bytes are borrowed for the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxProgram {
    /// Size and version.
    pub head: Head,
    /// Form of the bytes: level and IR version.
    pub ir: FfxIrVersion,
    /// First byte.
    pub bytes: *const u8,
    /// Number of bytes.
    pub n_bytes: usize,
}

/// What to compile and how.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxCompileRequest {
    /// Size and version.
    pub head: Head,
    /// The program.
    pub program: *const FfxProgram,
    /// Device to compile for.
    pub device: DLDevice,
    /// Mode; empty means `default`.
    pub mode: FfxStr,
    /// Options by name; those not given have their defaults.
    pub options: *const FfxNameValue,
    /// Length of `options`.
    pub n_options: usize,
}

/// A part of a program that a plugin does not take, borrowed for one call of an [`FfxRefusalSink`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxRefusal {
    /// Size and version.
    pub head: Head,
    /// Name of the node or kernel.
    pub node: FfxStr,
    /// Why, and what to do.
    pub reason: FfxStr,
}

/// Filled by `memory_estimate`; the caller owns it and writes `head`. All figures are bytes on the device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxMemoryEstimate {
    /// Size and version, written by the caller.
    pub head: Head,
    /// Constants as they are kept after packing, beyond the borrowed originals.
    pub constant_bytes: u64,
    /// Peak of temporaries and outputs of one `execute`.
    pub peak_bytes: u64,
    /// Machine code and tables.
    pub code_bytes: u64,
}

/// Filled by `executable_info`; the caller owns it and writes `head`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxExecutableInfo {
    /// Size and version, written by the caller.
    pub head: Head,
    /// Tensors that `execute` takes.
    pub n_inputs: usize,
    /// Tensors that `execute` returns.
    pub n_outputs: usize,
    /// Constants that must be bound before the first `execute`.
    pub n_constants: usize,
}

/// A compiled program; only its plugin knows what is inside.
#[repr(C)]
#[derive(Debug)]
pub struct FfxExecutable {
    _opaque: [u8; 0],
}

/// Compiled code as bytes, for `artifact_load`. The bytes are borrowed for the call. Since minor 1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FfxArtifact {
    /// Size and version.
    pub head: Head,
    /// Device to load for.
    pub device: DLDevice,
    /// First byte of the artifact that `artifact_save` wrote.
    pub bytes: *const u8,
    /// Number of bytes.
    pub n_bytes: usize,
}

/// Receives one device, which is borrowed for the call. `user` is the pointer that the caller passed with this function.
pub type FfxDeviceSink = unsafe extern "C" fn(user: *mut c_void, device: *const FfxDeviceInfo);
/// Receives one refusal, which is borrowed for the call.
pub type FfxRefusalSink = unsafe extern "C" fn(user: *mut c_void, refusal: *const FfxRefusal);
/// Receives a piece of a sequence of bytes, borrowed for the call; pieces come in order. Since minor 1.
pub type FfxBytesSink = unsafe extern "C" fn(user: *mut c_void, bytes: *const u8, n_bytes: usize);

/// Sets `*out` to the plugin's description; see `FfxPlugin::describe`.
pub type FfxDescribe =
    unsafe extern "C" fn(ctx: *mut c_void, out: *mut *const FfxDescription, error: *mut FfxError) -> i32;
/// Passes every device to `sink`; see `FfxPlugin::enumerate_devices`.
pub type FfxEnumerateDevices = unsafe extern "C" fn(
    ctx: *mut c_void,
    sink: FfxDeviceSink,
    user: *mut c_void,
    error: *mut FfxError,
) -> i32;
/// Passes every refusal to `sink`; see `FfxPlugin::query_support`.
pub type FfxQuerySupport = unsafe extern "C" fn(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    sink: FfxRefusalSink,
    user: *mut c_void,
    error: *mut FfxError,
) -> i32;
/// Fills `*out`; see `FfxPlugin::memory_estimate`.
pub type FfxMemoryEstimateFn = unsafe extern "C" fn(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut FfxMemoryEstimate,
    error: *mut FfxError,
) -> i32;
/// Sets `*out` to an executable of the caller; see `FfxPlugin::compile`.
pub type FfxCompile = unsafe extern "C" fn(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32;
/// Fills `*out`; see `FfxPlugin::executable_info`.
pub type FfxExecutableInfoFn = unsafe extern "C" fn(
    ctx: *mut c_void,
    exe: *const FfxExecutable,
    out: *mut FfxExecutableInfo,
    error: *mut FfxError,
) -> i32;
/// Frees an executable; null is allowed. See `FfxPlugin::executable_destroy`.
pub type FfxExecutableDestroy = unsafe extern "C" fn(ctx: *mut c_void, exe: *mut FfxExecutable);
/// Binds `n` constants by name; see `FfxPlugin::bind_constants`.
pub type FfxBindConstants = unsafe extern "C" fn(
    ctx: *mut c_void,
    exe: *mut FfxExecutable,
    names: *const FfxStr,
    tensors: *const *const DLTensor,
    n: usize,
    error: *mut FfxError,
) -> i32;
/// Runs an executable; see `FfxPlugin::execute`.
pub type FfxExecute = unsafe extern "C" fn(
    ctx: *mut c_void,
    exe: *const FfxExecutable,
    inputs: *const *const DLTensor,
    n_inputs: usize,
    outputs: *mut *mut DLManagedTensorVersioned,
    n_outputs: usize,
    stream: *mut c_void,
    error: *mut FfxError,
) -> i32;
/// The table of an extension, or null; see `FfxPlugin::get_extension`.
pub type FfxGetExtension = unsafe extern "C" fn(ctx: *mut c_void, name: FfxStr) -> *const c_void;
/// Passes a text to `sink`; see `FfxPlugin::artifact_compat_string`. Since minor 1.
pub type FfxArtifactCompatString = unsafe extern "C" fn(
    ctx: *mut c_void,
    device: DLDevice,
    sink: FfxBytesSink,
    user: *mut c_void,
    error: *mut FfxError,
) -> i32;
/// Passes an artifact to `sink`; see `FfxPlugin::artifact_save`. Since minor 1.
pub type FfxArtifactSave = unsafe extern "C" fn(
    ctx: *mut c_void,
    exe: *const FfxExecutable,
    sink: FfxBytesSink,
    user: *mut c_void,
    error: *mut FfxError,
) -> i32;
/// Sets `*out` to an executable of the caller; see `FfxPlugin::artifact_load`. Since minor 1.
pub type FfxArtifactLoad = unsafe extern "C" fn(
    ctx: *mut c_void,
    artifact: *const FfxArtifact,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32;

/// Type of the symbol `ffx_plugin_entry_v1`: hands out the plugin's table, or null with the error filled. `host` lives as
/// long as the process. May be called more than once, also from several threads; every call yields the same plugin.
pub type FfxEntry = unsafe extern "C" fn(host: *const FfxHost, error: *mut FfxError) -> *const FfxPlugin;

/// The plugin's table; valid for the life of the process. Slots said to be *required* must not be null.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfxPlugin {
    /// Size and version.
    pub head: Head,
    /// First argument of every slot.
    pub ctx: *mut c_void,
    /// Required. Sets `*out` to a description that lives as long as the process.
    pub describe: Option<FfxDescribe>,
    /// Required. Calls the sink once per device, unusable ones included, in order of preference.
    pub enumerate_devices: Option<FfxEnumerateDevices>,
    /// Required. Sets `*out` to an executable of the caller.
    pub compile: Option<FfxCompile>,
    /// Required. Numbers of inputs, outputs and constants.
    pub executable_info: Option<FfxExecutableInfoFn>,
    /// Required. Runs the program on borrowed inputs. Fills all `n_outputs` pointers with tensors that the plugin
    /// allocated and the caller owns, or none of them where it fails. Inputs are only read, but for those that a program of
    /// kernel-ir 1.4 or newer declares written: their memory is writable and not shared during the call, and the new
    /// values must be in it when the call's work is done, whatever the tensor's strides, alignment and device; a plugin that
    /// computes on a copy writes it back. Where the call fails their elements may be old or new. `stream` is the device's
    /// native stream handle; null is the default stream, on which the call returns only after the outputs are readable.
    pub execute: Option<FfxExecute>,
    /// Required. Frees an executable of `compile`.
    pub executable_destroy: Option<FfxExecutableDestroy>,
    /// Optional: null means that programs with constants are not taken. Names and pointers to tensors are borrowed for
    /// the call, the memory that the tensors point to until the executable is destroyed or bound again. Replaces every
    /// earlier binding; after an error nothing is bound.
    pub bind_constants: Option<FfxBindConstants>,
    /// Optional: null means that `compile` is the only judge. Calls the sink once per node refused.
    pub query_support: Option<FfxQuerySupport>,
    /// Optional: null means unknown.
    pub memory_estimate: Option<FfxMemoryEstimateFn>,
    /// Optional: a table of an extension by name, or null; valid for the life of the process.
    pub get_extension: Option<FfxGetExtension>,
    /// Optional, since minor 1: null means that the plugin makes no artifacts; so does `FFX_ERR_UNSUPPORTED`. Passes to the
    /// sink a UTF-8 text (at most 4096 bytes) that is equal exactly where an artifact of one process loads in another:
    /// the plugin's version, the device's instruction set, the driver's version.
    pub artifact_compat_string: Option<FfxArtifactCompatString>,
    /// Optional, since minor 1; goes with `artifact_load`. Passes to the sink the compiled code as bytes, without constants:
    /// they are bound again after loading. The executable stays as it is.
    pub artifact_save: Option<FfxArtifactSave>,
    /// Optional, since minor 1. Creates from an artifact the executable that `compile` created; mode and options are inside. An
    /// artifact that another compatibility string was saved under is `FFX_ERR_INCOMPATIBLE`, bytes that are no artifact
    /// or a damaged one are `FFX_ERR_DAMAGED`; neither is ever run.
    pub artifact_load: Option<FfxArtifactLoad>,
}

// SAFETY: the table is immutable after construction and its slots may be called from any thread by contract.
unsafe impl Send for FfxPlugin {}
// SAFETY: shared references only read the immutable table, and its slots may be called from any thread by contract.
unsafe impl Sync for FfxPlugin {}

tables! {
    FfxOptionSpec { kind, reserved, name, help, default_value, choices, n_choices }
    FfxDescription { name, version, summary, irs, n_irs, modes, n_modes, options, n_options }
    FfxDeviceInfo { device, name, unavailable_because, memory_bytes, attributes, n_attributes }
    FfxProgram { ir, bytes, n_bytes }
    FfxCompileRequest { program, device, mode, options, n_options }
    FfxRefusal { node, reason }
    FfxMemoryEstimate { constant_bytes, peak_bytes, code_bytes }
    FfxExecutableInfo { n_inputs, n_outputs, n_constants }
    FfxArtifact { device, bytes, n_bytes }
    FfxPlugin {
        ctx, describe, enumerate_devices, compile, executable_info, execute, executable_destroy, bind_constants,
        query_support, memory_estimate, get_extension, artifact_compat_string, artifact_save, artifact_load,
    }
}
