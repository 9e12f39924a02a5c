//! The plugin's side of the table against hosts of other versions and hosts that make mistakes: every slot answers with
//! an error, none crashes. Here the test is the host and speaks the C tables itself.
#![allow(clippy::unwrap_used)]

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::{null, null_mut};

use crate::common::backend;
use plugin_abi::dlpack::{DL_CPU, DL_FLOAT, DL_INT};
use plugin_abi::{
    DLDataType, DLDevice, DLManagedTensorVersioned, DLTensor, FFX_ERR_INCOMPATIBLE, FFX_ERR_INVALID_ARGUMENT,
    FFX_ERR_UNSUPPORTED, FFX_OK, FfxCompileRequest, FfxError, FfxExecutable, FfxExecutableInfo, FfxHost,
    FfxIrVersion, FfxNameValue, FfxPlugin, FfxProgram, FfxStr, Head, text_bytes,
};

unsafe extern "C" fn never(_: *mut c_void, _: u32, _: FfxStr, _: FfxStr) {
    std::process::abort()
}

/// A host that is too old to have `log`: what is in its place must not be called.
fn old_host() -> &'static FfxHost {
    static HOST: FfxHost = FfxHost {
        head: Head {
            struct_size: offset_of!(FfxHost, log) as u32,
            major: plugin_abi::ABI_MAJOR,
            minor: plugin_abi::ABI_MINOR,
        },
        ctx: null_mut(),
        version: FfxStr::new("old"),
        log: Some(never),
        allocate_memory: None,
        free_memory: None,
    };
    &HOST
}

fn plugin() -> FfxPlugin {
    let mut error = FfxError::new();
    // SAFETY: a leaked host and a live error struct.
    let table = unsafe { plugin_sdk::entry::<backend::Fixture>(old_host(), &mut error) };
    assert!(!table.is_null(), "{}", message(&error));
    // SAFETY: the SDK's table, which lives as long as the process.
    unsafe { *table }
}

fn message(error: &FfxError) -> String {
    String::from_utf8(text_bytes(&error.message).to_vec()).unwrap()
}

/// A request for a text program; `change` spoils it.
fn request(text: &str, change: impl FnOnce(&mut FfxCompileRequest, &mut FfxProgram)) -> (i32, String) {
    let (status, message, exe) = compile(text, change);
    if !exe.is_null() {
        // SAFETY: just compiled.
        unsafe { plugin().executable_destroy.unwrap()(plugin().ctx, exe) };
    }
    (status, message)
}

fn compile(
    text: &str,
    change: impl FnOnce(&mut FfxCompileRequest, &mut FfxProgram),
) -> (i32, String, *mut FfxExecutable) {
    let mut program = FfxProgram {
        head: Head::of::<FfxProgram>(),
        ir: FfxIrVersion::fx_ir(1, 0),
        bytes: text.as_ptr(),
        n_bytes: text.len(),
    };
    let mut request = FfxCompileRequest {
        head: Head::of::<FfxCompileRequest>(),
        program: &program,
        device: DLDevice { device_type: DL_CPU, device_id: 0 },
        mode: FfxStr::EMPTY,
        options: null(),
        n_options: 0,
    };
    change(&mut request, &mut program);
    if !request.program.is_null() {
        request.program = &program;
    }
    let (plugin, mut error, mut exe) = (plugin(), FfxError::new(), null_mut());
    // SAFETY: all of it lives through the call.
    let status = unsafe { plugin.compile.unwrap()(plugin.ctx, &request, &mut exe, &mut error) };
    assert_eq!(status == FFX_OK, !exe.is_null(), "an executable exactly where it succeeded");
    (status, message(&error), exe)
}

#[test]
fn a_host_of_another_major_is_refused_and_a_later_one_served() {
    struct Fresh;
    impl plugin_sdk::Backend for Fresh {
        fn open(host: plugin_sdk::Host) -> Result<Self, plugin_sdk::PluginError> {
            host.log(plugin_sdk::LogLevel::Info, "fresh", "a log slot that is not there is not called");
            Ok(Fresh)
        }
        fn describe(&self) -> plugin_sdk::Description {
            plugin_sdk::Description::new("fresh", "1")
        }
        fn devices(&self) -> Vec<plugin_sdk::DeviceInfo> {
            Vec::new()
        }
        fn compile(
            &self,
            _: &plugin_sdk::CompileRequest<'_>,
        ) -> Result<Box<dyn plugin_sdk::Executable>, plugin_sdk::PluginError> {
            Err(plugin_sdk::PluginError::unsupported("nothing"))
        }
    }
    let mut host = *old_host();
    host.head.major = 9;
    let mut error = FfxError::new();
    // SAFETY: a live host for a call that refuses it.
    assert!(unsafe { plugin_sdk::entry::<Fresh>(&host, &mut error) }.is_null());
    assert_eq!(error.code, FFX_ERR_INCOMPATIBLE);
    assert!(message(&error).contains("ABI major 9"), "{}", message(&error));
    // SAFETY: a leaked host; no error struct is allowed, too.
    assert!(!unsafe { plugin_sdk::entry::<Fresh>(old_host(), null_mut()) }.is_null());
    // SAFETY: no host is allowed.
    let (a, b) = unsafe {
        (plugin_sdk::entry::<Fresh>(null(), &mut error), plugin_sdk::entry::<Fresh>(null(), &mut error))
    };
    assert_eq!(a, b, "one instance per process");
}

#[test]
fn spoiled_requests_are_errors() {
    assert_eq!(request("scale 2", |_, _| {}).0, FFX_OK);
    let bad = |change: fn(&mut FfxCompileRequest, &mut FfxProgram), code: i32, wanted: &str| {
        let (status, message) = request("scale 2", change);
        assert!(status == code && message.contains(wanted), "{status}: {message}");
    };
    bad(|r, _| r.program = null(), FFX_ERR_INCOMPATIBLE, "bad FfxProgram from the host: the pointer is null");
    bad(|_, p| p.bytes = null(), FFX_ERR_INVALID_ARGUMENT, "a program of 7 bytes");
    bad(|_, p| p.n_bytes = usize::MAX, FFX_ERR_INVALID_ARGUMENT, "a program of");
    bad(|_, p| p.ir.level = 77, FFX_ERR_INCOMPATIBLE, "level 77 1.0");
    bad(|_, p| p.ir.major = 2, FFX_ERR_INCOMPATIBLE, "fx-ir 2.0, but this backend reads fx-ir 1.2");
    bad(|_, p| p.head.struct_size = 3, FFX_ERR_INCOMPATIBLE, "struct_size 3");
    bad(|r, _| r.head.major = 2, FFX_ERR_INCOMPATIBLE, "bad FfxCompileRequest");
    bad(|r, _| r.mode = FfxStr::new("warp"), FFX_ERR_INVALID_ARGUMENT, "default, max-autotune");
    bad(|r, _| r.mode = FfxStr { data: [0xff].as_ptr(), len: 1 }, FFX_ERR_INVALID_ARGUMENT, "not UTF-8");
    bad(|r, _| r.n_options = 3, FFX_ERR_INVALID_ARGUMENT, "3 options");
    bad(|r, _| r.n_options = usize::MAX, FFX_ERR_INVALID_ARGUMENT, "options");
}

#[test]
fn an_older_and_shorter_request_means_defaults() {
    let unknown = [FfxNameValue { name: FfxStr::new("no such option"), value: FfxStr::EMPTY }];
    let spoil = |r: &mut FfxCompileRequest, _: &mut FfxProgram| {
        (r.options, r.n_options) = (unknown.as_ptr(), 1);
    };
    assert_eq!(request("scale 2", spoil).0, FFX_ERR_INVALID_ARGUMENT);
    let short = request("scale 2", |r, p| {
        spoil(r, p);
        r.head.struct_size = offset_of!(FfxCompileRequest, options) as u32;
    });
    assert_eq!(short.0, FFX_OK, "{}", short.1);
}

fn execute(exe: *const FfxExecutable, inputs: &[*const DLTensor], outputs: usize) -> (i32, String) {
    let (plugin, mut error) = (plugin(), FfxError::new());
    let mut out = vec![null_mut::<DLManagedTensorVersioned>(); outputs];
    // SAFETY: all of it lives through the call.
    let status = unsafe {
        let execute = plugin.execute.unwrap();
        execute(
            plugin.ctx,
            exe,
            inputs.as_ptr(),
            inputs.len(),
            out.as_mut_ptr(),
            outputs,
            null_mut(),
            &mut error,
        )
    };
    for managed in out {
        assert_eq!(status == FFX_OK, !managed.is_null(), "outputs exactly where it succeeded");
        if !managed.is_null() {
            // SAFETY: ours to delete.
            unsafe { (*managed).deleter.unwrap()(managed) };
        }
    }
    (status, message(&error))
}

#[test]
fn spoiled_tensors_and_counts_are_errors() {
    static DIMS: ([i64; 1], [i64; 1], [f32; 2]) = ([2], [1], [1., 2.]);
    static NEGATIVE: [i64; 1] = [-2];
    static HUGE: [i64; 1] = [i64::MAX];
    let good = DLTensor {
        data: DIMS.2.as_ptr().cast_mut().cast(),
        device: DLDevice { device_type: DL_CPU, device_id: 0 },
        ndim: 1,
        dtype: DLDataType { code: DL_FLOAT, bits: 32, lanes: 1 },
        shape: DIMS.0.as_ptr().cast_mut(),
        strides: DIMS.1.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    let exe = compile("scale 2", |_, _| {}).2;
    assert_eq!(execute(exe, &[&good], 1).0, FFX_OK);
    assert_eq!(
        execute(exe, &[&DLTensor { byte_offset: 4, shape: DIMS.1.as_ptr().cast_mut(), ..good }], 1).0,
        FFX_OK
    );
    let bad = |tensor: DLTensor, code: i32, wanted: &str| {
        let (status, message) = execute(exe, &[&tensor], 1);
        assert!(status == code && message.contains(wanted), "{status}: {message}");
    };
    let invalid = FFX_ERR_INVALID_ARGUMENT;
    bad(DLTensor { ndim: -1, ..good }, invalid, "-1 dimensions");
    bad(DLTensor { ndim: 65, ..good }, invalid, "65 dimensions");
    bad(DLTensor { shape: null_mut(), ..good }, invalid, "without sizes or strides");
    bad(DLTensor { strides: null_mut(), ..good }, invalid, "without sizes or strides");
    bad(DLTensor { shape: NEGATIVE.as_ptr().cast_mut(), ..good }, invalid, "negative sizes");
    bad(DLTensor { strides: NEGATIVE.as_ptr().cast_mut(), ..good }, invalid, "strides [-2]");
    bad(DLTensor { shape: HUGE.as_ptr().cast_mut(), ..good }, invalid, "overflow");
    bad(DLTensor { data: null_mut(), ..good }, invalid, "no memory");
    bad(DLTensor { dtype: DLDataType { bits: 7, ..good.dtype }, ..good }, FFX_ERR_UNSUPPORTED, "7 bits");
    bad(DLTensor { dtype: DLDataType { lanes: 4, ..good.dtype }, ..good }, FFX_ERR_UNSUPPORTED, "4 lanes");
    bad(DLTensor { dtype: DLDataType { code: DL_INT, ..good.dtype }, ..good }, invalid, "i32");
    bad(
        DLTensor { device: DLDevice { device_type: 2, device_id: 0 }, ..good },
        invalid,
        "cannot be read on the host",
    );
    bad(DLTensor { byte_offset: 1, ..good }, invalid, "not aligned");
    for (inputs, outputs) in
        [(&[][..], 1), (&[&raw const good][..], 0), (&[&raw const good, &raw const good][..], 1)]
    {
        let (status, message) = execute(exe, inputs, outputs);
        assert!(status == invalid && message.contains("takes 1 inputs and gives 1 outputs"), "{message}");
    }
    assert!(execute(exe, &[null()], 1).1.contains("number 0 of 1 inputs"));
    assert!(execute(null(), &[&good], 1).1.contains("executable is null"));
    // SAFETY: compiled above; null is allowed.
    unsafe {
        plugin().executable_destroy.unwrap()(plugin().ctx, exe);
        plugin().executable_destroy.unwrap()(plugin().ctx, null_mut());
    }
}

#[test]
fn null_contexts_and_places_are_errors() {
    let (plugin, mut error) = (plugin(), FfxError::new());
    let exe = compile("scale 2", |_, _| {}).2;
    // SAFETY: null where the slots must check for it; the rest lives through the calls.
    unsafe {
        let mut description = null();
        assert_ne!(plugin.describe.unwrap()(null_mut(), &mut description, &mut error), FFX_OK);
        assert!(message(&error).contains("context is null"), "{}", message(&error));
        assert_ne!(plugin.describe.unwrap()(plugin.ctx, null_mut(), null_mut()), FFX_OK);
        assert_ne!(plugin.compile.unwrap()(plugin.ctx, null(), null_mut(), &mut error), FFX_OK);
        assert_ne!(plugin.executable_info.unwrap()(plugin.ctx, exe, null_mut(), &mut error), FFX_OK);
        assert_ne!(plugin.bind_constants.unwrap()(plugin.ctx, exe, null(), null(), 2, &mut error), FFX_OK);
        // A host that is too old for the last field: it stays as it was.
        let mut info = FfxExecutableInfo {
            head: Head::of::<FfxExecutableInfo>(),
            n_inputs: 7,
            n_outputs: 7,
            n_constants: 7,
        };
        info.head.struct_size = offset_of!(FfxExecutableInfo, n_constants) as u32;
        assert_eq!(plugin.executable_info.unwrap()(plugin.ctx, exe, &mut info, &mut error), FFX_OK);
        assert_eq!((info.n_inputs, info.n_outputs, info.n_constants), (1, 1, 7));
        plugin.executable_destroy.unwrap()(plugin.ctx, exe);
    }
}
