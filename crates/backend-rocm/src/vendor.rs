//! AMD's libraries on a device's stream, started at their first use, and their candidates for a step. A library that is missing or
//! proposes nothing offers no candidates, and generated kernels are used.
//!
//! Not here: the libraries' own calls (`blas`, `rocblas`, `dnn`).

use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

use gpu_codegen::Target;
use gpu_runtime::find::started;
use gpu_runtime::products::{self, ProductLibrary};
use gpu_runtime::{Candidate, GpuError, Handle, convolutions};
use kernel_ir::{Program, Step};

use crate::api::Api;
use crate::blas::Blas;
use crate::dnn::Dnn;
use crate::rocblas::RocBlas;

/// A device, its stream and where its memory comes from.
#[derive(Clone, Copy)]
pub(crate) struct StreamContext {
    pub(crate) api: &'static Api,
    pub(crate) ordinal: i32,
    pub(crate) stream: Handle,
    /// Null where memory is not had in stream order.
    pub(crate) pool: Handle,
}

impl StreamContext {
    /// Makes the device current in this thread.
    pub(crate) fn enter(&self) -> Result<(), GpuError> {
        // SAFETY: the device is there.
        self.api.done("hipSetDevice", unsafe { (self.api.runtime.set_device)(self.ordinal) })
    }

    /// Device memory, which work of the stream may use from here on.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<u64, GpuError> {
        let mut address = null_mut();
        let runtime = &self.api.runtime;
        match runtime.malloc_async.filter(|_| !self.pool.is_null()) {
            Some(malloc) => {
                // SAFETY: the address is written to a local; the stream lives as long as this value.
                let done = unsafe { malloc(&mut address, bytes as usize, self.stream.0) };
                self.api.done("hipMallocAsync", done)?;
            }
            None => {
                // SAFETY: the address is written to a local.
                self.api.done("hipMalloc", unsafe { (runtime.malloc)(&mut address, bytes as usize) })?;
            }
        }
        Ok(address as u64)
    }
}

/// The libraries of a device.
pub(crate) struct Libraries {
    context: StreamContext,
    /// By the compiler's name.
    architecture: String,
    blas: OnceLock<Option<Arc<ProductLibrary<Blas>>>>,
    rocblas: OnceLock<Option<Arc<ProductLibrary<RocBlas>>>>,
    dnn: OnceLock<Option<Arc<Dnn>>>,
}

impl Libraries {
    pub(crate) fn new(context: StreamContext, architecture: String) -> Libraries {
        let (blas, rocblas, dnn) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Libraries { context, architecture, blas, rocblas, dnn }
    }

    /// The libraries' candidates for a step, the best by rule first.
    pub(crate) fn candidates(&self, program: &Program, step: &Step, target: &Target) -> Vec<Candidate> {
        match step {
            Step::Matmul(k) if products::wants(program, k) => {
                let start = || Blas::new(self.context).map(ProductLibrary::new);
                let blas = self.blas.get_or_init(|| started("hipBLASLt", start()));
                let proposed = products::candidates(blas.as_ref(), program, step, k, target);
                if !proposed.is_empty() {
                    return proposed;
                }
                let start = || RocBlas::new(self.context, &self.architecture).map(ProductLibrary::new);
                let rocblas = self.rocblas.get_or_init(|| started("rocBLAS", start()));
                products::candidates(rocblas.as_ref(), program, step, k, target)
            }
            Step::Conv(k) if convolutions::wants(program, k) => {
                let dnn = self.dnn.get_or_init(|| started("MIOpen", Dnn::new(self.context)));
                convolutions::candidates(dnn.as_ref(), program, step, k, target)
            }
            _ => Vec::new(),
        }
    }
}
