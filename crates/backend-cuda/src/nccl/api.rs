//! The functions of NCCL that the engine calls, found in its library at run time: the file that systems and NVIDIA's packages have
//! is `libnccl.so.2`. Signatures and numbers are those of NCCL 2's `nccl.h`, which later minor versions keep.
//!
//! Not here: what they are called for (`communicator`).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use gpu_runtime::GpuError;

use crate::libraries::{Library, find};

/// Ranks that have joined, as NCCL has them (`ncclComm_t`).
pub(super) type Comm = *mut c_void;
/// A stream of CUDA.
pub(super) type CudaStream = *mut c_void;
type Status = c_int;

/// `ncclSuccess`.
const SUCCESS: Status = 0;
/// `ncclInProgress`.
const IN_PROGRESS: Status = 7;

/// What ranks pass to each other to join (`ncclUniqueId`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $symbol:literal: fn($($arg:ty),*);)*) => {
        /// The functions, by what they do.
        pub(super) struct Api {
            error_string: unsafe extern "C" fn(Status) -> *const c_char,
            $($(#[$doc])* pub(super) $field: unsafe extern "C" fn($($arg),*) -> Status,)*
        }

        impl Api {
            /// # Safety
            /// The library is NCCL 2.
            unsafe fn of(library: &'static libloading::Library) -> Result<Api, libloading::Error> {
                // SAFETY: by the caller's guarantee the symbols are functions with these signatures.
                unsafe {
                    Ok(Api {
                        error_string: *library.get(b"ncclGetErrorString\0")?,
                        $($field: *library.get(concat!($symbol, "\0").as_bytes())?,)*
                    })
                }
            }
        }
    };
}

functions! {
    unique_id = "ncclGetUniqueId": fn(*mut UniqueId);
    init = "ncclCommInitRank": fn(*mut Comm, c_int, UniqueId, c_int);
    split = "ncclCommSplit": fn(Comm, c_int, c_int, *mut Comm, *mut c_void);
    count = "ncclCommCount": fn(Comm, *mut c_int);
    user_rank = "ncclCommUserRank": fn(Comm, *mut c_int);
    async_error = "ncclCommGetAsyncError": fn(Comm, *mut Status);
    abort = "ncclCommAbort": fn(Comm);
    destroy = "ncclCommDestroy": fn(Comm);
    /// Operand, result, elements, dtype, combination.
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStream);
    /// Operand, result, elements of a block, dtype.
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, CudaStream);
    /// Operand, result, elements of a block, dtype, combination.
    reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStream);
    /// Operand, result, elements, dtype, root.
    broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStream);
    /// Operand, elements, dtype, receiver.
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, Comm, CudaStream);
    /// Result, elements, dtype, sender.
    receive = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, Comm, CudaStream);
    group_start = "ncclGroupStart": fn();
    group_end = "ncclGroupEnd": fn();
}

impl Api {
    /// The library's functions, loaded once for the life of the process.
    ///
    /// # Errors
    /// It is not there, or lacks one of the functions.
    pub(super) fn load() -> Result<&'static Api, GpuError> {
        static API: OnceLock<Result<Api, GpuError>> = OnceLock::new();
        let load = || {
            let path = find(Library::Nccl)?;
            let wrong = |e: libloading::Error| GpuError::Driver {
                call: "NCCL",
                what: format!("{}: {e}; NCCL 2.18 or later is needed", path.display()),
            };
            // SAFETY: `find` has loaded this file already, and NCCL only initializes itself when loaded.
            let library = unsafe { libloading::Library::new(&path) }.map_err(wrong)?;
            // SAFETY: the file is NCCL 2 by its name.
            unsafe { Api::of(Box::leak(Box::new(library))) }.map_err(wrong)
        };
        API.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    /// The message of a status that is an error.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), String> {
        if status == SUCCESS || status == IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: the function takes any number and gives static text.
        let text = unsafe { CStr::from_ptr((self.error_string)(status)) };
        Err(format!("{call}: {}", text.to_string_lossy()))
    }
}
