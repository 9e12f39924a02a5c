//! Faults of the C table: slots of the correct table are replaced by ones that break the contract.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use kernel_ir::Program;
use plugin_abi::{
    DLDevice, DLManagedTensorVersioned, DLTensor, FFX_ERR_INCOMPATIBLE, FFX_OK, FfxArtifact,
    FfxCompileRequest, FfxError, FfxExecutable, FfxHost, FfxIrVersion, FfxPlugin, FfxProgram, FfxStr, Head,
    write_text,
};

use crate::backend_faults::Broken;
use crate::fault::{Fault, fault};

/// The correct table.
static SOUND: OnceLock<FfxPlugin> = OnceLock::new();

fn sound() -> FfxPlugin {
    match SOUND.get() {
        Some(table) => *table,
        // Slots are reached through the table, which `ffx_plugin_entry_v1` hands out after it has set this.
        None => std::process::abort(),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Entry of this plugin library.
///
/// # Safety
/// As the plugin ABI says.
// SAFETY: the name is reserved for this ABI, and this is the only thing that defines it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ffx_plugin_entry_v1(host: *const FfxHost, error: *mut FfxError) -> *const FfxPlugin {
    if fault() == Fault::ReadsHost {
        // SAFETY: there is none; a null pointer is the demonstrated fault.
        let version = unsafe { std::ptr::read_volatile(&raw const (*host).version) };
        std::hint::black_box(version);
    }
    // SAFETY: the caller's contract is passed on.
    let table = unsafe { plugin_sdk::entry::<Broken>(host, error) };
    if table.is_null() {
        return table;
    }
    // SAFETY: the table of this process, as large as this build knows it.
    let table = SOUND.get_or_init(|| unsafe { *table });
    static BROKEN: OnceLock<&'static FfxPlugin> = OnceLock::new();
    let broken = || &*Box::leak(Box::new(broken(*table)));
    if fault() == Fault::TableEachTime { broken() } else { *BROKEN.get_or_init(broken) }
}

fn broken(mut table: FfxPlugin) -> FfxPlugin {
    match fault() {
        Fault::ShortTable => table.head.struct_size = std::mem::offset_of!(FfxPlugin, execute) as u32 + 4,
        Fault::MissingSlot => table.execute = None,
        Fault::WholeError => table.compile = Some(whole_error),
        Fault::EqualSizes => table.compile = Some(equal_sizes),
        Fault::NullError => table.compile = Some(null_error),
        Fault::Panics => table.compile = Some(panics),
        Fault::TrustsArtifacts => {
            table.compile = Some(remembers);
            table.artifact_load = Some(trusts);
        }
        Fault::NeverFrees => table.execute = Some(never_freed),
        Fault::FreesTwice => {
            table.execute = Some(registered);
            table.executable_destroy = Some(destroys_outputs);
        }
        _ => {}
    }
    table
}

/// # Safety
/// As for the slot.
unsafe fn compile(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: the caller's contract is passed on.
    sound().compile.map_or(FFX_ERR_INCOMPATIBLE, |compile| unsafe { compile(ctx, request, out, error) })
}

unsafe extern "C" fn whole_error(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32 {
    let mut own = FfxError::new();
    // SAFETY: the caller's contract; that its struct may be smaller is the demonstrated fault.
    unsafe {
        let status = compile(ctx, request, out, &mut own);
        if status != FFX_OK && !error.is_null() {
            own.head = (*error).head;
            error.write(own);
        }
        status
    }
}

unsafe extern "C" fn null_error(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: the caller's contract; that the struct may be missing is the demonstrated fault.
    unsafe {
        let size = (&raw const (*error).head.struct_size).read_volatile();
        std::hint::black_box(size);
        compile(ctx, request, out, error)
    }
}

unsafe extern "C" fn equal_sizes(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: the caller's contract.
    unsafe {
        if !request.is_null() && (*request).head.struct_size != Head::of::<FfxCompileRequest>().struct_size {
            if !error.is_null() {
                (*error).code = FFX_ERR_INCOMPATIBLE;
                write_text(&mut (*error).message, "the request has another size than this plugin expects");
            }
            return FFX_ERR_INCOMPATIBLE;
        }
        compile(ctx, request, out, error)
    }
}

/// The program of a request; `None` where there is none.
///
/// # Safety
/// As for the slot `compile`.
unsafe fn program_of<'a>(request: *const FfxCompileRequest) -> Option<&'a [u8]> {
    // SAFETY: the caller's contract.
    unsafe {
        let FfxProgram { bytes, n_bytes, .. } = *request.as_ref()?.program.as_ref()?;
        (n_bytes > 0 && !bytes.is_null()).then(|| std::slice::from_raw_parts(bytes, n_bytes))
    }
}

unsafe extern "C" fn panics(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: the caller's contract.
    unsafe {
        if let Some(program) = program_of(request).and_then(|b| Program::from_bytes(b).ok())
            && let Err(why) = kernel_ir::verify(&program)
        {
            panic!("{why}");
        }
        compile(ctx, request, out, error)
    }
}

/// What was compiled last: device, form and bytes.
static LAST: Mutex<Option<(DLDevice, FfxIrVersion, Vec<u8>)>> = Mutex::new(None);

unsafe extern "C" fn remembers(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: the caller's contract.
    unsafe {
        let status = compile(ctx, request, out, error);
        if let (FFX_OK, Some(bytes)) = (status, program_of(request)) {
            *locked(&LAST) = Some(((*request).device, (*(*request).program).ir, bytes.to_vec()));
        }
        status
    }
}

unsafe extern "C" fn trusts(
    ctx: *mut c_void,
    _artifact: *const FfxArtifact,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32 {
    let last = locked(&LAST);
    let Some((device, ir, bytes)) = &*last else { return FFX_ERR_INCOMPATIBLE };
    let head = Head::of::<FfxProgram>();
    let program = FfxProgram { head, ir: *ir, bytes: bytes.as_ptr(), n_bytes: bytes.len() };
    let request = FfxCompileRequest {
        head: Head::of::<FfxCompileRequest>(),
        program: &program,
        device: *device,
        mode: FfxStr::EMPTY,
        options: std::ptr::null(),
        n_options: 0,
    };
    // SAFETY: the request and what it points to live through the call, the rest is the caller's.
    unsafe { compile(ctx, &request, out, error) }
}

/// Executes, then changes each output.
///
/// # Safety
/// As for the slot `execute`.
unsafe fn executed(
    [ctx, stream]: [*mut c_void; 2],
    exe: *const FfxExecutable,
    (inputs, n_inputs): (*const *const DLTensor, usize),
    (outputs, n_outputs): (*mut *mut DLManagedTensorVersioned, usize),
    error: *mut FfxError,
    change: impl Fn(*mut DLManagedTensorVersioned),
) -> i32 {
    let Some(execute) = sound().execute else { return FFX_ERR_INCOMPATIBLE };
    // SAFETY: the caller's contract is passed on; a successful call has filled every place.
    unsafe {
        let status = execute(ctx, exe, inputs, n_inputs, outputs, n_outputs, stream, error);
        if status == FFX_OK {
            (0..n_outputs).for_each(|n| change(*outputs.add(n)));
        }
        status
    }
}

unsafe extern "C" fn nothing(_: *mut DLManagedTensorVersioned) {}

unsafe extern "C" fn never_freed(
    ctx: *mut c_void,
    exe: *const FfxExecutable,
    inputs: *const *const DLTensor,
    n_inputs: usize,
    outputs: *mut *mut DLManagedTensorVersioned,
    n_outputs: usize,
    stream: *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: the caller's contract is passed on; outputs are live tensors.
    unsafe {
        executed([ctx, stream], exe, (inputs, n_inputs), (outputs, n_outputs), error, |t| {
            (*t).deleter = Some(nothing);
        })
    }
}

type Deleter = unsafe extern "C" fn(*mut DLManagedTensorVersioned);

/// Outputs that were not deleted yet: address, executable, their own deleter.
static ALIVE: Mutex<Option<HashMap<usize, (usize, Deleter)>>> = Mutex::new(None);

unsafe extern "C" fn registered(
    ctx: *mut c_void,
    exe: *const FfxExecutable,
    inputs: *const *const DLTensor,
    n_inputs: usize,
    outputs: *mut *mut DLManagedTensorVersioned,
    n_outputs: usize,
    stream: *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: the caller's contract is passed on; outputs are live tensors.
    unsafe {
        executed([ctx, stream], exe, (inputs, n_inputs), (outputs, n_outputs), error, |t| {
            if let Some(own) = (*t).deleter.replace(frees_again) {
                locked(&ALIVE).get_or_insert_default().insert(t as usize, (exe as usize, own));
            }
        })
    }
}

/// The deleter of outputs whose executable lives; of others too, though they are freed already.
unsafe extern "C" fn frees_again(tensor: *mut DLManagedTensorVersioned) {
    let own = locked(&ALIVE).get_or_insert_default().remove(&(tensor as usize)).map(|(_, own)| own);
    if let Some(own) = own {
        // SAFETY: a tensor of this plugin; where its executable is destroyed it was freed before, which is the demonstrated
        // fault.
        unsafe { own(tensor) };
    }
}

unsafe extern "C" fn destroys_outputs(ctx: *mut c_void, exe: *mut FfxExecutable) {
    let theirs: Vec<(usize, Deleter)> = locked(&ALIVE)
        .get_or_insert_default()
        .iter()
        .filter(|(_, (owner, _))| *owner == exe as usize && !exe.is_null())
        .map(|(tensor, (_, own))| (*tensor, *own))
        .collect();
    for (tensor, own) in theirs {
        // SAFETY: a live tensor of this plugin. It stays registered, so its deleter frees it again.
        unsafe { own(tensor as *mut DLManagedTensorVersioned) };
    }
    if let Some(destroy) = sound().executable_destroy {
        // SAFETY: the caller's contract is passed on.
        unsafe { destroy(ctx, exe) };
    }
}
