//! Communicators and exchanges.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kernel_ir::runtime::divide;
use kernel_ir::{CollectiveOp, Combine};
use mpi::ffi;
use plugin_sdk::{BlockExchange, CollectiveEngine, Communicator, DType, ErrorKind, PluginError, World};

use crate::combine::{datatype, operation};

/// How long an exchange is waited for where the world does not say.
const PATIENCE: Duration = Duration::from_secs(600);
/// The tag of shifts: all are of one communicator, in one order.
const TAG: c_int = 7;

/// The engine.
pub struct Engine;

/// Calls of MPI follow each other: not every MPI permits them from several threads at once.
static CALLS: Mutex<()> = Mutex::new(());

fn calls() -> MutexGuard<'static, ()> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

extern "C" fn finalize() {
    // SAFETY: MPI was initialized, and the process ends: nothing calls it any more.
    unsafe {
        let mut done = 0;
        ffi::MPI_Finalized(&mut done);
        if done == 0 {
            ffi::MPI_Finalize();
        }
    }
}

/// Turns a status of MPI into a result.
fn check(status: c_int, what: &str) -> Result<(), PluginError> {
    if status == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = vec![0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length = 0;
    // SAFETY: the place has room for the longest message.
    unsafe { ffi::MPI_Error_string(status, text.as_mut_ptr().cast(), &mut length) };
    text.truncate(usize::try_from(length).unwrap_or(0));
    Err(PluginError::new(ErrorKind::Unavailable, format!("{what}: {}", String::from_utf8_lossy(&text))))
}

impl CollectiveEngine for Engine {
    fn join(&self, world: &World) -> Result<Box<dyn Communicator>, PluginError> {
        let _calls = calls();
        // SAFETY: calls are serialized, and places live through them.
        unsafe {
            let mut begun = 0;
            check(ffi::MPI_Initialized(&mut begun), "MPI_Initialized")?;
            if begun == 0 {
                let mut given = 0;
                let wanted = ffi::MPI_THREAD_SERIALIZED as c_int;
                check(
                    ffi::MPI_Init_thread(std::ptr::null_mut(), std::ptr::null_mut(), wanted, &mut given),
                    "MPI_Init_thread",
                )?;
                atexit(finalize);
                if given < wanted {
                    let what = "this MPI serves one thread alone: build it with support for threads";
                    return Err(PluginError::new(ErrorKind::Unavailable, what));
                }
            }
            let (mut rank, mut size) = (0, 0);
            check(ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut rank), "MPI_Comm_rank")?;
            check(ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut size), "MPI_Comm_size")?;
            if (rank as usize, size as usize) != (world.rank, world.size) {
                return Err(PluginError::invalid(format!(
                    "MPI says rank {rank} of {size}, the launcher rank {} of {}: start the ranks by `mpirun` or `srun`",
                    world.rank, world.size
                )));
            }
            let mut own = ffi::RSMPI_COMM_NULL;
            check(ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, &mut own), "MPI_Comm_dup")?;
            Group::adopt(own, world.timeout.unwrap_or(PATIENCE)).map(|g| Box::new(g) as Box<dyn Communicator>)
        }
    }
}

/// A communicator.
struct Group {
    raw: ffi::MPI_Comm,
    rank: c_int,
    size: c_int,
    timeout: Duration,
    open: Mutex<Open>,
}

// SAFETY: a handle and numbers; calls of MPI are serialized.
unsafe impl Send for Group {}
// SAFETY: shared references only pass the handle to calls of MPI, which are serialized.
unsafe impl Sync for Group {}

#[derive(Default)]
struct Open {
    next: u64,
    exchanges: HashMap<u64, Started>,
}

/// An exchange in progress.
struct Started {
    requests: Vec<ffi::MPI_Request>,
    /// A sum that becomes a mean.
    mean: Option<(*mut u8, DType, usize)>,
    step: String,
}

impl Group {
    /// # Safety
    /// A communicator that the caller owns; calls are serialized.
    unsafe fn adopt(raw: ffi::MPI_Comm, timeout: Duration) -> Result<Group, PluginError> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: by the caller's guarantee.
        unsafe {
            // Failures are reported to the program rather than ending it.
            check(ffi::MPI_Comm_set_errhandler(raw, ffi::RSMPI_ERRORS_RETURN), "MPI_Comm_set_errhandler")?;
            check(ffi::MPI_Comm_rank(raw, &mut rank), "MPI_Comm_rank")?;
            check(ffi::MPI_Comm_size(raw, &mut size), "MPI_Comm_size")?;
        }
        Ok(Group { raw, rank, size, timeout, open: Mutex::default() })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _calls = calls();
        // SAFETY: the communicator is this value's own. After the end of MPI there is nothing to free.
        unsafe {
            let mut done = 0;
            ffi::MPI_Finalized(&mut done);
            if done == 0 && self.open().exchanges.is_empty() {
                ffi::MPI_Comm_free(&mut self.raw);
            }
        }
    }
}

impl Communicator for Group {
    fn split(&self, color: usize, key: usize) -> Result<Box<dyn Communicator>, PluginError> {
        let _calls = calls();
        // SAFETY: the communicator lives; calls are serialized.
        unsafe {
            let mut own = ffi::RSMPI_COMM_NULL;
            let split = ffi::MPI_Comm_split(self.raw, color as c_int, key as c_int, &mut own);
            check(split, "MPI_Comm_split")?;
            Group::adopt(own, self.timeout).map(|g| Box::new(g) as Box<dyn Communicator>)
        }
    }

    unsafe fn start(&self, e: &BlockExchange<'_>) -> Result<u64, PluginError> {
        let _calls = calls();
        // SAFETY: the memory is valid by the caller's guarantee, the communicator lives, calls are serialized.
        let requests = unsafe { self.requests(e)? };
        let ranks = self.size as usize;
        let mean = (e.op.combine() == Some(Combine::Mean)).then_some((e.receive, e.dtype, e.count));
        debug_assert!(ranks > 0);
        let mut open = self.open();
        open.next += 1;
        let number = open.next;
        open.exchanges.insert(number, Started { requests, mean, step: e.step.to_owned() });
        Ok(number)
    }

    fn wait(&self, ticket: u64) -> Result<(), PluginError> {
        let Some(mut started) = self.open().exchanges.remove(&ticket) else { return Ok(()) };
        let deadline = Instant::now() + self.timeout;
        for request in &mut started.requests {
            let mut pauses = 0u32;
            loop {
                let mut done = 0;
                {
                    let _calls = calls();
                    // SAFETY: the request is this exchange's; the status is not wanted.
                    let status = unsafe { ffi::MPI_Test(request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
                    check(status, &started.step)?;
                }
                if done != 0 {
                    break;
                }
                if Instant::now() > deadline {
                    let (rank, timeout, step) = (self.rank, self.timeout, &started.step);
                    let what = format!("rank {rank}: `{step}` was not complete within {timeout:?}: a rank is gone or behind");
                    return Err(PluginError::new(ErrorKind::Unavailable, what));
                }
                // At first at once, then giving way: ranks may share cores.
                pauses += 1;
                if pauses > 64 {
                    std::thread::yield_now();
                }
            }
        }
        if let Some((receive, dtype, count)) = started.mean {
            // SAFETY: the result of the exchange, which nobody uses before this call has returned.
            unsafe { divide(dtype, receive, count, self.size as usize) };
        }
        Ok(())
    }

    fn abort(&self) {
        let _calls = calls();
        // SAFETY: the communicator lives.
        unsafe { ffi::MPI_Abort(self.raw, 1) };
    }
}

impl Group {
    /// # Safety
    /// As for [`Communicator::start`]; calls are serialized.
    unsafe fn requests(&self, e: &BlockExchange<'_>) -> Result<Vec<ffi::MPI_Request>, PluginError> {
        // SAFETY: MPI is initialized.
        let (of, each) = unsafe { datatype(e.dtype)? };
        let count = c_int::try_from(e.count * each);
        let count = count.map_err(|_| PluginError::unsupported("exchanges of more than 2^31 elements"))?;
        let (send, receive): (*const c_void, *mut c_void) = (e.send.cast(), e.receive.cast());
        let bytes = e.count * e.dtype.size();
        // SAFETY: blocks are valid by the caller's guarantee; the place of the request lives through the call.
        unsafe {
            let mut request = ffi::RSMPI_REQUEST_NULL;
            let status = match e.op {
                CollectiveOp::AllReduce(how) => {
                    let op = operation(how, e.dtype)?;
                    ffi::MPI_Iallreduce(send, receive, count, of, op, self.raw, &mut request)
                }
                CollectiveOp::AllGather => {
                    ffi::MPI_Iallgather(send, count, of, receive, count, of, self.raw, &mut request)
                }
                CollectiveOp::ReduceScatter(how) => {
                    let op = operation(how, e.dtype)?;
                    ffi::MPI_Ireduce_scatter_block(send, receive, count, of, op, self.raw, &mut request)
                }
                CollectiveOp::AllToAll => {
                    ffi::MPI_Ialltoall(send, count, of, receive, count, of, self.raw, &mut request)
                }
                CollectiveOp::Broadcast { root } => {
                    if root as c_int == self.rank {
                        std::ptr::copy_nonoverlapping(e.send, e.receive, bytes);
                    }
                    ffi::MPI_Ibcast(receive, count, of, root as c_int, self.raw, &mut request)
                }
                CollectiveOp::Shift { by, wraps } => return self.shift(e, (by, wraps), (of, count)),
            };
            check(status, e.step)?;
            Ok(vec![request])
        }
    }

    /// # Safety
    /// As for [`Communicator::start`]; calls are serialized.
    unsafe fn shift(
        &self,
        e: &BlockExchange<'_>,
        (by, wraps): (i32, bool),
        (of, count): (ffi::MPI_Datatype, c_int),
    ) -> Result<Vec<ffi::MPI_Request>, PluginError> {
        let place = |rank: i32| match rank {
            rank if wraps => Some(rank.rem_euclid(self.size)),
            rank => (0..self.size).contains(&rank).then_some(rank),
        };
        let mut requests = Vec::new();
        // SAFETY: blocks are valid by the caller's guarantee; the places of requests live through the calls.
        unsafe {
            match place(self.rank - by) {
                Some(from) => {
                    let mut request = ffi::RSMPI_REQUEST_NULL;
                    let status = ffi::MPI_Irecv(e.receive.cast(), count, of, from, TAG, self.raw, &mut request);
                    check(status, e.step)?;
                    requests.push(request);
                }
                None => e.receive.write_bytes(0, e.count * e.dtype.size()),
            }
            if let Some(to) = place(self.rank + by) {
                let mut request = ffi::RSMPI_REQUEST_NULL;
                let status = ffi::MPI_Isend(e.send.cast(), count, of, to, TAG, self.raw, &mut request);
                check(status, e.step)?;
                requests.push(request);
            }
        }
        Ok(requests)
    }
}
