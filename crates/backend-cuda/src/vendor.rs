//! NVIDIA's libraries on a device's stream, loaded at their first use, and their candidates for a step. A missing library
//! offers no candidates, and generated kernels are used.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{result, sys};
use gpu_codegen::Target;
use gpu_runtime::find::started;
use gpu_runtime::products::{self, ProductLibrary};
use gpu_runtime::{AnswerCache, Candidate, GpuError, SharedCache, convolutions};
use kernel_ir::{Program, Step};

use crate::blas::Blas;
use crate::dnn::Dnn;
use crate::libraries::{Library, find, locate};

/// Bytes of cuBLASLt's workspace, as PyTorch gives it on Hopper.
const BLAS_WORKSPACE: u64 = 32 << 20;

/// A context and one of its streams.
#[derive(Clone, Copy)]
pub(crate) struct StreamContext {
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: context and stream handles are valid in every thread that has made the context current.
unsafe impl Send for StreamContext {}
// SAFETY: context and stream handles are immutable and valid in every thread that has made the context current.
unsafe impl Sync for StreamContext {}

impl StreamContext {
    pub(crate) fn new(context: sys::CUcontext, stream: sys::CUstream) -> StreamContext {
        StreamContext { context, stream }
    }

    /// Makes the context current in this thread.
    pub(crate) fn enter(&self) -> Result<(), GpuError> {
        // SAFETY: the context is retained for the life of the process.
        unsafe { result::ctx::set_current(self.context) }
            .map_err(|e| GpuError::Driver { call: "cuCtxSetCurrent", what: format!("{e:?}") })
    }

    pub(crate) fn stream(&self) -> *mut c_void {
        self.stream.cast()
    }
}

/// Device memory that calls of one stream use one after another. AnswerCache for the life of the process, since recorded work
/// has its address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Workspace {
    address: u64,
    bytes: u64,
}

impl Workspace {
    /// Allocates this many bytes, or none where the device has too little memory left.
    pub(crate) fn new(stream_context: StreamContext, bytes: u64) -> Result<Workspace, GpuError> {
        stream_context.enter()?;
        // SAFETY: the context is current, and the memory is never freed.
        match unsafe { result::malloc_sync(bytes as usize) } {
            Ok(address) => Ok(Workspace { address, bytes }),
            Err(e) => {
                tracing::warn!(target: "kernel", bytes, error = ?e, "no workspace for a library");
                Ok(Workspace::default())
            }
        }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The libraries of a device.
pub(crate) struct Libraries {
    stream_context: StreamContext,
    /// The name and architecture of the device.
    device_name: String,
    cache: SharedCache,
    blas: OnceLock<Option<Arc<ProductLibrary<Blas>>>>,
    dnn: OnceLock<Option<Arc<Dnn>>>,
}

impl Libraries {
    pub(crate) fn new(stream_context: StreamContext, device_name: String, cache: SharedCache) -> Libraries {
        Libraries { stream_context, device_name, cache, blas: OnceLock::new(), dnn: OnceLock::new() }
    }

    pub(crate) fn blas(&self) -> Option<&Arc<ProductLibrary<Blas>>> {
        let start = || {
            find(Library::Blas)?;
            Ok(ProductLibrary::new(Blas::new(
                self.stream_context,
                Workspace::new(self.stream_context, BLAS_WORKSPACE)?,
            )?))
        };
        self.blas.get_or_init(|| started("cuBLASLt", start())).as_ref()
    }

    pub(crate) fn dnn(&self) -> Option<&Arc<Dnn>> {
        let start = || {
            // Some of its kernels are those of cuBLASLt, which it opens by name.
            let _ = find(Library::Blas);
            find(Library::Dnn)?;
            Dnn::new(self.stream_context, plan_cache(&self.device_name, Arc::clone(&self.cache)))
        };
        self.dnn.get_or_init(|| started("cuDNN", start())).as_ref()
    }

    /// Returns the libraries' candidates for a step, best first by rule.
    pub(crate) fn candidates(&self, program: &Program, step: &Step, target: &Target) -> Vec<Candidate> {
        match step {
            Step::Matmul(k) if products::wants(program, k) => {
                products::candidates(self.blas(), program, step, k, target)
            }
            Step::Conv(k) if convolutions::wants(program, k) => {
                convolutions::candidates(self.dnn(), program, step, k, target)
            }
            _ => Vec::new(),
        }
    }
}

/// The cached plans of cuDNN for a device of this name and architecture. The library was found before.
pub(crate) fn plan_cache(device_name: &str, cache: SharedCache) -> AnswerCache {
    AnswerCache::new(cache, &format!("{device_name} cudnn {}", Dnn::version()))
}

/// The versions of the libraries, which determine what their numbered algorithms are.
pub(crate) fn versions() -> String {
    let version = |library, of: fn() -> usize| find(library).map_or(0, |_| of());
    format!(
        "cublaslt {} cudnn {}",
        version(Library::Blas, Blas::version),
        version(Library::Dnn, Dnn::version)
    )
}

/// The libraries apart from the driver: the file that would be loaded, or the places that were searched.
pub(crate) fn about() -> Vec<(String, String)> {
    let line = |name: &str, library| {
        let text = match locate(library) {
            Ok(path) => path.display().to_string(),
            Err(e) => e.to_string(),
        };
        (name.to_owned(), text)
    };
    vec![line("nvrtc", Library::Nvrtc), line("cublaslt", Library::Blas), line("cudnn", Library::Dnn)]
}
