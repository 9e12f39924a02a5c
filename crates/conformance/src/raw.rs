//! The plugin's table as it is, without the host's manners: for handshakes and calls that a well-behaved host never
//! makes. All `unsafe` of the suite stands here.
//!
//! What is lent to the plugin stands in front of a strip of known bytes, so that a write beyond it shows.

use std::ffi::c_void;
use std::path::Path;
use std::ptr::{null, null_mut};

use kernel_ir::Program;
use plugin_abi::table::{covers, read};
use plugin_abi::{
    DLDevice, DLManagedTensorVersioned, DLTensor, ENTRY_SYMBOL, FFX_LEVEL_KERNEL_IR, FFX_OK, FfxArtifact,
    FfxCompileRequest, FfxDescription, FfxDeviceInfo, FfxEntry, FfxError, FfxExecutable, FfxExecutableInfo,
    FfxHost, FfxIrVersion, FfxNameValue, FfxPlugin, FfxProgram, FfxStr, Head, Table, text_bytes,
};
use tensor::Tensor;

use crate::case::Fault;

const STRIP: u8 = 0xc3;

/// A value and the strip behind it.
#[repr(C)]
pub struct Guarded<T> {
    /// The value.
    pub value: T,
    strip: [u8; 512],
}

impl<T> Guarded<T> {
    /// Puts the strip behind a value.
    pub fn new(value: T) -> Box<Guarded<T>> {
        Box::new(Guarded { value, strip: [STRIP; 512] })
    }
    /// Whether nothing was written behind the value.
    pub fn is_intact(&self) -> bool {
        self.strip.iter().all(|b| *b == STRIP)
    }
}

/// An error struct that claims to be `size` bytes large; what lies beyond must stay as it is.
pub struct ErrorPlace {
    place: Box<Guarded<FfxError>>,
    size: usize,
}

impl ErrorPlace {
    /// A whole struct of this build.
    pub fn whole() -> ErrorPlace {
        ErrorPlace::cut(size_of::<FfxError>())
    }
    /// A struct of which only `size` bytes may be written.
    pub fn cut(size: usize) -> ErrorPlace {
        let mut place = Guarded::new(FfxError::new());
        place.value.head.struct_size = size as u32;
        for field in FfxError::FIELDS.iter().filter(|f| !covers(size as u32, f)) {
            // SAFETY: the field lies inside of the struct, which is plain bytes and numbers.
            unsafe {
                std::ptr::from_mut(&mut place.value)
                    .cast::<u8>()
                    .add(field.offset)
                    .write_bytes(STRIP, field.size)
            };
        }
        ErrorPlace { place, size }
    }
    /// For a call.
    pub fn pointer(&mut self) -> *mut FfxError {
        &mut self.place.value
    }
    /// Whether nothing was written beyond `size`.
    pub fn is_intact(&self) -> bool {
        // SAFETY: the struct is plain bytes and numbers, all of them initialised.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                std::ptr::from_ref(&self.place.value).cast::<u8>(),
                size_of::<FfxError>(),
            )
        };
        let beyond = FfxError::FIELDS.iter().filter(|f| !covers(self.size as u32, f));
        self.place.is_intact()
            && beyond.into_iter().all(|f| bytes[f.offset..f.end()].iter().all(|b| *b == STRIP))
    }
    /// The code that was written.
    pub fn code(&self) -> i32 {
        self.place.value.code
    }
    /// The message that was written.
    pub fn message(&self) -> String {
        String::from_utf8_lossy(text_bytes(&self.place.value.message)).into_owned()
    }

    /// What a call that must fail may be blamed for: success, another code in the struct, no message, a write beyond it.
    ///
    /// # Errors
    /// The first of these.
    pub fn expect_failure(&self, status: i32) -> Result<(), Fault> {
        if status == FFX_OK {
            return Err(Fault::wrong("the call succeeded, but must fail"));
        }
        self.expect_intact()?;
        if self.code() != status {
            return Err(Fault::wrong(format!(
                "the call returns {status}, the error struct says {}",
                self.code()
            )));
        }
        if self.message().is_empty() {
            return Err(Fault::wrong(format!("the call fails with code {status} and without a message")));
        }
        Ok(())
    }
    /// # Errors
    /// A write beyond the struct.
    pub fn expect_intact(&self) -> Result<(), Fault> {
        let place = format!("a write beyond an error struct of {} bytes", self.size);
        if self.is_intact() { Ok(()) } else { Err(Fault::wrong(place)) }
    }
}

/// Loads a library and finds its entry; it stays loaded.
///
/// # Errors
/// The loader's own, or that there is no entry.
pub fn entry(library: &Path) -> Result<FfxEntry, Fault> {
    // SAFETY: running a library's initializers is what judging it means; the process is there for nothing else.
    let loaded = unsafe { libloading::Library::new(library) };
    let loaded = loaded.map_err(|e| Fault::wrong(format!("the library does not load: {e}")))?;
    // SAFETY: the symbol's name carries the ABI's major; who exports it vouches for its type.
    let entry = unsafe { loaded.get::<FfxEntry>(ENTRY_SYMBOL) }.map(|symbol| *symbol);
    let entry = entry.map_err(|_| Fault::wrong(format!("the library exports no `{ENTRY_SYMBOL}`")))?;
    std::mem::forget(loaded);
    Ok(entry)
}

/// Host tables to enter with. They live as long as the process.
pub fn host(head: Head, log: bool) -> &'static FfxHost {
    unsafe extern "C" fn quiet(_: *mut c_void, _: u32, _: FfxStr, _: FfxStr) {}
    let version = FfxStr::new("ferroflux conformance");
    Box::leak(Box::new(FfxHost { head, ctx: null_mut(), version, log: if log { Some(quiet) } else { None } }))
}

/// Enters a plugin and hands out the pointer to its table, which may be null.
pub fn enter(entry: FfxEntry, host: *const FfxHost, error: &mut ErrorPlace) -> *const FfxPlugin {
    // SAFETY: `host` is null or lives for ever, the error struct lives through the call; the rest is what is judged.
    unsafe { entry(host, error.pointer()) }
}

/// Head of the table behind a pointer.
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
        // SAFETY: a table of the plugin's, for the life of the process.
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
        // SAFETY: what a successful call hands out lives as long as the process.
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
            // SAFETY: the description lives as long as the process and has so many forms.
            (false, n @ 1..=4096) => unsafe { std::slice::from_raw_parts(description.irs, n) },
            _ => &[],
        };
        let own = |ir: &&FfxIrVersion| ir.level == FFX_LEVEL_KERNEL_IR && ir.major == kernel_ir::IR_MAJOR;
        let minor = irs.iter().filter(own).map(|ir| ir.minor).max();
        let minor = minor.ok_or_else(|| Fault::Declined("the plugin reads no kernel-ir".into()))?;
        let minor = minor.min(kernel_ir::IR_MINOR);
        let bytes = program.to_bytes_at(minor).map_err(|e| Fault::Declined(e.to_string()))?;
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
    /// A failure, told as a refusal where its code says so.
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

/// Collects what a plugin gives in pieces.
unsafe extern "C" fn bytes_sink(user: *mut c_void, bytes: *const u8, n: usize) {
    if n > 0 && !bytes.is_null() {
        // SAFETY: `user` is the vector that the caller lent; the plugin vouches for its bytes.
        unsafe { (*user.cast::<Vec<u8>>()).extend_from_slice(std::slice::from_raw_parts(bytes, n)) };
    }
}

fn missing(slot: &str) -> Fault {
    Fault::wrong(format!("the slot `{slot}` is null"))
}

/// An executable that is destroyed when dropped.
pub struct Owned<'a> {
    raw: &'a Raw,
    exe: *mut FfxExecutable,
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.raw.destroy(self.exe);
    }
}

impl Owned<'_> {
    /// Its counts: inputs, outputs, constants. `size` is what the caller claims its struct to be.
    ///
    /// # Errors
    /// A failure, or a write beyond the struct.
    pub fn info(&self, size: usize) -> Result<[usize; 3], Fault> {
        let info = self.raw.table.executable_info.ok_or_else(|| missing("executable_info"))?;
        let head = Head { struct_size: size as u32, ..Head::of::<FfxExecutableInfo>() };
        let mut place = Guarded::new(FfxExecutableInfo { head, n_inputs: 0, n_outputs: 0, n_constants: 0 });
        let mut error = ErrorPlace::whole();
        // SAFETY: the executable lives, and so do the places.
        let status = unsafe { info(self.raw.table.ctx, self.exe, &mut place.value, error.pointer()) };
        let i = place.value;
        let covered = |end: usize, value: usize| if size >= end { value } else { 0 };
        let whole = size_of::<FfxExecutableInfo>();
        if !place.is_intact() || (size < whole && i.n_constants != 0) {
            return Err(Fault::wrong(format!("executable_info writes beyond a struct of {size} bytes")));
        }
        if status != FFX_OK {
            return Err(Fault::wrong(format!(
                "executable_info fails with code {status}: {}",
                error.message()
            )));
        }
        Ok([i.n_inputs, i.n_outputs, covered(whole, i.n_constants)])
    }

    /// Runs the executable. `outputs` are places for tensors; `extra` more of them stand behind, which must stay null.
    ///
    /// # Errors
    /// A null slot, or a write beyond the places.
    pub fn execute(
        &self,
        inputs: &[&Tensor],
        outputs: usize,
        error: *mut FfxError,
    ) -> Result<(i32, Vec<Output>), Fault> {
        let execute = self.raw.table.execute.ok_or_else(|| missing("execute"))?;
        let lent: Vec<Lent> = inputs.iter().map(|t| Lent::new(t)).collect();
        let pointers: Vec<*const DLTensor> = lent.iter().map(|l| &raw const *l.tensor).collect();
        /// Places behind those that the plugin is told of.
        const EXTRA: usize = 8;
        let mut places: Vec<*mut DLManagedTensorVersioned> = vec![null_mut(); outputs + EXTRA];
        // SAFETY: the executable lives; inputs, places and the error struct live through the call.
        let status = unsafe {
            let (given, out) = (pointers.as_ptr(), places.as_mut_ptr());
            execute(self.raw.table.ctx, self.exe, given, pointers.len(), out, outputs, null_mut(), error)
        };
        if places[outputs..].iter().any(|p| !p.is_null()) {
            return Err(Fault::wrong(format!("execute writes more than the {outputs} places for outputs")));
        }
        places.truncate(outputs);
        let owned = places.into_iter().filter(|p| !p.is_null()).map(Output).collect();
        Ok((status, owned))
    }

    /// Binds tensors as constants; the caller keeps them alive.
    ///
    /// # Errors
    /// A null slot: the plugin takes no programs with constants.
    pub fn bind(&self, constants: &[(&str, &Tensor)], error: &mut ErrorPlace) -> Result<i32, Fault> {
        let bind = self.raw.table.bind_constants;
        let bind = bind.ok_or_else(|| Fault::Declined("the plugin takes no constants".into()))?;
        let names: Vec<FfxStr> = constants.iter().map(|(name, _)| FfxStr::new(name)).collect();
        let lent: Vec<Lent> = constants.iter().map(|(_, t)| Lent::new(t)).collect();
        let pointers: Vec<*const DLTensor> = lent.iter().map(|l| &raw const *l.tensor).collect();
        // SAFETY: names and tensor structs live through the call, the memory behind them as long as the caller keeps it.
        Ok(unsafe {
            let ctx = self.raw.table.ctx;
            bind(ctx, self.exe, names.as_ptr(), pointers.as_ptr(), pointers.len(), error.pointer())
        })
    }

    /// Saves the executable as an artifact.
    ///
    /// # Errors
    /// A failure.
    pub fn save(&self) -> Result<Vec<u8>, Fault> {
        let save = self.raw.table.artifact_save.ok_or_else(|| missing("artifact_save"))?;
        let (mut bytes, mut error) = (Vec::new(), ErrorPlace::whole());
        // SAFETY: the executable lives; the sink and its vector live through the call.
        let status = unsafe {
            let user = std::ptr::from_mut(&mut bytes).cast();
            save(self.raw.table.ctx, self.exe, bytes_sink, user, error.pointer())
        };
        match status {
            FFX_OK => Ok(bytes),
            plugin_abi::FFX_ERR_UNSUPPORTED => Err(Fault::Declined(error.message())),
            _ => Err(Fault::wrong(format!("artifact_save fails with code {status}: {}", error.message()))),
        }
    }
}

/// A tensor lent to the plugin: struct, sizes and strides.
struct Lent {
    tensor: Box<DLTensor>,
    _dims: Box<[i64]>,
}

impl Lent {
    fn new(tensor: &Tensor) -> Lent {
        let parts = tensor.raw_parts();
        let (code, bits) = parts.dtype.dlpack();
        let sizes = parts.sizes.iter().map(|s| *s as i64);
        let mut dims: Box<[i64]> = sizes.chain(parts.strides.iter().map(|s| *s as i64)).collect();
        let rank = parts.sizes.len();
        let shape = dims.as_mut_ptr();
        let tensor = Box::new(DLTensor {
            data: parts.data.cast_mut().cast(),
            device: DLDevice { device_type: plugin_abi::dlpack::DL_CPU, device_id: 0 },
            ndim: rank as i32,
            dtype: plugin_abi::DLDataType { code, bits, lanes: 1 },
            shape,
            strides: shape.wrapping_add(rank),
            byte_offset: 0,
        });
        Lent { tensor, _dims: dims }
    }
}

/// An output that its deleter frees when dropped.
pub struct Output(*mut DLManagedTensorVersioned);

// SAFETY: the ABI demands that the deleter may be called on any thread.
unsafe impl Send for Output {}

impl Output {
    /// Address of the struct and of its first element, and whether it lies in host memory.
    pub fn addresses(&self) -> (usize, usize, bool) {
        // SAFETY: an output of a successful call, not deleted yet.
        let managed = unsafe { &*self.0 };
        let t = &managed.dl_tensor;
        let on_host = t.device.device_type == plugin_abi::dlpack::DL_CPU;
        (self.0 as usize, t.data as usize + t.byte_offset as usize, on_host)
    }
    /// Whether it has a deleter.
    pub fn has_deleter(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.0).deleter.is_some() }
    }
    /// A copy of the first `n` bytes, for a row-major output in host memory.
    pub fn bytes(&self, n: usize) -> Vec<u8> {
        let (_, data, _) = self.addresses();
        // SAFETY: the caller knows the program, so how large its outputs are.
        unsafe { std::slice::from_raw_parts(data as *const u8, n) }.to_vec()
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // SAFETY: owned, and not deleted before.
        unsafe {
            if let Some(delete) = (*self.0).deleter {
                delete(self.0);
            }
        }
    }
}

/// A program as bytes.
pub struct Form {
    /// In which form.
    pub ir: FfxIrVersion,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl Form {
    /// A request to compile it.
    pub fn request(&self, device: DLDevice) -> Request<'_> {
        Request::new(self.ir, &self.bytes, device)
    }
}

/// A compile request, laid out for C.
pub struct Request<'a> {
    request: Box<Guarded<FfxCompileRequest>>,
    program: Box<Guarded<FfxProgram>>,
    options: Box<[FfxNameValue]>,
    _bytes: std::marker::PhantomData<&'a [u8]>,
}

impl<'a> Request<'a> {
    /// A program for a device, in default mode, without options.
    pub fn new(ir: FfxIrVersion, bytes: &'a [u8], device: DLDevice) -> Request<'a> {
        let head = Head::of::<FfxProgram>();
        let program = Guarded::new(FfxProgram { head, ir, bytes: bytes.as_ptr(), n_bytes: bytes.len() });
        let request = Guarded::new(FfxCompileRequest {
            head: Head::of::<FfxCompileRequest>(),
            program: &raw const program.value,
            device,
            mode: FfxStr::EMPTY,
            options: null(),
            n_options: 0,
        });
        Request { request, program, options: Box::default(), _bytes: std::marker::PhantomData }
    }
    /// Sets the mode.
    #[must_use]
    pub fn mode(mut self, mode: &'a str) -> Request<'a> {
        self.request.value.mode = FfxStr::new(mode);
        self
    }
    /// Sets one option.
    #[must_use]
    pub fn option(mut self, name: &'a str, value: &'a str) -> Request<'a> {
        self.options = [FfxNameValue { name: FfxStr::new(name), value: FfxStr::new(value) }].into();
        (self.request.value.options, self.request.value.n_options) = (self.options.as_ptr(), 1);
        self
    }
    /// Claims that both structs are `more` bytes larger, and of a later minor.
    #[must_use]
    pub fn newer(mut self, more: u32) -> Request<'a> {
        for head in [&mut self.request.value.head, &mut self.program.value.head] {
            head.struct_size += more;
            head.minor += 9;
        }
        self
    }
    /// For a call.
    pub fn pointer(&self) -> *const FfxCompileRequest {
        &raw const self.request.value
    }
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
