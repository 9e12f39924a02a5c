//! The handshake against tables of other versions and makers. The plugin here is written by hand against the C tables,
//! as an author without `plugin-sdk` would write it; its deviations are one function each.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::OnceLock;

use plugin_abi::dlpack::{DL_CPU, DL_EXT_DEV, DL_FLOAT, DLPACK_MAJOR, DLPACK_MINOR};
use plugin_abi::{
    DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor, FFX_ERR_UNAVAILABLE, FFX_OK,
    FfxCompileRequest, FfxDescription, FfxDeviceInfo, FfxDeviceSink, FfxError, FfxExecutable,
    FfxExecutableInfo, FfxHost, FfxIrVersion, FfxPlugin, FfxStr, Head, write_text,
};
use plugin_host::{
    BuiltinPlugin, CompileArgs, HostError, IrVersion, LoadedBackend, Registry, SearchPath, Source, inventory,
};
use tensor::Tensor;

// ---- the hand-written plugin: `ctx` is its name as a C string; programs give one f32 tensor ----

static IRS: [FfxIrVersion; 1] = [FfxIrVersion::fx_ir(1, 0)];

unsafe extern "C" fn describe(ctx: *mut c_void, out: *mut *const FfxDescription, _: *mut FfxError) -> i32 {
    // SAFETY: every table below has a C string as context.
    let name = unsafe { std::ffi::CStr::from_ptr(ctx.cast()) }.to_str().unwrap();
    let description = FfxDescription {
        head: Head::of::<FfxDescription>(),
        name: FfxStr::new(name),
        version: FfxStr::new("1"),
        summary: FfxStr::EMPTY,
        irs: IRS.as_ptr(),
        n_irs: 1,
        modes: std::ptr::null(),
        n_modes: 0,
        options: std::ptr::null(),
        n_options: 0,
    };
    // SAFETY: the host's place; the description is leaked, as it must outlive the process.
    unsafe { *out = Box::leak(Box::new(description)) };
    FFX_OK
}

unsafe extern "C" fn devices(
    _: *mut c_void,
    sink: FfxDeviceSink,
    user: *mut c_void,
    _: *mut FfxError,
) -> i32 {
    let info = FfxDeviceInfo {
        head: Head::of::<FfxDeviceInfo>(),
        device: DLDevice { device_type: DL_CPU, device_id: 0 },
        name: FfxStr::new("host"),
        unavailable_because: FfxStr::EMPTY,
        memory_bytes: 0,
        attributes: std::ptr::null(),
        n_attributes: 0,
    };
    // SAFETY: the host's pair.
    unsafe { sink(user, &info) };
    FFX_OK
}

/// The executable is the program's first byte, which chooses a malformed output.
unsafe extern "C" fn compile(
    _: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut *mut FfxExecutable,
    _: *mut FfxError,
) -> i32 {
    // SAFETY: the host's request and place.
    unsafe {
        let program = &*(*request).program;
        *out = Box::into_raw(Box::new(*program.bytes)).cast();
    }
    FFX_OK
}

unsafe extern "C" fn info(
    _: *mut c_void,
    _: *const FfxExecutable,
    out: *mut FfxExecutableInfo,
    _: *mut FfxError,
) -> i32 {
    // SAFETY: the host's place.
    unsafe { (*out).n_outputs = 1 };
    FFX_OK
}

unsafe extern "C" fn destroy(_: *mut c_void, exe: *mut FfxExecutable) {
    // SAFETY: what `compile` made.
    drop(unsafe { Box::from_raw(exe.cast::<u8>()) });
}

static VALUES: [f32; 2] = [5., 6.];
static SIZE: [i64; 1] = [2];
static NEGATIVE: [i64; 1] = [-2];

unsafe extern "C" fn execute(
    _: *mut c_void,
    exe: *const FfxExecutable,
    _: *const *const DLTensor,
    _: usize,
    outputs: *mut *mut DLManagedTensorVersioned,
    _: usize,
    _: *mut c_void,
    _: *mut FfxError,
) -> i32 {
    let mut managed = DLManagedTensorVersioned {
        version: DLPackVersion { major: DLPACK_MAJOR, minor: DLPACK_MINOR + 5 },
        manager_ctx: std::ptr::null_mut(),
        deleter: Some(delete),
        flags: 0,
        dl_tensor: DLTensor {
            data: VALUES.as_ptr().cast_mut().cast(),
            device: DLDevice { device_type: DL_CPU, device_id: 0 },
            ndim: 1,
            dtype: DLDataType { code: DL_FLOAT, bits: 32, lanes: 1 },
            shape: SIZE.as_ptr().cast_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
        },
    };
    // SAFETY: what `compile` made.
    match unsafe { *exe.cast::<u8>() } {
        b'v' => managed.version.major = 9,
        b'd' => managed.dl_tensor.ndim = -1,
        b'n' => managed.dl_tensor.shape = NEGATIVE.as_ptr().cast_mut(),
        b's' => managed.dl_tensor.shape = std::ptr::null_mut(),
        b't' => managed.dl_tensor.dtype.bits = 33,
        b'l' => managed.dl_tensor.dtype.lanes = 4,
        b'm' => managed.dl_tensor.data = std::ptr::null_mut(),
        b'o' => managed.dl_tensor.byte_offset = 1,
        b'x' => managed.dl_tensor.device.device_type = DL_EXT_DEV,
        b'0' => return FFX_OK,
        b'e' => return 4711,
        b'k' => managed.deleter = None,
        _ => {}
    }
    // SAFETY: the host's place for one output.
    unsafe { *outputs = Box::into_raw(Box::new(managed)) };
    FFX_OK
}

unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    // SAFETY: what `execute` made.
    drop(unsafe { Box::from_raw(managed) });
}

fn whole(name: &'static std::ffi::CStr) -> FfxPlugin {
    FfxPlugin {
        head: Head::of::<FfxPlugin>(),
        ctx: name.as_ptr().cast_mut().cast(),
        describe: Some(describe),
        enumerate_devices: Some(devices),
        compile: Some(compile),
        executable_info: Some(info),
        execute: Some(execute),
        executable_destroy: Some(destroy),
        bind_constants: None,
        query_support: None,
        memory_estimate: None,
        get_extension: None,
        artifact_compat_string: None,
        artifact_save: None,
        artifact_load: None,
    }
}

// ---- its variants ----

/// Registers a variant of the table under a name.
macro_rules! variant {
    ($name:literal, $c_name:literal, |$table:ident| $change:expr) => {
        inventory::submit! { BuiltinPlugin { name: $name, entry: {
            unsafe extern "C" fn entry(_: *const FfxHost, _: *mut FfxError) -> *const FfxPlugin {
                static TABLE: OnceLock<FfxPlugin> = OnceLock::new();
                TABLE.get_or_init(|| {
                    #[allow(unused_mut)]
                    let mut $table = whole($c_name);
                    $change;
                    $table
                })
            }
            entry
        } } }
    };
}

/// A slot that must never be called: it stands beyond what `struct_size` covers.
unsafe extern "C" fn beyond(
    _: *mut c_void,
    _: *mut FfxExecutable,
    _: *const FfxStr,
    _: *const *const DLTensor,
    _: usize,
    _: *mut FfxError,
) -> i32 {
    std::process::abort()
}

variant!("whole", c"whole", |t| {});
variant!("older", c"older", |t| {
    t.bind_constants = Some(beyond);
    t.head.struct_size = offset_of!(FfxPlugin, bind_constants) as u32;
});
variant!("half-slot", c"half-slot", |t| {
    t.bind_constants = Some(beyond);
    t.head.struct_size = offset_of!(FfxPlugin, bind_constants) as u32 + 4;
});
variant!("newer-minor", c"newer-minor", |t| t.head.minor += 40);
variant!("no-execute", c"no-execute", |t| t.execute = None);
variant!("no-describe", c"no-describe", |t| t.describe = None);
variant!("cut-destroy", c"cut-destroy", |t| {
    t.head.struct_size = offset_of!(FfxPlugin, executable_destroy) as u32
});
variant!("cut-to-head", c"cut-to-head", |t| t.head.struct_size = 8);
variant!("no-size", c"no-size", |t| t.head.struct_size = 0);
variant!("other-major", c"other-major", |t| t.head.major = 2);
variant!("misnamed", c"someone-else", |t| {});
variant!("twin", c"twin", |t| {});
variant!("twin", c"twin", |t| {});

unsafe extern "C" fn null_entry(_: *const FfxHost, error: *mut FfxError) -> *const FfxPlugin {
    // SAFETY: the host's error struct.
    let error = unsafe { &mut *error };
    error.code = FFX_ERR_UNAVAILABLE;
    write_text(&mut error.message, "no driver; install one");
    std::ptr::null()
}
inventory::submit! { BuiltinPlugin { name: "refuses", entry: null_entry } }

unsafe extern "C" fn silent_entry(_: *const FfxHost, _: *mut FfxError) -> *const FfxPlugin {
    std::ptr::null()
}
inventory::submit! { BuiltinPlugin { name: "silent", entry: silent_entry } }

// ---- the tests ----

fn registry() -> Registry {
    Registry::new(&SearchPath::default())
}

fn load(name: &str) -> Result<LoadedBackend, HostError> {
    registry().load(name)
}

fn run(backend: &LoadedBackend, program: &str) -> Result<Vec<Tensor>, HostError> {
    backend.compile(&CompileArgs::new(IrVersion::fx_ir(1, 0), program.as_bytes()))?.execute(&[])
}

#[test]
fn tables_of_every_known_size_work_as_far_as_they_go() {
    for name in ["whole", "older", "half-slot", "newer-minor"] {
        let backend = load(name).unwrap();
        assert_eq!(run(&backend, "p").unwrap()[0].to_vec::<f32>().unwrap(), [5., 6.], "{name}");
        let args = CompileArgs::new(IrVersion::fx_ir(1, 0), b"p");
        // Slots that are missing or not covered are as if they were null.
        assert!(backend.query_support(&args).unwrap().is_empty());
        assert_eq!(backend.memory_estimate(&args).unwrap(), None);
        let mut program = backend.compile(&args).unwrap();
        program.bind_constants(&[]).unwrap();
        let constant = Tensor::from_slice(&[1f32], &[1]).unwrap();
        let error = program.bind_constants(&[("w", &constant)]).unwrap_err();
        assert!(matches!(error, HostError::NotOffered { slot: "bind_constants", .. }), "{error}");
    }
}

#[test]
fn a_missing_required_slot_is_named() {
    for (name, wanted) in [
        ("no-execute", "execute"),
        ("no-describe", "describe"),
        ("cut-destroy", "executable_destroy"),
        ("cut-to-head", "describe"),
    ] {
        match load(name).unwrap_err() {
            HostError::MissingSlot { backend, slot } => assert_eq!((backend.as_str(), slot), (name, wanted)),
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn what_is_no_table_of_this_major_is_refused() {
    for (name, wanted) in [
        ("no-size", "struct_size 0"),
        ("other-major", "needs plugin ABI 2.0, this host has 1."),
        ("refuses", "unavailable (4): no driver; install one"),
        ("silent", "gave no reason"),
        ("misnamed", "calls itself `someone-else`"),
    ] {
        let error = load(name).unwrap_err().to_string();
        assert!(error.contains(wanted), "{name}: {error}");
    }
}

#[test]
fn malformed_outputs_are_errors() {
    let backend = load("whole").unwrap();
    for (program, wanted) in [
        ("v", "DLPack version 9"),
        ("d", "-1 dimensions"),
        ("n", "negative size"),
        ("s", "no sizes"),
        ("t", "unknown DLPack type"),
        ("l", "unknown DLPack type"),
        ("m", "no memory"),
        ("o", "not aligned"),
        ("x", "does not offer `to_host`"),
        ("0", "left null"),
        ("e", "unknown error code (4711)"),
    ] {
        let error = run(&backend, program).unwrap_err().to_string();
        assert!(error.contains(wanted), "{program}: {error}");
    }
    assert!(run(&backend, "k").is_ok(), "without a deleter there is nothing to free");
}

#[test]
fn a_listing_survives_every_bad_plugin() {
    let registry = registry();
    let list = registry.list_backends();
    let usable: Vec<_> =
        list.iter().filter(|b| b.unavailable_because.is_none()).map(|b| b.name.as_str()).collect();
    assert_eq!(usable, ["half-slot", "newer-minor", "older", "twin", "whole"]);
    assert_eq!(list.len(), 14);
    assert_eq!(registry.shadowed(), [("twin".to_owned(), Source::BuiltIn)]);
}

#[test]
fn names_that_are_nearly_right_are_suggested() {
    for name in ["whol", "whol:0"] {
        let near = registry().load(name).unwrap_err().to_string();
        assert!(near.contains("did you mean whole"), "{near}");
    }
}

#[test]
fn a_number_behind_a_name_is_the_device() {
    let first = load("whole:0").unwrap();
    assert_eq!(first.device().unwrap().device_id, 0);
    assert_eq!(run(&first, "p").unwrap()[0].to_vec::<f32>().unwrap(), [5., 6.]);
    let none = load("whole:1").unwrap_err();
    assert!(matches!(none, HostError::NoDevice { .. }), "{none:?}");
    assert!(none.to_string().contains("there is no device 1; there are 0"), "{none}");
}
