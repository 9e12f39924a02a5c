//! The plugin's table without the checks of the host: for handshakes and calls that a well-behaved host never makes. All
//! `unsafe` of the suite is here.
//!
//! Memory lent to the plugin is followed by guard bytes, so that a write beyond it is detected.
#![allow(clippy::not_unsafe_ptr_arg_deref)] // plugins are given null and wrong pointers on purpose

mod executable;
mod lent;
mod place;

use std::ffi::c_void;
use std::path::Path;
use std::ptr::{null, null_mut};

use kernel_ir::Program;
use plugin_abi::table::read;
use plugin_abi::{
    DLDevice, FFX_LEVEL_KERNEL_IR, FFX_OK, FfxArtifact, FfxCompileRequest, FfxDescription, FfxDeviceInfo,
    FfxEntry, FfxError, FfxExecutable, FfxHost, FfxIrVersion, FfxLog, FfxPlugin, FfxStr, Head,
};

pub use executable::Owned;
pub use lent::{Form, Output, Request};
pub use place::{ErrorPlace, Guarded};

use crate::case::Fault;

/// Loads a library and finds its entry; it stays loaded.
///
/// # Errors
/// The error of the loader, or a library without an entry.
pub fn entry(library: &Path) -> Result<FfxEntry, Fault> {
    // The host's own loading function, so that errors are the same here as at installation.
    plugin_host::entry_of(library).map_err(|e| Fault::wrong(format!("the library does not load: {e}")))
}

/// Host tables to enter with. They live as long as the process.
pub fn host(head: Head, log: bool) -> &'static FfxHost {
    unsafe extern "C" fn quiet(_: *mut c_void, _: u32, _: FfxStr, _: FfxStr) {}
    let version = FfxStr::new("ferroflux conformance");
    let log = if log { Some(quiet as FfxLog) } else { None };
    Box::leak(Box::new(FfxHost {
        head,
        ctx: null_mut(),
        version,
        log,
        allocate_memory: None,
        free_memory: None,
    }))
}

/// Enters a plugin and hands out the pointer to its table, which may be null.
pub fn enter(entry: FfxEntry, host: *const FfxHost, error: &mut ErrorPlace) -> *const FfxPlugin {
    // SAFETY: `host` is null or lives for the whole process, the error struct lives through the call; the rest is under
    // test.
    unsafe { entry(host, error.pointer()) }
}

/// Head of the table at a pointer.
///
/// # Errors
/// A null or misaligned pointer.
pub fn head_of(table: *const FfxPlugin) -> Result<Head, Fault> {
    if table.is_null() || !table.is_aligned() {
        return Err(Fault::wrong(format!("the entry hands out the pointer {table:p}")));
    }
    // SAFETY: every table begins with its head, and the pointer was checked as far as it can be.
    Ok(unsafe { *table.cast::<Head>() })
}

/// A plugin that was entered.
#[derive(Clone, Copy)]
pub struct Raw {
    /// Its table, as far as its size covers it.
    pub table: FfxPlugin,
}

impl Raw {
    /// Loads and enters a plugin, with a host table of this build unless another is given.
    ///
    /// # Errors
    /// A library that does not load, or an entry that hands out no table.
    pub fn open(library: &Path, with: Option<&'static FfxHost>) -> Result<Raw, Fault> {
        let host = with.unwrap_or_else(|| host(Head::of::<FfxHost>(), true));
        let mut error = ErrorPlace::whole();
        let table = enter(entry(library)?, host, &mut error);
        if table.is_null() {
            return Err(Fault::wrong(format!("the entry gives no table: {}", error.message())));
        }
        Raw::of(table)
    }
    /// Reads a table.
    ///
    /// # Errors
    /// A table that cannot be read.
    pub fn of(table: *const FfxPlugin) -> Result<Raw, Fault> {
        // SAFETY: a table of the plugin, valid for the life of the process.
        let table = unsafe { read(table) }.map_err(|e| Fault::wrong(format!("the plugin's table: {e}")))?;
        Ok(Raw { table })
    }

    /// Asks for the description.
    ///
    /// # Errors
    /// A failure of the call or a description that cannot be read.
    pub fn describe(&self) -> Result<(*const FfxDescription, FfxDescription), Fault> {
        let describe = self.table.describe.ok_or_else(|| missing("describe"))?;
        let (mut out, mut error) = (null(), ErrorPlace::whole());
        // SAFETY: the places live through the call.
        let status = unsafe { describe(self.table.ctx, &mut out, error.pointer()) };
        error.expect_intact()?;
        if status != FFX_OK {
            return Err(Fault::wrong(format!("describe fails with code {status}: {}", error.message())));
        }
        // SAFETY: the result of a successful call lives as long as the process.
        let read = unsafe { read(out) }.map_err(|e| Fault::wrong(format!("the description: {e}")))?;
        Ok((out, read))
    }

    /// Its devices, and whether each can be used.
    ///
    /// # Errors
    /// A failure of the call, or a device that cannot be read.
    pub fn devices(&self) -> Result<Vec<(DLDevice, bool)>, Fault> {
        type Found = Vec<Option<(DLDevice, bool)>>;
        unsafe extern "C" fn sink(user: *mut c_void, device: *const FfxDeviceInfo) {
            // SAFETY: `user` is the vector below; the device is the plugin's, read by the rule of all tables.
            unsafe {
                let info = read(device).ok().map(|d| (d.device, d.unavailable_because.len == 0));
                (*user.cast::<Found>()).push(info);
            }
        }
        let list = self.table.enumerate_devices.ok_or_else(|| missing("enumerate_devices"))?;
        let (mut found, mut error) = (Found::new(), ErrorPlace::whole());
        // SAFETY: the sink and its vector live through the call.
        let status =
            unsafe { list(self.table.ctx, sink, std::ptr::from_mut(&mut found).cast(), error.pointer()) };
        if status != FFX_OK {
            return Err(Fault::wrong(format!(
                "enumerate_devices fails with code {status}: {}",
                error.message()
            )));
        }
        let read: Option<Vec<_>> = found.into_iter().collect();
        read.ok_or_else(|| Fault::wrong("a device cannot be read"))
    }

    /// The first device that can be used.
    ///
    /// # Errors
    /// As for [`Raw::devices`]; a refusal where there is none.
    pub fn usable(&self) -> Result<DLDevice, Fault> {
        let usable = self.devices()?.into_iter().find(|(_, usable)| *usable);
        usable.map(|(device, _)| device).ok_or_else(|| Fault::Declined("no device can be used".into()))
    }

    /// A program in the newest form that the plugin reads.
    ///
    /// # Errors
    /// A refusal where the plugin reads no kernel-ir, or none as new as what the program uses.
    pub fn form(&self, program: &Program) -> Result<Form, Fault> {
        let (_, description) = self.describe()?;
        let irs: &[FfxIrVersion] = match (description.irs.is_null(), description.n_irs) {
            // SAFETY: the description lives as long as the process and has this many forms.
            (false, n @ 1..=4096) => unsafe { std::slice::from_raw_parts(description.irs, n) },
            _ => &[],
        };
        let own = |ir: &&FfxIrVersion| ir.level == FFX_LEVEL_KERNEL_IR && ir.major == kernel_ir::IR_MAJOR;
        let minor = irs.iter().filter(own).map(|ir| ir.minor).max();
        let minor = minor.ok_or_else(|| Fault::Declined("the plugin reads no kernel-ir".into()))?;
        let minor = minor.min(kernel_ir::IR_MINOR);
        let bytes = program.to_bytes_at(minor).or_else(|_| {
            // The indices of these programs are in range, except where an error is expected.
            let mut plain = program.clone();
            kernel_ir::drop_checks(&mut plain);
            plain.to_bytes_at(minor)
        });
        let bytes = bytes.map_err(|e| Fault::Declined(e.to_string()))?;
        Ok(Form { ir: FfxIrVersion::kernel_ir(kernel_ir::IR_MAJOR, minor), bytes })
    }

    /// Compiles. The status, and the executable where there is one.
    ///
    /// # Errors
    /// A null slot.
    pub fn compile(
        &self,
        request: *const FfxCompileRequest,
        error: *mut FfxError,
    ) -> Result<(i32, *mut FfxExecutable), Fault> {
        let compile = self.table.compile.ok_or_else(|| missing("compile"))?;
        let mut out = null_mut();
        // SAFETY: `request` is null or a whole request that lives through the call; so does the error struct.
        let status = unsafe { compile(self.table.ctx, request, &mut out, error) };
        Ok((status, out))
    }

    /// Compiles what must compile.
    ///
    /// # Errors
    /// A failure, reported as a refusal where its code says so.
    pub fn compiled(&self, request: &Request<'_>) -> Result<Owned<'_>, Fault> {
        let mut error = ErrorPlace::whole();
        let (status, exe) = self.compile(request.pointer(), error.pointer())?;
        self.adopt("compile", status, exe, &error)
    }

    fn adopt(
        &self,
        call: &str,
        status: i32,
        exe: *mut FfxExecutable,
        error: &ErrorPlace,
    ) -> Result<Owned<'_>, Fault> {
        error.expect_intact()?;
        let text = || format!("{call} fails with code {status}: {}", error.message());
        match status {
            FFX_OK if !exe.is_null() => Ok(Owned { raw: self, exe }),
            FFX_OK => Err(Fault::wrong(format!("{call} succeeds without an executable"))),
            plugin_abi::FFX_ERR_UNSUPPORTED => Err(Fault::Declined(text())),
            _ => Err(Fault::wrong(text())),
        }
    }

    /// Loads an artifact. The status, and the executable where there is one.
    ///
    /// # Errors
    /// A null slot.
    pub fn load(
        &self,
        bytes: &[u8],
        device: DLDevice,
        error: &mut ErrorPlace,
    ) -> Result<(i32, *mut FfxExecutable), Fault> {
        let load = self.table.artifact_load.ok_or_else(|| missing("artifact_load"))?;
        let head = Head::of::<FfxArtifact>();
        let artifact = FfxArtifact { head, device, bytes: bytes.as_ptr(), n_bytes: bytes.len() };
        let mut out = null_mut();
        // SAFETY: the artifact and the places live through the call.
        let status = unsafe { load(self.table.ctx, &artifact, &mut out, error.pointer()) };
        Ok((status, out))
    }

    /// Loads an artifact that must load.
    ///
    /// # Errors
    /// A failure.
    pub fn loaded(&self, bytes: &[u8], device: DLDevice) -> Result<Owned<'_>, Fault> {
        let mut error = ErrorPlace::whole();
        let (status, exe) = self.load(bytes, device, &mut error)?;
        self.adopt("artifact_load", status, exe, &error)
    }

    /// The compatibility string of a device. `None` where the plugin makes no artifacts.
    ///
    /// # Errors
    /// A failure of the call.
    pub fn compat(&self, device: DLDevice) -> Result<Option<Vec<u8>>, Fault> {
        let Some(compat) = self.table.artifact_compat_string else { return Ok(None) };
        let (mut text, mut error) = (Vec::new(), ErrorPlace::whole());
        // SAFETY: the sink and its vector live through the call.
        let status = unsafe {
            compat(self.table.ctx, device, bytes_sink, std::ptr::from_mut(&mut text).cast(), error.pointer())
        };
        match status {
            FFX_OK => Ok(Some(text)),
            plugin_abi::FFX_ERR_UNSUPPORTED => Ok(None),
            _ => Err(Fault::wrong(format!(
                "artifact_compat_string fails with code {status}: {}",
                error.message()
            ))),
        }
    }

    /// Whether the plugin has an extension.
    pub fn extension(&self, name: &str) -> bool {
        // SAFETY: the name lives through the call.
        self.table
            .get_extension
            .is_some_and(|get| unsafe { !get(self.table.ctx, FfxStr::new(name)).is_null() })
    }

    /// Destroys an executable, or null.
    pub fn destroy(&self, exe: *mut FfxExecutable) {
        if let Some(destroy) = self.table.executable_destroy {
            // SAFETY: null, or an executable of this plugin that is not used again.
            unsafe { destroy(self.table.ctx, exe) };
        }
    }
}

/// Collects bytes that a plugin passes in pieces.
unsafe extern "C" fn bytes_sink(user: *mut c_void, bytes: *const u8, n: usize) {
    if n > 0 && !bytes.is_null() {
        // SAFETY: `user` is the vector that the caller lent; the plugin promises that its bytes are readable.
        unsafe { (*user.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(bytes, n)) };
    }
}

fn missing(slot: &str) -> Fault {
    Fault::wrong(format!("the slot `{slot}` is null"))
}

/// The text of a string of the plugin's.
///
/// # Errors
/// A text that is not UTF-8 or absurdly long.
pub fn text(text: FfxStr, what: &str) -> Result<String, Fault> {
    if text.len > 1 << 20 {
        return Err(Fault::wrong(format!("{what} has {} bytes", text.len)));
    }
    // SAFETY: a text of a description, for the life of the process.
    let bytes = unsafe { text.bytes() };
    String::from_utf8(bytes.to_vec()).map_err(|_| Fault::wrong(format!("{what} is not UTF-8")))
}
