//! The functions of the table. Each reads its arguments, calls the safe trait under [`guard`], writes the result.
//!
//! All slots share the contract of the ABI: `ctx` is the table's, pointers are null or keep what `plugin-abi` requires of
//! them, `error` is null or an error struct of the caller. Each `unsafe` block below relies on that.

use std::ffi::c_void;
use std::sync::{RwLock, RwLockReadGuard};

use plugin_abi::table::covers;
use plugin_abi::{
    DLManagedTensorVersioned, DLTensor, FfxCompileRequest, FfxDescription, FfxDeviceInfo, FfxDeviceSink,
    FfxError, FfxExecutable, FfxExecutableInfo, FfxMemoryEstimate, FfxNameValue, FfxRefusal, FfxRefusalSink,
    FfxStr, Head, Table,
};

use super::entry::instance;
use super::guard::{catch, guard};
use super::request;
use crate::tensor::Bound;
use crate::{Backend, Constants, DeviceId, DeviceInfo, Executable, PluginError, Signature, Stream};

/// The target of an `FfxExecutable` pointer.
pub(super) struct Cell {
    signature: Signature,
    /// Device that it was compiled for.
    pub(super) device: DeviceId,
    /// Write-locked to bind, read-locked to execute: the host need not order the two.
    state: RwLock<State>,
}

pub(super) struct State {
    pub(super) executable: Box<dyn Executable>,
    constants: Vec<Bound>,
    /// How many were bound, released ones included.
    bound: usize,
}

impl Cell {
    /// An executable as the host holds it.
    pub(super) fn export(executable: Box<dyn Executable>, device: DeviceId) -> *mut FfxExecutable {
        let signature = executable.signature();
        let state = RwLock::new(State { executable, constants: Vec::new(), bound: 0 });
        Box::into_raw(Box::new(Cell { signature, device, state })).cast()
    }

    pub(super) fn read(&self) -> Result<RwLockReadGuard<'_, State>, PluginError> {
        self.state.read().map_err(|_| poisoned())
    }
}

/// Cells are shared through raw pointers, for which the compiler does not check this bound.
const _: () = {
    const fn shared_between_threads<T: Send + Sync>() {}
    shared_between_threads::<Cell>();
};

pub(super) unsafe extern "C" fn describe<B: Backend>(
    ctx: *mut c_void,
    out: *mut *const FfxDescription,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); `out` is checked for null.
    unsafe {
        guard(error, || {
            let table = &instance::<B>(ctx)?.description.table;
            *out.as_mut().ok_or_else(null_out)? = table;
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn enumerate_devices<B: Backend>(
    ctx: *mut c_void,
    sink: FfxDeviceSink,
    user: *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`).
    unsafe {
        guard(error, || {
            for device in instance::<B>(ctx)?.backend.devices() {
                give_device(&device, sink, user);
            }
            Ok(())
        })
    }
}

/// # Safety
/// `sink` and `user` are the host's pair.
unsafe fn give_device(device: &DeviceInfo, sink: FfxDeviceSink, user: *mut c_void) {
    let attributes: Vec<_> = device
        .attributes
        .iter()
        .map(|(name, value)| FfxNameValue { name: FfxStr::new(name), value: FfxStr::new(value) })
        .collect();
    let info = FfxDeviceInfo {
        head: Head::of::<FfxDeviceInfo>(),
        device: device.device,
        name: FfxStr::new(&device.name),
        unavailable_because: device.unavailable_because.as_deref().map_or(FfxStr::EMPTY, FfxStr::new),
        memory_bytes: device.memory_bytes,
        attributes: attributes.as_ptr(),
        n_attributes: attributes.len(),
    };
    // SAFETY: the struct and all it points to outlive the call.
    unsafe { sink(user, &info) }
}

pub(super) unsafe extern "C" fn query_support<B: Backend>(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    sink: FfxRefusalSink,
    user: *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`).
    unsafe {
        guard(error, || {
            let instance = instance::<B>(ctx)?;
            let request = request::compile_request(request, &instance.description.safe)?;
            for refusal in instance.backend.query_support(&request)? {
                let refusal = FfxRefusal {
                    head: Head::of::<FfxRefusal>(),
                    node: FfxStr::new(&refusal.node),
                    reason: FfxStr::new(&refusal.reason),
                };
                sink(user, &refusal);
            }
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn memory_estimate<B: Backend>(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut FfxMemoryEstimate,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); `write_out` respects the size of the caller's struct.
    unsafe {
        guard(error, || {
            let instance = instance::<B>(ctx)?;
            let request = request::compile_request(request, &instance.description.safe)?;
            let estimate = instance
                .backend
                .memory_estimate(&request)?
                .ok_or_else(|| PluginError::unsupported("this backend makes no memory estimate"))?;
            let full = FfxMemoryEstimate {
                head: Head::of::<FfxMemoryEstimate>(),
                constant_bytes: estimate.constant_bytes,
                peak_bytes: estimate.peak_bytes,
                code_bytes: estimate.code_bytes,
            };
            write_out(out, &full)
        })
    }
}

pub(super) unsafe extern "C" fn compile<B: Backend>(
    ctx: *mut c_void,
    request: *const FfxCompileRequest,
    out: *mut *mut FfxExecutable,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); `out` is checked for null.
    unsafe {
        guard(error, || {
            let out = out.as_mut().ok_or_else(null_out)?;
            let instance = instance::<B>(ctx)?;
            let request = request::compile_request(request, &instance.description.safe)?;
            *out = Cell::export(instance.backend.compile(&request)?, request.device);
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn executable_info(
    _ctx: *mut c_void,
    exe: *const FfxExecutable,
    out: *mut FfxExecutableInfo,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); `write_out` respects the size of the caller's struct.
    unsafe {
        guard(error, || {
            let signature = cell(exe)?.signature;
            let full = FfxExecutableInfo {
                head: Head::of::<FfxExecutableInfo>(),
                n_inputs: signature.inputs,
                n_outputs: signature.outputs,
                n_constants: signature.constants,
            };
            write_out(out, &full)
        })
    }
}

pub(super) unsafe extern "C" fn executable_destroy(_ctx: *mut c_void, exe: *mut FfxExecutable) {
    if exe.is_null() {
        return;
    }
    // There is no caller to report a panic of the executable's destructor to.
    let _ = catch(|| {
        // SAFETY: the host passes the pointer that `compile` returned exactly once, while no other call on it runs.
        drop(unsafe { Box::from_raw(exe.cast::<Cell>()) });
        Ok(())
    });
}

pub(super) unsafe extern "C" fn bind_constants(
    _ctx: *mut c_void,
    exe: *mut FfxExecutable,
    names: *const FfxStr,
    tensors: *const *const DLTensor,
    n: usize,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); the host keeps the constants' memory until the next
    // binding or destruction, and `State::constants` is replaced or dropped by then.
    unsafe {
        guard(error, || {
            let cell = cell(exe)?;
            let names = request::array(names, n, "names of constants")?;
            let mut views = request::Views::new();
            request::views(&mut views, tensors, n, "constants")?;
            let bound = names
                .iter()
                .zip(views)
                .map(|(&name, view)| Ok(Bound::new(request::text(name, "a constant's name")?, view)))
                .collect::<Result<Vec<_>, PluginError>>()?;
            let mut state = cell.state.write().map_err(|_| poisoned())?;
            // Cleared first: after a failure the executable is unbound rather than half-bound.
            (state.constants, state.bound) = (Vec::new(), 0);
            state.executable.bind_constants(&Constants::new(&bound))?;
            (state.bound, state.constants) = (bound.len(), bound);
            Ok(())
        })
    }
}

/// A slot of the extension for device memory.
pub(super) unsafe extern "C" fn release_constants(
    _ctx: *mut c_void,
    exe: *mut FfxExecutable,
    released: *mut u8,
    n: usize,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); `released` is checked for null and holds `n` writable
    // bytes.
    unsafe {
        guard(error, || {
            let mut state = cell(exe)?.state.write().map_err(|_| poisoned())?;
            if n != state.constants.len() || (released.is_null() && n > 0) {
                let bound = state.constants.len();
                return Err(PluginError::invalid(format!("{n} constants where {bound} are bound")));
            }
            let State { executable, constants, .. } = &mut *state;
            let mut index = 0;
            constants.retain(|_| {
                let kept = executable.reads_constant(index);
                released.add(index).write(u8::from(!kept));
                index += 1;
                kept
            });
            Ok(())
        })
    }
}

pub(super) unsafe extern "C" fn execute(
    _ctx: *mut c_void,
    exe: *const FfxExecutable,
    inputs: *const *const DLTensor,
    n_inputs: usize,
    outputs: *mut *mut DLManagedTensorVersioned,
    n_outputs: usize,
    stream: *mut c_void,
    error: *mut FfxError,
) -> i32 {
    // SAFETY: pointers keep the contract that all slots share (`slots`); `outputs` is checked for null and holds `n_outputs`
    // writable pointers.
    unsafe {
        guard(error, || {
            let cell = cell(exe)?;
            check_counts(&cell.signature, n_inputs, n_outputs, outputs.is_null())?;
            let mut views = request::Views::new();
            request::views(&mut views, inputs, n_inputs, "inputs")?;
            let state = cell.read()?;
            if state.bound < cell.signature.constants {
                return Err(PluginError::invalid(format!(
                    "{} of {} constants are bound; call bind_constants before execute",
                    state.bound, cell.signature.constants
                )));
            }
            let results =
                state.executable.execute(&views, &Constants::new(&state.constants), Stream(stream))?;
            if results.len() != n_outputs {
                return Err(PluginError::internal(format!(
                    "the backend returned {} outputs, its signature says {n_outputs}",
                    results.len()
                )));
            }
            for (i, result) in results.into_iter().enumerate() {
                outputs.add(i).write(result.into_dlpack());
            }
            Ok(())
        })
    }
}

fn check_counts(
    signature: &Signature,
    n_inputs: usize,
    n_outputs: usize,
    outputs_null: bool,
) -> Result<(), PluginError> {
    if n_inputs != signature.inputs || n_outputs != signature.outputs {
        return Err(PluginError::invalid(format!(
            "the program takes {} inputs and gives {} outputs, but was called with {n_inputs} and {n_outputs}",
            signature.inputs, signature.outputs
        )));
    }
    if outputs_null && n_outputs > 0 {
        return Err(null_out());
    }
    Ok(())
}

/// # Safety
/// `exe` is null or an executable of `compile` that was not destroyed.
pub(super) unsafe fn cell<'a>(exe: *const FfxExecutable) -> Result<&'a Cell, PluginError> {
    // SAFETY: the pointer that `compile` returned is a `Cell`.
    unsafe { exe.cast::<Cell>().as_ref() }.ok_or_else(|| PluginError::invalid("the executable is null"))
}

/// Changes an executable while no other call uses it.
///
/// # Safety
/// As for [`cell`].
pub(super) unsafe fn cell_mut(
    exe: *const FfxExecutable,
    body: impl FnOnce(&mut dyn Executable) -> Result<(), PluginError>,
) -> Result<(), PluginError> {
    // SAFETY: the caller's guarantee about the executable is passed on unchanged.
    let cell = unsafe { cell(exe)? };
    body(&mut *cell.state.write().map_err(|_| poisoned())?.executable)
}

/// Fills a struct of the caller as far as its `struct_size` covers whole fields; its head stays.
///
/// # Safety
/// `out` is null or points to a table of the caller whose `struct_size` bytes are writable.
unsafe fn write_out<T: Table>(out: *mut T, full: &T) -> Result<(), PluginError> {
    if out.is_null() {
        return Err(null_out());
    }
    // SAFETY: a table begins with its head.
    let size = unsafe { (*out.cast::<Head>()).struct_size };
    for field in T::FIELDS.iter().filter(|f| f.offset >= size_of::<Head>() && covers(size, f)) {
        // SAFETY: the field is completely inside both structs.
        unsafe {
            let from = std::ptr::from_ref(full).cast::<u8>().add(field.offset);
            std::ptr::copy_nonoverlapping(from, out.cast::<u8>().add(field.offset), field.size);
        }
    }
    Ok(())
}

pub(super) fn null_out() -> PluginError {
    PluginError::invalid("the place for the result is null")
}

fn poisoned() -> PluginError {
    PluginError::internal(
        "an earlier bind_constants panicked, so this executable cannot be used; compile it again",
    )
}
