//! One instance per backend type and process, and its table.

use std::any::TypeId;
use std::ffi::c_void;
use std::sync::{Mutex, OnceLock, PoisonError};

use plugin_abi::{FfxCollectives, FfxError, FfxHost, FfxPlugin, Head};

use super::description::CDescription;
use super::guard::{catch, guard};
use super::{artifacts, extensions, request, slots};
use crate::{Backend, Host, PluginError};

/// An opened backend; leaked, because a plugin is never unloaded.
pub(crate) struct Instance<B> {
    pub(crate) backend: B,
    pub(crate) description: CDescription,
    table: FfxPlugin,
    engine: OnceLock<Option<&'static FfxCollectives>>,
}

impl<B: Backend> Instance<B> {
    /// The table of the backend's engine, made at the first request.
    pub(crate) fn engine(&self) -> Option<&'static FfxCollectives> {
        *self.engine.get_or_init(|| self.backend.collectives().map(super::collectives::engine_table))
    }
}

/// Opened instances: a backend type may be entered again, by another registry of the same process.
static OPENED: Mutex<Vec<(TypeId, &'static FfxPlugin)>> = Mutex::new(Vec::new());

/// The entry of a backend: what [`export_plugin!`](crate::export_plugin) exports, and what a host that links the backend
/// statically registers. Opens the backend at the first call; a failure is not cached.
///
/// # Safety
/// `host` is null or points to a host table that lives as long as the process; `error` is null or points to an error
/// struct of the caller.
pub unsafe extern "C" fn entry<B: Backend>(host: *const FfxHost, error: *mut FfxError) -> *const FfxPlugin {
    let mut table = std::ptr::null();
    // SAFETY: the caller keeps the contract of this function for both pointers.
    unsafe {
        guard(error, || {
            table = open::<B>(host)?;
            Ok(())
        });
    }
    table
}

/// # Safety
/// As for [`entry`].
unsafe fn open<B: Backend>(host: *const FfxHost) -> Result<*const FfxPlugin, PluginError> {
    // The list is only pushed to, so a panic of `open` under the lock leaves it valid.
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, table)) = opened.iter().find(|(id, _)| *id == TypeId::of::<B>()) {
        return Ok(*table);
    }
    let host = if host.is_null() {
        Host::NONE
    } else {
        // SAFETY: the caller's guarantee about the host's table is passed on unchanged.
        unsafe { Host::of_table(&request::table(host)?) }
    };
    let instance = catch(|| {
        let backend = B::open(host)?;
        let description = CDescription::new(backend.describe());
        Ok(Box::new(Instance { backend, description, table: table::<B>(), engine: OnceLock::new() }))
    })?;
    let raw = Box::into_raw(instance);
    // SAFETY: the instance was just leaked, and nothing else knows its address yet; from here on it is only read.
    let instance: &'static Instance<B> = unsafe {
        (*raw).table.ctx = raw.cast();
        &*raw
    };
    opened.push((TypeId::of::<B>(), &instance.table));
    Ok(&instance.table)
}

/// The slots of a backend type, without a context yet.
fn table<B: Backend>() -> FfxPlugin {
    FfxPlugin {
        head: Head::of::<FfxPlugin>(),
        ctx: std::ptr::null_mut(),
        describe: Some(slots::describe::<B>),
        enumerate_devices: Some(slots::enumerate_devices::<B>),
        compile: Some(slots::compile::<B>),
        executable_info: Some(slots::executable_info),
        execute: Some(slots::execute),
        executable_destroy: Some(slots::executable_destroy),
        bind_constants: Some(slots::bind_constants),
        query_support: Some(slots::query_support::<B>),
        memory_estimate: Some(slots::memory_estimate::<B>),
        get_extension: Some(extensions::get_extension::<B>),
        artifact_compat_string: Some(artifacts::compat_string::<B>),
        artifact_save: Some(artifacts::save::<B>),
        artifact_load: Some(artifacts::load::<B>),
    }
}

/// The instance at a slot's context.
///
/// # Safety
/// `ctx` is the context of the table of this backend type.
pub(crate) unsafe fn instance<'a, B: Backend>(ctx: *mut c_void) -> Result<&'a Instance<B>, PluginError> {
    // SAFETY: the context of our table is a leaked instance of the same type.
    unsafe { ctx.cast::<Instance<B>>().as_ref() }
        .ok_or_else(|| PluginError::invalid("the plugin's context is null; pass the table's `ctx`"))
}
