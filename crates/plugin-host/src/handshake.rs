//! From an entry function to a checked table: version, required slots, description. Slots become plain fields here, so that
//! the rest of the host need not check again which of them exist.

use std::cell::Cell;
use std::ffi::c_void;

use plugin_abi::table::read;
use plugin_abi::{
    ABI_MAJOR, ABI_MINOR, DEVICE_MEMORY, FFX_ERR_INTERNAL, FFX_OK, FfxAllocate, FfxArtifactCompatString,
    FfxArtifactLoad, FfxArtifactSave, FfxBindConstants, FfxCompile, FfxCopy, FfxDeviceInfo, FfxDeviceMemory,
    FfxEntry, FfxEnumerateDevices, FfxError, FfxExecutableDestroy, FfxExecutableInfoFn, FfxExecute,
    FfxGetExtension, FfxInspection, FfxListings, FfxMemoryEstimateFn, FfxObserve, FfxPlugin, FfxQuerySupport,
    FfxReleaseConstants, FfxStr, FfxStreamCreate, FfxStreamDestroy, FfxStreamSynchronize, FfxStreams,
    FfxToDevice, FfxToHost, INSPECTION, STREAMS, Table, TableError,
};

use crate::read::{Described, description, device, failure};
use crate::{DeviceInfo, HostError, host_table};

/// A plugin's table after the handshake.
#[derive(Clone, Copy)]
pub(crate) struct Slots {
    pub(crate) ctx: *mut c_void,
    pub(crate) enumerate_devices: FfxEnumerateDevices,
    pub(crate) compile: FfxCompile,
    pub(crate) executable_info: FfxExecutableInfoFn,
    pub(crate) execute: FfxExecute,
    pub(crate) executable_destroy: FfxExecutableDestroy,
    pub(crate) bind_constants: Option<FfxBindConstants>,
    pub(crate) query_support: Option<FfxQuerySupport>,
    pub(crate) memory_estimate: Option<FfxMemoryEstimateFn>,
    /// All three, or none.
    pub(crate) artifacts: Option<ArtifactSlots>,
    /// The extension for tensors that stay on a device.
    pub(crate) memory: Option<MemorySlots>,
    /// The extension for the order of work on a device.
    pub(crate) streams: Option<StreamSlots>,
    /// The extension that shows compiled programs.
    pub(crate) inspection: Option<InspectionSlots>,
    /// The slot for extensions that a caller requests by name.
    pub(crate) get_extension: Option<FfxGetExtension>,
    /// ABI minor of the plugin.
    pub(crate) minor: u16,
}

/// The slots that save compiled code and load it.
#[derive(Clone, Copy)]
pub(crate) struct ArtifactSlots {
    pub(crate) compat_string: FfxArtifactCompatString,
    pub(crate) save: FfxArtifactSave,
    pub(crate) load: FfxArtifactLoad,
}

/// The slots of the extension for device memory.
#[derive(Clone, Copy)]
pub(crate) struct MemorySlots {
    pub(crate) to_device: FfxToDevice,
    pub(crate) to_host: FfxToHost,
    pub(crate) allocate: Option<FfxAllocate>,
    pub(crate) copy: Option<FfxCopy>,
    pub(crate) release_constants: Option<FfxReleaseConstants>,
}

/// The slots of the extension for streams.
#[derive(Clone, Copy)]
pub(crate) struct StreamSlots {
    pub(crate) create: FfxStreamCreate,
    pub(crate) synchronize: FfxStreamSynchronize,
    pub(crate) destroy: FfxStreamDestroy,
}

/// The slots of the extension that shows compiled programs.
#[derive(Clone, Copy)]
pub(crate) struct InspectionSlots {
    pub(crate) listings: Option<FfxListings>,
    pub(crate) observe: Option<FfxObserve>,
}

// SAFETY: the ABI requires that slots may be called from any thread with this context.
unsafe impl Send for Slots {}
// SAFETY: the ABI requires that slots may be called from many threads at once with this context.
unsafe impl Sync for Slots {}

/// Enters a plugin and checks its table. `backend` names it in errors until its description is known.
///
/// # Safety
/// `entry` is the entry function of a plugin that keeps the ABI's contract.
pub(crate) unsafe fn perform(entry: FfxEntry, backend: &str) -> Result<(Slots, Described), HostError> {
    let mut error = FfxError::new();
    // SAFETY: the host table is static, the error struct lives through the call.
    let table = unsafe { entry(host_table::host(), &mut error) };
    if table.is_null() {
        let status = if error.code == FFX_OK { FFX_ERR_INTERNAL } else { error.code };
        let failure = failure(&error, status);
        return Err(HostError::Plugin { backend: backend.to_owned(), call: "entry", failure });
    }
    // SAFETY: a table of the plugin, valid for the life of the process by its contract.
    let table = unsafe { read(table) }.map_err(|e| bad_table(backend, e))?;
    let (slots, describe) = required(&table, backend)?;
    let mut out = std::ptr::null();
    call(backend, "describe", |error| {
        // SAFETY: `out` and the error struct live through the call.
        unsafe { describe(slots.ctx, &mut out, error) }
    })?;
    // SAFETY: the result of a successful `describe` lives as long as the process.
    let described = unsafe { description(out) }.map_err(|reason| HostError::handshake(backend, reason))?;
    Ok((slots, described))
}

fn bad_table(backend: &str, error: TableError) -> HostError {
    match error {
        TableError::Major(major) => HostError::Abi {
            place: format!("backend `{backend}`"),
            wanted: format!("{major}.0"),
            host: format!("{ABI_MAJOR}.{ABI_MINOR}"),
        },
        other => HostError::handshake(backend, format!("bad plugin table: {other}")),
    }
}

/// The slots of a table; the first required one that is null is the error.
fn required(table: &FfxPlugin, backend: &str) -> Result<(Slots, plugin_abi::FfxDescribe), HostError> {
    macro_rules! slot {
        ($name:ident) => {
            table.$name.ok_or_else(|| HostError::MissingSlot {
                backend: backend.to_owned(),
                slot: stringify!($name),
            })?
        };
    }
    let describe = slot!(describe);
    let slots = Slots {
        ctx: table.ctx,
        enumerate_devices: slot!(enumerate_devices),
        compile: slot!(compile),
        executable_info: slot!(executable_info),
        execute: slot!(execute),
        executable_destroy: slot!(executable_destroy),
        bind_constants: table.bind_constants,
        query_support: table.query_support,
        memory_estimate: table.memory_estimate,
        artifacts: artifacts(table),
        memory: device_memory(table, backend)?,
        streams: streams(table, backend)?,
        inspection: extension::<FfxInspection>(table, INSPECTION, backend)?
            .map(|t| InspectionSlots { listings: t.listings, observe: t.observe }),
        get_extension: table.get_extension,
        minor: table.head.minor,
    };
    Ok((slots, describe))
}

/// A plugin with only some of the three slots cannot use artifacts.
fn artifacts(table: &FfxPlugin) -> Option<ArtifactSlots> {
    Some(ArtifactSlots {
        compat_string: table.artifact_compat_string?,
        save: table.artifact_save?,
        load: table.artifact_load?,
    })
}

/// The extension for device memory, where the plugin has it; two of its slots are required.
fn device_memory(table: &FfxPlugin, backend: &str) -> Result<Option<MemorySlots>, HostError> {
    let Some(memory) = extension::<FfxDeviceMemory>(table, DEVICE_MEMORY, backend)? else { return Ok(None) };
    let missing = |slot| HostError::MissingSlot { backend: backend.to_owned(), slot };
    Ok(Some(MemorySlots {
        to_device: memory.to_device.ok_or_else(|| missing("to_device"))?,
        to_host: memory.to_host.ok_or_else(|| missing("to_host"))?,
        allocate: memory.allocate,
        copy: memory.copy,
        release_constants: memory.release_constants,
    }))
}

/// The extension for streams, where the plugin has it; all of its slots are required.
fn streams(table: &FfxPlugin, backend: &str) -> Result<Option<StreamSlots>, HostError> {
    let Some(streams) = extension::<FfxStreams>(table, STREAMS, backend)? else { return Ok(None) };
    let missing = |slot| HostError::MissingSlot { backend: backend.to_owned(), slot };
    Ok(Some(StreamSlots {
        create: streams.create.ok_or_else(|| missing("create"))?,
        synchronize: streams.synchronize.ok_or_else(|| missing("synchronize"))?,
        destroy: streams.destroy.ok_or_else(|| missing("destroy"))?,
    }))
}

/// The table of an extension; `T` is the one that belongs to the name.
fn extension<T: Table>(table: &FfxPlugin, name: &'static str, backend: &str) -> Result<Option<T>, HostError> {
    let Some(get) = table.get_extension else { return Ok(None) };
    // SAFETY: the name is static; the slot is the plugin's own.
    let found = unsafe { get(table.ctx, FfxStr::new(name)) };
    if found.is_null() {
        return Ok(None);
    }
    // SAFETY: the table that the plugin returns for this name is of this type, valid for the life of the process.
    unsafe { read(found.cast()) }.map(Some).map_err(|e| bad_table(backend, e))
}

thread_local! {
    /// An error struct without text, reused from call to call: clearing its 2 KB takes longer than the rest of a small
    /// call.
    static SPARE_ERROR: Cell<Option<Box<FfxError>>> = const { Cell::new(None) };
}

/// Runs one call with an empty error struct and turns its status into a result.
pub(crate) fn call(
    backend: &str,
    name: &'static str,
    body: impl FnOnce(*mut FfxError) -> i32,
) -> Result<(), HostError> {
    // Taken, not borrowed: the plugin may call back, and the thread may be ending.
    let spare = SPARE_ERROR.try_with(Cell::take).ok().flatten();
    let mut error = spare.unwrap_or_else(|| Box::new(FfxError::new()));
    let status = body(&mut *error);
    if status != FFX_OK {
        return Err(failed(backend, name, &error, status));
    }
    // Text that a plugin wrote although the call succeeded is not kept for another call.
    if error.code == FFX_OK && error.node[0] == 0 && error.message[0] == 0 {
        let _ = SPARE_ERROR.try_with(|place| place.set(Some(error)));
    }
    Ok(())
}

#[cold]
fn failed(backend: &str, call: &'static str, error: &FfxError, status: i32) -> HostError {
    HostError::Plugin { backend: backend.to_owned(), call, failure: failure(error, status) }
}

/// Asks a plugin for its devices.
pub(crate) fn devices(slots: &Slots, backend: &str) -> Result<Vec<DeviceInfo>, HostError> {
    type Collected = Vec<Result<DeviceInfo, String>>;
    unsafe extern "C" fn sink(user: *mut c_void, info: *const FfxDeviceInfo) {
        // SAFETY: `user` is the vector below, lent for the call; `info` is the plugin's, checked while it is read.
        unsafe { (*user.cast::<Collected>()).push(device(info)) }
    }
    let mut found = Collected::new();
    call(backend, "enumerate_devices", |error| {
        // SAFETY: the sink and its vector live through the call.
        unsafe { (slots.enumerate_devices)(slots.ctx, sink, (&raw mut found).cast(), error) }
    })?;
    found.into_iter().collect::<Result<_, _>>().map_err(|reason| HostError::handshake(backend, reason))
}
