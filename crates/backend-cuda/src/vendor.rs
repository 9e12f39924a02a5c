//! NVIDIA's libraries on a device's stream: loaded when a program first has a use for them, and what they offer for a
//! step. Where one is missing, nothing is offered and generated kernels serve.

use std::ffi::c_void;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{result, sys};
use gpu_codegen::Target;
use gpu_runtime::{Candidate, GpuError};
use kernel_ir::{Program, Step};

use crate::answer_cache::{AnswerCache, SharedCache};
use crate::blas::Blas;
use crate::dnn::Dnn;
use crate::libraries::{Library, find, locate};
use crate::{blas_call, dnn_call};

/// Bytes of memory that cuBLASLt may use beside operands, as PyTorch gives it on Hopper.
const BLAS_WORKSPACE: u64 = 32 << 20;

/// A context and a stream of it.
#[derive(Clone, Copy)]
pub(crate) struct StreamContext {
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: handles of the driver's, valid in every thread that has made the context current.
unsafe impl Send for StreamContext {}
// SAFETY: as above.
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

/// Device memory that calls of one stream use one after another. Kept for the life of the process, since recorded work
/// has its address.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Workspace {
    address: u64,
    bytes: u64,
}

impl Workspace {
    /// As many bytes, or none where the device has not so many left.
    pub(crate) fn new(stream_context: StreamContext, bytes: u64) -> Result<Workspace, GpuError> {
        stream_context.enter()?;
        // SAFETY: the context is current; the memory is never freed.
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
pub(crate) struct Vendor {
    stream_context: StreamContext,
    /// Name and architecture of the device.
    device_name: String,
    cache: SharedCache,
    blas: OnceLock<Option<Arc<Blas>>>,
    dnn: OnceLock<Option<Arc<Dnn>>>,
}

impl Vendor {
    pub(crate) fn new(stream_context: StreamContext, device_name: String, cache: SharedCache) -> Vendor {
        Vendor { stream_context, device_name, cache, blas: OnceLock::new(), dnn: OnceLock::new() }
    }

    pub(crate) fn blas(&self) -> Option<&Arc<Blas>> {
        let start = || {
            find(Library::Blas)?;
            Blas::new(self.stream_context, Workspace::new(self.stream_context, BLAS_WORKSPACE)?)
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

    /// The ways in which the libraries compute a step, the best by rule first.
    pub(crate) fn candidates(&self, program: &Program, step: &Step, target: &Target) -> Vec<Candidate> {
        match step {
            Step::Matmul(k) if blas_call::wants(program, k) => match self.blas() {
                Some(blas) => blas_call::candidates(blas, program, step, k, target),
                None => Vec::new(),
            },
            Step::Conv(k) if dnn_call::wants(program, k) => match self.dnn() {
                Some(dnn) => dnn_call::candidates(dnn, program, step, k, target),
                None => Vec::new(),
            },
            _ => Vec::new(),
        }
    }
}

/// Plans of cuDNN that are kept of a device of this name and architecture. The library was found before.
pub(crate) fn plan_cache(device_name: &str, cache: SharedCache) -> AnswerCache {
    AnswerCache::new(cache, &format!("{device_name} cudnn {}", Dnn::version()))
}

fn started<T>(name: &str, library: Result<T, GpuError>) -> Option<Arc<T>> {
    match library {
        Ok(library) => Some(Arc::new(library)),
        Err(e) => {
            tracing::warn!(target: "kernel", "{name} is not used: {e}");
            None
        }
    }
}

/// The versions of the libraries, on which depends what their numbered algorithms are.
pub(crate) fn versions() -> String {
    let version = |library, of: fn() -> usize| find(library).map_or(0, |_| of());
    format!(
        "cublaslt {} cudnn {}",
        version(Library::Blas, Blas::version),
        version(Library::Dnn, Dnn::version)
    )
}

/// What there is of libraries beside the driver: the file that would be loaded, or where it was looked for.
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
