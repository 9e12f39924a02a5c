//! Reads the arguments that the host passes to a slot: texts, compile requests, arrays of tensors. Everything is checked.

use ir_core::DType;
use plugin_abi::table::read;
use plugin_abi::{DLDataType, DLTensor, FfxCompileRequest, FfxNameValue, FfxProgram, FfxStr, Table};
use smallvec::SmallVec;

use crate::tensor::dtype_of;
use crate::{CompileRequest, Description, ErrorKind, Options, PluginError, ProgramBytes, TensorView};

/// Most entries of an array that the host may pass: a corrupt count is an error, not an out-of-bounds read.
const MAX_COUNT: usize = 1 << 24;

/// Reads a table of the host.
///
/// # Safety
/// As for [`plugin_abi::table::read`].
pub(crate) unsafe fn table<T: Table>(ptr: *const T) -> Result<T, PluginError> {
    // SAFETY: the caller's guarantee about the pointer is passed on unchanged.
    unsafe { read(ptr) }
        .map_err(|e| PluginError::new(ErrorKind::Incompatible, format!("bad {} from the host: {e}", T::NAME)))
}

/// Borrows an array.
///
/// # Safety
/// `data` is null or points to `len` readable values that outlive `'a`.
pub(crate) unsafe fn array<'a, T>(data: *const T, len: usize, what: &str) -> Result<&'a [T], PluginError> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() || len > MAX_COUNT || !data.is_aligned() {
        return Err(PluginError::invalid(format!("{len} {what} at address {data:p}")));
    }
    // SAFETY: the pointer is not null and aligned, and the caller promises `len` readable values.
    Ok(unsafe { std::slice::from_raw_parts(data, len) })
}

/// Borrows bytes of any number; a null pointer means none.
///
/// # Safety
/// `data` is null or points to `len` readable bytes that outlive `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize, what: &str) -> Result<&'a [u8], PluginError> {
    if data.is_null() && len > 0 || len > isize::MAX as usize {
        return Err(PluginError::invalid(format!("{what} of {len} bytes at {data:p}")));
    }
    // SAFETY: null was excluded where there are bytes, and the caller promises that they are readable for `'a`.
    Ok(unsafe { FfxStr { data, len }.bytes() })
}

/// Borrows a text.
///
/// # Safety
/// As for [`FfxStr::bytes`].
pub(crate) unsafe fn text<'a>(text: FfxStr, what: &str) -> Result<&'a str, PluginError> {
    // SAFETY: the caller's guarantee about the text is passed on unchanged.
    let bytes = unsafe { text.bytes() };
    std::str::from_utf8(bytes).map_err(|_| PluginError::invalid(format!("{what} is not UTF-8")))
}

/// Reads and checks a compile request against the backend's description.
///
/// # Safety
/// `request` keeps the ABI's contract for `'a`.
pub(crate) unsafe fn compile_request<'a>(
    request: *const FfxCompileRequest,
    description: &Description,
) -> Result<CompileRequest<'a>, PluginError> {
    // SAFETY: the caller promises that the pointers of the request are readable for `'a`; each is checked for null.
    unsafe {
        let request = table(request)?;
        let program = program(request.program, description)?;
        let given = array::<FfxNameValue>(request.options, request.n_options, "options")?;
        let given = given
            .iter()
            .map(|o| Ok((text(o.name, "an option's name")?, text(o.value, "an option's value")?)))
            .collect::<Result<Vec<_>, PluginError>>()?;
        let mode = match text(request.mode, "the mode")? {
            "" => plugin_abi::Mode::Default.name(),
            mode => mode,
        };
        check_mode(mode, description)?;
        let options = Options::resolve(&description.options, &given)?;
        Ok(CompileRequest { program, device: request.device, mode, options })
    }
}

/// # Safety
/// As for [`compile_request`].
unsafe fn program<'a>(
    program: *const FfxProgram,
    description: &Description,
) -> Result<ProgramBytes<'a>, PluginError> {
    // SAFETY: the caller's guarantee about the program is passed on unchanged.
    let program = unsafe { table(program)? };
    let ir = program.ir;
    if !description.irs.iter().any(|own| own.reads(ir)) {
        let reads: Vec<_> = description.irs.iter().map(ToString::to_string).collect();
        return Err(PluginError::new(
            ErrorKind::Incompatible,
            format!("the program is {ir}, but this backend reads {}", reads.join(", ")),
        ));
    }
    // SAFETY: the caller promises that the bytes are readable for `'a`.
    let bytes = unsafe { bytes(program.bytes, program.n_bytes, "a program")? };
    Ok(ProgramBytes { ir, bytes })
}

fn check_mode(mode: &str, description: &Description) -> Result<(), PluginError> {
    if mode == plugin_abi::Mode::Default.name() || description.modes.iter().any(|m| m == mode) {
        return Ok(());
    }
    let known =
        std::iter::once(plugin_abi::Mode::Default.name()).chain(description.modes.iter().map(String::as_str));
    let known: Vec<_> = known.collect();
    Err(PluginError::invalid(format!("unknown mode `{mode}`; this backend takes {}", known.join(", "))))
}

/// Views of a call's tensors; a typical call allocates nothing for them.
pub(crate) type Views<'a> = SmallVec<[TensorView<'a>; 16]>;

/// Views of an array of tensors, pushed to `views`.
///
/// # Safety
/// `tensors` is null or points to `n` pointers, each null or to a tensor that keeps DLPack's contract for `'a`.
pub(crate) unsafe fn views<'a>(
    views: &mut Views<'a>,
    tensors: *const *const DLTensor,
    n: usize,
    what: &str,
) -> Result<(), PluginError> {
    // SAFETY: the caller's guarantee about the array is passed on unchanged.
    let tensors = unsafe { array(tensors, n, what)? };
    views.reserve_exact(n);
    let place = |i: usize, e: PluginError| PluginError {
        message: format!("number {i} of {n} {what}: {}", e.message),
        ..e
    };
    // Neighbouring tensors mostly share their dtype; its lookup is the most expensive part of a view.
    let mut known: Option<(DLDataType, DType)> = None;
    for (i, &tensor) in tensors.iter().enumerate() {
        // SAFETY: the pointer is null or, by the caller's promise, a tensor.
        let Some(tensor) = (unsafe { tensor.as_ref() }) else {
            return Err(place(i, PluginError::invalid("the pointer is null")));
        };
        let dtype = match known {
            Some((code, dtype)) if code == tensor.dtype => dtype,
            _ => dtype_of(tensor.dtype).map_err(|e| place(i, e))?,
        };
        known = Some((tensor.dtype, dtype));
        // SAFETY: the tensor keeps DLPack's contract for `'a`, by the caller's promise.
        match unsafe { TensorView::from_dl(tensor, dtype) } {
            Ok(view) => views.push(view),
            // SAFETY: the tensor keeps DLPack's contract for `'a`, by the caller's promise.
            Err(mismatch) => return Err(place(i, unsafe { mismatch.of_dl(tensor) })),
        }
    }
    Ok(())
}
