//! Modules and launches. What hiprtc's stand-in gives as code is the text of the kernels behind a head; the emulator compiles it.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use gpu_emulator::{Emulator, Function};
use gpu_runtime::{Driver, GpuError, Grid, Module as Text};

use crate::device::{INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, NO_BINARY, NOT_FOUND, target};
use crate::state::{Opaque, give, opaque, with};
use crate::stream::Work;

/// What code begins with; the length of the rest follows, the architecture on a line of its own, the text.
const MAGIC: &[u8; 8] = b"hipnone1";

/// Bytes of shared memory that a block has without asking.
const UNASKED: u32 = 64 << 10;

/// Kernels that were allowed more than that.
static GRANTED: AtomicU64 = AtomicU64::new(0);

/// For tests: how many kernels were allowed more than 64 KiB of shared memory.
#[unsafe(no_mangle)]
extern "C" fn ferroflux_hip_standin_granted() -> u64 {
    GRANTED.load(Ordering::Relaxed)
}

/// A kernel and how many arguments it takes.
pub(crate) struct Kernel {
    pub(crate) function: Function,
    pub(crate) parameters: usize,
    /// Bytes of shared memory that it may be launched with.
    shared: AtomicU32,
}

/// A loaded module: kernels by their names.
pub(crate) struct Module(HashMap<String, Arc<Kernel>>);

/// Code of a text for an architecture.
pub(crate) fn code(text: &str, architecture: &str) -> Vec<u8> {
    let rest = format!("{architecture}\n{text}");
    [&MAGIC[..], &(rest.len() as u64).to_le_bytes(), rest.as_bytes()].concat()
}

/// The entries of a text with how many parameters each has: kernels are declared
/// `__global__ void __launch_bounds__(256) name(…)`.
fn entries(text: &str) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for line in text.match_indices("__global__").map(|(at, _)| &text[at..]) {
        let Some(mut rest) =
            line.split_once("void ").map(|(before, rest)| (before.len() < 20).then_some(rest))
        else {
            continue;
        };
        if let Some(text) = rest
            && text.starts_with("__launch_bounds__")
        {
            rest = text.split_once(") ").map(|(_, rest)| rest);
        }
        let Some((name, parameters)) = rest.and_then(|rest| rest.split_once('(')) else { continue };
        let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
        let Some((parameters, _)) = parameters.split_once(')').filter(|_| is_name && !name.is_empty()) else {
            continue;
        };
        let count = if parameters.trim().is_empty() { 0 } else { parameters.split(',').count() };
        found.push((name.to_owned(), count));
    }
    found
}

/// Compiles the kernels of a text.
pub(crate) fn kernels(emulator: &Emulator, text: &str) -> Result<Vec<(String, Kernel)>, GpuError> {
    let found = entries(text);
    let names = found.iter().map(|(name, _)| name.clone()).collect();
    let module = Text { prelude: String::new(), kernels: text.to_owned(), entries: names };
    let functions = emulator.compile(std::slice::from_ref(&module))?.into_iter().flatten();
    let kernel =
        |(function, (name, parameters))| (name, Kernel { function, parameters, shared: UNASKED.into() });
    Ok(functions.zip(found).map(kernel).collect())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipModuleLoadData(module: *mut Opaque, image: *const c_void) -> c_int {
    // SAFETY: an image is at least as long as its head, and as long as that says.
    let rest = unsafe {
        let head = std::slice::from_raw_parts(image.cast::<u8>(), 16);
        let (Some(rest), true) = (head[8..].try_into().ok().map(u64::from_le_bytes), head.starts_with(MAGIC))
        else {
            return INVALID_IMAGE;
        };
        std::slice::from_raw_parts(image.cast::<u8>().add(16), rest as usize)
    };
    let Some((architecture, text)) = std::str::from_utf8(rest).ok().and_then(|rest| rest.split_once('\n'))
    else {
        return INVALID_IMAGE;
    };
    with(|state| {
        let device = state.device()?;
        device.answers()?;
        if device.architecture.split(':').next() != Some(architecture) {
            return Err(NO_BINARY);
        }
        let kernels = kernels(&device.emulator, text).map_err(|e| {
            eprintln!("hip stand-in: {e}");
            INVALID_IMAGE
        })?;
        let kernels = kernels.into_iter().map(|(name, kernel)| (name, Arc::new(kernel))).collect();
        let handle = state.handle();
        state.modules.insert(handle, Module(kernels));
        // SAFETY: the caller's pointer.
        unsafe { give(module, opaque(handle)) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipModuleGetFunction(
    function: *mut Opaque,
    module: Opaque,
    name: *const c_char,
) -> c_int {
    // SAFETY: a text that ends with 0.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    with(|state| {
        let module = state.modules.get(&(module as usize)).ok_or(INVALID_HANDLE)?;
        let kernel = Arc::clone(module.0.get(&*name).ok_or(NOT_FOUND)?);
        let handle = state.handle();
        state.kernels.insert(handle, kernel);
        // SAFETY: the caller's pointer.
        unsafe { give(function, opaque(handle)) }
    })
}

/// What a kernel declares itself is not known here: the emulator has it apart from what a launch gives.
#[unsafe(no_mangle)]
unsafe extern "C" fn hipFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Opaque) -> c_int {
    with(|state| {
        state.kernels.get(&(function as usize)).ok_or(INVALID_HANDLE)?;
        match attribute {
            // SAFETY: the caller's pointer.
            1 => unsafe { give(value, 0) },
            _ => Err(INVALID_VALUE),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipFuncSetAttribute(function: *const c_void, attribute: c_int, value: c_int) -> c_int {
    with(|state| {
        let most = target(&state.device()?.architecture).lds;
        let kernel = state.kernels.get(&(function as usize)).ok_or(INVALID_HANDLE)?;
        match (attribute, u32::try_from(value)) {
            (8, Ok(bytes)) if bytes <= most => {
                kernel.shared.store(bytes, Ordering::Relaxed);
                GRANTED.fetch_add(u64::from(bytes > UNASKED), Ordering::Relaxed);
                Ok(())
            }
            _ => Err(INVALID_VALUE),
        }
    })
}

/// A launch as work of a stream: arguments are read here. One with more shared memory than the kernel may have is refused.
///
/// # Safety
/// There is a pointer to 64 bits for each parameter of the kernel.
pub(crate) unsafe fn launch(kernel: &Arc<Kernel>, grid: Grid, arguments: *mut Opaque) -> Result<Work, c_int> {
    if grid.shared > kernel.shared.load(Ordering::Relaxed) {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let word = |n: usize| unsafe { (*arguments.add(n)).cast::<u64>().read() };
    let words = (0..kernel.parameters).map(word).collect();
    Ok(Work::Launch { kernel: Arc::clone(kernel), grid, words })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipModuleLaunchKernel(
    function: Opaque,
    x: c_uint,
    y: c_uint,
    z: c_uint,
    threads: c_uint,
    threads_y: c_uint,
    threads_z: c_uint,
    shared: c_uint,
    stream: Opaque,
    arguments: *mut Opaque,
    _extra: *mut Opaque,
) -> c_int {
    if threads_y != 1 || threads_z != 1 || arguments.is_null() {
        return INVALID_VALUE;
    }
    with(|state| {
        let kernel = state.kernels.get(&(function as usize)).ok_or(INVALID_HANDLE)?;
        // SAFETY: the caller's promise.
        let work = unsafe { launch(kernel, Grid { blocks: [x, y, z], threads, shared }, arguments)? };
        state.put(stream, work)
    })
}

#[cfg(test)]
mod tests {
    use super::entries;

    #[test]
    fn entries_are_found_with_their_parameters() {
        let text = "#define __global__ x\nextern \"C\" __global__ void __launch_bounds__(256) one(const float *a,\n  i64 b) {}\n\
                    extern \"C\" __global__ void two() { f(1, 2); }";
        assert_eq!(entries(text), [("one".to_owned(), 2), ("two".to_owned(), 0)]);
    }
}
