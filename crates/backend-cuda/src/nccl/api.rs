//! The functions of NCCL that the engine calls, found in its library at run time: the file that systems and NVIDIA's packages have
//! is `libnccl.so.2`. Signatures and numbers are those of NCCL 2's `nccl.h`, which later minor versions keep.
//!
//! Not here: what they are called for (`communicator`).

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::api::functions;
use crate::libraries::Library;

/// Ranks that have joined, as NCCL has them (`ncclComm_t`).
pub(super) type Comm = *mut c_void;
/// A stream of CUDA.
pub(super) type CudaStream = *mut c_void;
type Status = c_int;

/// `ncclSuccess`.
const SUCCESS: Status = 0;
/// `ncclInProgress`.
pub(super) const IN_PROGRESS: Status = 7;

/// What ranks pass to each other to join (`ncclUniqueId`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) [u8; 128]);

functions! {
    /// The functions, by what they do.
    pub(super) struct Api in Library::Nccl, which is "NCCL 2.18 or later";
    error_string = "ncclGetErrorString": fn(Status) -> *const c_char;
    unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> Status;
    init = "ncclCommInitRank": fn(*mut Comm, c_int, UniqueId, c_int) -> Status;
    split = "ncclCommSplit": fn(Comm, c_int, c_int, *mut Comm, *mut c_void) -> Status;
    count = "ncclCommCount": fn(Comm, *mut c_int) -> Status;
    user_rank = "ncclCommUserRank": fn(Comm, *mut c_int) -> Status;
    async_error = "ncclCommGetAsyncError": fn(Comm, *mut Status) -> Status;
    abort = "ncclCommAbort": fn(Comm) -> Status;
    destroy = "ncclCommDestroy": fn(Comm) -> Status;
    /// Operand, result, elements, dtype, combination.
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Status;
    /// Operand, result, elements of a block, dtype.
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, CudaStream) -> Status;
    /// Operand, result, elements of a block, dtype, combination.
    reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Status;
    /// Operand, result, elements, dtype, root.
    broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Status;
    /// Operand, elements, dtype, receiver.
    send = "ncclSend": fn(*const c_void, usize, c_int, c_int, Comm, CudaStream) -> Status;
    /// Result, elements, dtype, sender.
    receive = "ncclRecv": fn(*mut c_void, usize, c_int, c_int, Comm, CudaStream) -> Status;
    group_start = "ncclGroupStart": fn() -> Status;
    group_end = "ncclGroupEnd": fn() -> Status;
}

impl Api {
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
