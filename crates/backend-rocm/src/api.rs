//! The functions of the HIP runtime that are used here, by their names in the library. Signatures and numbers are those of HIP's
//! public header `hip_runtime_api.h`; they are the same from HIP 5.3 to 7.
//!
//! Not here: where the library lies (`libraries`), what calls are made (`hip`).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gpu_runtime::GpuError;

use crate::libraries::{self, Library};

/// A pointer of HIP's that nobody here looks behind.
pub(crate) type Opaque = *mut c_void;

/// Numbers of `hipError_t`.
pub(crate) mod code {
    use std::ffi::c_int;

    pub(crate) const SUCCESS: c_int = 0;
    pub(crate) const OUT_OF_MEMORY: c_int = 2;
    pub(crate) const NO_DEVICE: c_int = 100;
    /// Behind these nothing on the device can be used any more: uncorrectable memory, illegal address, timeout, a context that
    /// is gone, a failed assertion or launch.
    pub(crate) const LOST: [c_int; 6] = [214, 700, 702, 709, 710, 719];
}

/// `hipKernelNodeParams`.
#[repr(C)]
pub(crate) struct KernelNode {
    pub(crate) block: [c_uint; 3],
    pub(crate) extra: *mut Opaque,
    pub(crate) function: Opaque,
    pub(crate) grid: [c_uint; 3],
    pub(crate) arguments: *mut Opaque,
    pub(crate) shared: c_uint,
}

/// Declares a table of functions that return numbers of errors, and its loading: those behind `;` may be missing.
macro_rules! table {
    (
        $(#[$about:meta])* $table:ident of $what:literal;
        $($name:ident = $symbol:literal($($type:ty),*),)*
        ; $($may:ident = $maybe:literal($($argument:ty),*),)*
    ) => {
        $(#[$about])*
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> c_int,)*
            $(pub(crate) $may: Option<unsafe extern "C" fn($($argument),*) -> c_int>,)*
        }

        impl $table {
            /// The functions of a library, which stays loaded for the life of the process.
            ///
            /// # Errors
            /// A function that the library does not have.
            pub(crate) fn of(library: &'static ::libloading::Library, path: &::std::path::Path) -> Result<$table, ::gpu_runtime::GpuError> {
                Ok($table {
                    // SAFETY: the library is what it says by its functions' names, which have these types.
                    $($name: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|_| $crate::api::lacks($what, path, $symbol))?,)*
                    // SAFETY: where the library has the function, it has this type, by its name.
                    $($may: unsafe { library.get(concat!($maybe, "\0").as_bytes()) }.ok().map(|f| *f),)*
                })
            }
        }
    };
}
pub(crate) use table;

/// The error of a library without one of its functions.
pub(crate) fn lacks(what: &'static str, path: &Path, symbol: &str) -> GpuError {
    GpuError::Missing {
        library: what,
        looked: format!("`{symbol}` in {}", path.display()),
        advice: "the file is no such library, or an older one than ROCm 5.3: install a newer ROCm",
    }
}

/// The outcome of a call of a library beside the runtime: 0 is success in all of them.
pub(crate) fn done(call: &'static str, status: c_int) -> Result<(), GpuError> {
    match status {
        0 => Ok(()),
        other => Err(GpuError::Driver { call, what: format!("status {other}") }),
    }
}

/// A size in the 32 bits of a library.
pub(crate) fn narrow(call: &'static str, size: i64) -> Result<c_int, GpuError> {
    let what = format!("a size of {size} needs more than 32 bits");
    c_int::try_from(size).map_err(|_| GpuError::Driver { call, what })
}

table! {
    /// The HIP runtime.
    Runtime of "the HIP runtime (libamdhip64)";
    init = "hipInit"(c_uint),
    runtime_version = "hipRuntimeGetVersion"(*mut c_int),
    device_count = "hipGetDeviceCount"(*mut c_int),
    set_device = "hipSetDevice"(c_int),
    get_device = "hipGetDevice"(*mut c_int),
    device_reset = "hipDeviceReset"(),
    memory_info = "hipMemGetInfo"(*mut usize, *mut usize),
    malloc = "hipMalloc"(*mut Opaque, usize),
    free = "hipFree"(Opaque),
    host_malloc = "hipHostMalloc"(*mut Opaque, usize, c_uint),
    host_free = "hipHostFree"(Opaque),
    host_pointer = "hipHostGetDevicePointer"(*mut Opaque, Opaque, c_uint),
    memcpy = "hipMemcpyAsync"(Opaque, *const c_void, usize, c_int, Opaque),
    memset_words = "hipMemsetD32Async"(Opaque, c_int, usize, Opaque),
    stream_create = "hipStreamCreateWithFlags"(*mut Opaque, c_uint),
    stream_synchronize = "hipStreamSynchronize"(Opaque),
    stream_wait_event = "hipStreamWaitEvent"(Opaque, Opaque, c_uint),
    event_create = "hipEventCreateWithFlags"(*mut Opaque, c_uint),
    event_destroy = "hipEventDestroy"(Opaque),
    event_record = "hipEventRecord"(Opaque, Opaque),
    event_synchronize = "hipEventSynchronize"(Opaque),
    event_elapsed = "hipEventElapsedTime"(*mut f32, Opaque, Opaque),
    module_load = "hipModuleLoadData"(*mut Opaque, *const c_void),
    module_function = "hipModuleGetFunction"(*mut Opaque, Opaque, *const c_char),
    module_launch = "hipModuleLaunchKernel"(
        Opaque, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Opaque, *mut Opaque, *mut Opaque
    ),
    begin_capture = "hipStreamBeginCapture"(Opaque, c_int),
    end_capture = "hipStreamEndCapture"(Opaque, *mut Opaque),
    capture_info = "hipStreamGetCaptureInfo_v2"(
        Opaque, *mut c_int, *mut u64, *mut Opaque, *mut *const Opaque, *mut usize
    ),
    graph_instantiate = "hipGraphInstantiate"(*mut Opaque, Opaque, *mut Opaque, *mut c_char, usize),
    graph_launch = "hipGraphLaunch"(Opaque, Opaque),
    graph_set_kernel = "hipGraphExecKernelNodeSetParams"(Opaque, Opaque, *const KernelNode),
    graph_exec_destroy = "hipGraphExecDestroy"(Opaque),
    graph_destroy = "hipGraphDestroy"(Opaque),
    ;
    properties_5 = "hipGetDeviceProperties"(*mut c_void, c_int),
    properties_6 = "hipGetDevicePropertiesR0600"(*mut c_void, c_int),
    malloc_async = "hipMallocAsync"(*mut Opaque, usize, Opaque),
    free_async = "hipFreeAsync"(Opaque, Opaque),
    default_pool = "hipDeviceGetDefaultMemPool"(*mut Opaque, c_int),
    pool_set = "hipMemPoolSetAttribute"(Opaque, c_int, *mut c_void),
    pool_trim = "hipMemPoolTrimTo"(Opaque, usize),
    stream_wait_value = "hipStreamWaitValue32"(Opaque, Opaque, u32, c_uint, u32),
    function_attribute = "hipFuncGetAttribute"(*mut c_int, c_int, Opaque),
    function_set = "hipFuncSetAttribute"(*const c_void, c_int, c_int),
}

/// The runtime, loaded and begun.
pub(crate) struct Api {
    pub(crate) runtime: Runtime,
    pub(crate) path: PathBuf,
    /// `60443484` for 6.4.
    pub(crate) version: c_int,
    error_text: Option<unsafe extern "C" fn(c_int) -> *const c_char>,
}

/// The runtime of this process.
///
/// # Errors
/// There is none, or it does not begin; the same for the life of the process.
pub(crate) fn api() -> Result<&'static Api, GpuError> {
    static API: OnceLock<Result<Api, GpuError>> = OnceLock::new();
    API.get_or_init(Api::load).as_ref().map_err(Clone::clone)
}

impl Api {
    fn load() -> Result<Api, GpuError> {
        let (library, path) = libraries::load(Library::Runtime)?;
        let runtime = Runtime::of(library, path)?;
        // SAFETY: `hipGetErrorString` has this type.
        let error_text = unsafe { library.get(b"hipGetErrorString\0") }.ok().map(|f| *f);
        let mut api = Api { runtime, path: path.clone(), version: 0, error_text };
        // SAFETY: no arguments but a flag that is 0; the number is written to a field.
        unsafe {
            api.done("hipInit", (api.runtime.init)(0))?;
            let told = (api.runtime.runtime_version)(&mut api.version);
            api.done("hipRuntimeGetVersion", told)?;
        }
        tracing::debug!(target: "kernel", version = api.version, "HIP");
        Ok(api)
    }

    /// How many devices there are.
    pub(crate) fn devices(&self) -> Result<c_int, GpuError> {
        let mut count = 0;
        // SAFETY: the number is written to a local.
        match unsafe { (self.runtime.device_count)(&mut count) } {
            code::NO_DEVICE => Ok(0),
            other => self.done("hipGetDeviceCount", other).map(|()| count),
        }
    }

    /// What HIP says of one of its numbers.
    fn text(&self, number: c_int) -> String {
        let Some(text) = self.error_text else { return format!("error {number}") };
        // SAFETY: any number may be asked for; the text is constant, where there is one.
        let text = unsafe { text(number) };
        if text.is_null() {
            return format!("error {number}");
        }
        // SAFETY: a text of the library's, ended by 0.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        format!("{text} (error {number})")
    }

    /// The outcome of a call, told apart by what the user can do.
    pub(crate) fn done(&self, call: &'static str, number: c_int) -> Result<(), GpuError> {
        match number {
            code::SUCCESS => Ok(()),
            code::OUT_OF_MEMORY => {
                let (mut free, mut total) = (0, 0);
                // SAFETY: the numbers are written to locals; where they are not told they stay 0.
                let _ = unsafe { (self.runtime.memory_info)(&mut free, &mut total) };
                Err(GpuError::OutOfMemory { bytes: 0, free: free as u64, total: total as u64 })
            }
            lost if code::LOST.contains(&lost) => Err(GpuError::Lost { call, what: self.text(lost) }),
            other => Err(GpuError::Driver { call, what: self.text(other) }),
        }
    }

    /// Such an error where an optional function is missing.
    pub(crate) fn absent(call: &'static str) -> GpuError {
        GpuError::Driver { call, what: "this HIP runtime has no such function".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size that C gives it: two words of three numbers, padding behind the second.
    #[test]
    fn nodes_are_laid_out_as_in_the_header() {
        assert_eq!(size_of::<KernelNode>(), 64);
        assert_eq!(std::mem::offset_of!(KernelNode, extra), 16);
        assert_eq!(std::mem::offset_of!(KernelNode, function), 24);
        assert_eq!(std::mem::offset_of!(KernelNode, grid), 32);
        assert_eq!(std::mem::offset_of!(KernelNode, arguments), 48);
        assert_eq!(std::mem::offset_of!(KernelNode, shared), 56);
    }
}
