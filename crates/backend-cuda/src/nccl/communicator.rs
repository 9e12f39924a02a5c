//! A communicator of NCCL and its exchanges. With a stream they take their place in it; without, they are of memory of the host,
//! which goes through the device, and end before the call returns or the time limit has passed.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};
use kernel_ir::{CollectiveOp, Combine};
use plugin_sdk::{BlockExchange, Communicator, DType, PluginError, Stream};

use super::api::{Api, Comm, CudaStream, IN_PROGRESS, UniqueId};
use super::mailbox::Mailboxes;
use super::peers::Peers;
use super::{deadline, driver, gone};
use crate::backend::Caller;

/// How long a call of NCCL may hold a communicator that is to be aborted: then it is stuck, and the abort is what ends it.
const STUCK: Duration = Duration::from_secs(5);
/// Between two looks whether an exchange of host memory is complete.
const PAUSE: Duration = Duration::from_micros(20);

/// A device's primary context.
#[derive(Clone, Copy)]
pub(super) struct Context {
    raw: sys::CUcontext,
    ordinal: i32,
}

// SAFETY: the primary context is kept for the life of the process, and every thread makes it current before it is used.
unsafe impl Send for Context {}
// SAFETY: threads that share the handle only read it.
unsafe impl Sync for Context {}

impl Context {
    /// That of the device with this number.
    pub(super) fn of(ordinal: i32) -> Result<Context, PluginError> {
        result::init().map_err(|e| driver("cuInit", e))?;
        let device = result::device::get(ordinal).map_err(|e| driver("cuDeviceGet", e))?;
        // SAFETY: the device was given by the driver; the context is kept for the life of the process.
        let context = unsafe { result::primary_ctx::retain(device) };
        Ok(Context { raw: context.map_err(|e| driver("cuDevicePrimaryCtxRetain", e))?, ordinal })
    }

    /// The number of its device.
    pub(super) fn ordinal(self) -> i32 {
        self.ordinal
    }

    /// Where it is, for others of the process.
    pub(super) fn address(self) -> u64 {
        self.raw.addr() as u64
    }

    pub(super) fn enter(self) -> Result<(), PluginError> {
        // SAFETY: the context is kept for the life of the process.
        unsafe { result::ctx::set_current(self.raw) }.map_err(|e| driver("cuCtxSetCurrent", e))
    }
}

/// A communicator's handle; null once it was aborted.
struct Handle {
    raw: Mutex<Raw>,
    /// Whether it is another's, who ends it.
    borrowed: bool,
    /// Of its ranks, where they have them.
    mailboxes: OnceLock<Mailboxes>,
}

#[derive(Clone, Copy)]
struct Raw(Comm);

// SAFETY: NCCL's communicators may be used from any thread, by one call at a time, which the lock ensures; an abort may come
// beside a call that is stuck.
unsafe impl Send for Raw {}

impl Handle {
    fn lock(&self) -> MutexGuard<'_, Raw> {
        self.raw.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the communicators that came from one joining share: whether their ranks are all there.
pub(super) struct Shared {
    api: &'static Api,
    context: Context,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Why no exchange takes place any more.
    broken: Option<String>,
    handles: Vec<Weak<Handle>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all exchanges for a reason; the first one counts.
    pub(super) fn end(&self, why: &str) {
        let handles = {
            let mut state = self.state();
            if state.broken.is_some() {
                return;
            }
            state.broken = Some(why.to_owned());
            std::mem::take(&mut state.handles)
        };
        let _ = self.context.enter();
        let give_up = deadline(STUCK);
        for handle in handles.iter().filter_map(Weak::upgrade).filter(|handle| !handle.borrowed) {
            handle.mailboxes.get().into_iter().for_each(Mailboxes::end);
            let raw = loop {
                match handle.raw.try_lock() {
                    Ok(mut raw) => break std::mem::replace(&mut *raw, Raw(std::ptr::null_mut())),
                    Err(TryLockError::Poisoned(raw)) => {
                        break std::mem::replace(&mut *raw.into_inner(), Raw(std::ptr::null_mut()));
                    }
                    // Kernels that wait for a rank that is gone are ended by the abort; so is a call that does.
                    Err(TryLockError::WouldBlock) if Instant::now() >= give_up => {
                        break Raw(std::ptr::null_mut());
                    }
                    Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
                }
            };
            if !raw.0.is_null() {
                // SAFETY: the handle was taken out, so nothing else uses it.
                unsafe { (self.api.abort)(raw.0) };
            }
        }
    }

    fn check(&self) -> Result<(), PluginError> {
        self.state().broken.clone().map_or(Ok(()), |why| Err(gone(why)))
    }

    /// The handle of a communicator that another part of the process has: one for all programs, so that these call NCCL one by one.
    fn borrowed(&self, raw: Comm) -> Arc<Handle> {
        static BORROWED: Mutex<Vec<(usize, Weak<Handle>)>> = Mutex::new(Vec::new());
        let mut all = BORROWED.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, handle)| handle.strong_count() > 0);
        let known = all.iter().find(|(address, _)| *address == raw.addr());
        if let Some(handle) = known.and_then(|(_, handle)| handle.upgrade()) {
            self.state().handles.push(Arc::downgrade(&handle));
            return handle;
        }
        let handle = self.keep(raw, true);
        all.push((raw.addr(), Arc::downgrade(&handle)));
        handle
    }

    /// Keeps a communicator in sight, for when the ranks are not all there any more.
    fn keep(&self, raw: Comm, borrowed: bool) -> Arc<Handle> {
        let handle = Handle { raw: Mutex::new(Raw(raw)), borrowed, mailboxes: OnceLock::new() };
        let handle = Arc::new(handle);
        self.state().handles.push(Arc::downgrade(&handle));
        handle
    }
}

/// A rank of a communicator.
pub(super) struct Rank {
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    rank: usize,
    size: usize,
    /// For exchanges of host memory.
    stream: OwnStream,
    /// Connections, which end when the last communicator is left.
    _peers: Arc<Peers>,
}

/// A stream that is destroyed with this value.
struct OwnStream(sys::CUstream);

// SAFETY: a stream may be used from any thread that has made its context current.
unsafe impl Send for OwnStream {}
// SAFETY: the driver serializes calls on a stream.
unsafe impl Sync for OwnStream {}

impl OwnStream {
    fn new(context: Context) -> Result<OwnStream, PluginError> {
        context.enter()?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        stream.map(OwnStream).map_err(|e| driver("cuStreamCreate", e))
    }
}

impl Drop for OwnStream {
    fn drop(&mut self) {
        let _caller = Caller::now();
        // SAFETY: the stream is this value's own; its context is kept for the life of the process.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// What a thread that joins gives back.
struct Joined(Result<Comm, String>);

// SAFETY: a communicator may be used from any thread, by one call at a time.
unsafe impl Send for Joined {}

impl Rank {
    /// Joins the ranks that have this id; returns when all have.
    pub(super) fn join(
        api: &'static Api,
        context: Context,
        id: UniqueId,
        (rank, size): (usize, usize),
        timeout: Duration,
        peers: Peers,
    ) -> Result<Rank, PluginError> {
        context.enter()?;
        let (give, given) = std::sync::mpsc::channel();
        // NCCL waits for ranks without a limit, so another thread does; where they do not come it is left behind.
        let body = move || {
            let joined = context.enter().map_err(|e| e.to_string()).and_then(|()| {
                let mut raw = std::ptr::null_mut();
                // SAFETY: the place lives through the call; the id is one that NCCL made.
                let status = unsafe { (api.init)(&mut raw, size as c_int, id, rank as c_int) };
                api.check("ncclCommInitRank", status).map(|()| raw)
            });
            let _ = give.send(Joined(joined));
        };
        let thread = std::thread::Builder::new().name("joins ranks".into()).spawn(body);
        thread.map_err(|e| PluginError::internal(format!("no thread: {e}")))?;
        let Joined(raw) = given
            .recv_timeout(timeout)
            .map_err(|_| gone(format!("not all of {size} ranks have joined by NCCL within {timeout:?}")))?;
        let raw = raw.map_err(|why| gone(format!("{why} (NCCL_DEBUG=WARN tells more)")))?;
        let shared = Arc::new(Shared { api, context, timeout, state: Mutex::default() });
        let handle = shared.keep(raw, false);
        let stream = OwnStream::new(context)?;
        peers.watch(rank, &shared);
        Rank { shared, handle, rank, size, stream, _peers: Arc::new(peers) }.with_mailboxes()
    }

    /// A rank of a communicator that another part of the process has. Ranks agree about nothing here, so small exchanges go by NCCL too.
    ///
    /// # Safety
    /// It is a communicator of this library that lives longer than the result, and is called by one thread at a time.
    pub(super) unsafe fn adopt(
        api: &'static Api,
        context: Context,
        raw: Comm,
        (rank, size): (usize, usize),
        timeout: Duration,
    ) -> Result<Rank, PluginError> {
        context.enter()?;
        settled(api, raw, IN_PROGRESS, timeout)?;
        let (mut ranks, mut number) = (0, 0);
        // SAFETY: the communicator lives; the places live through the calls.
        unsafe {
            api.check("ncclCommCount", (api.count)(raw, &mut ranks)).map_err(gone)?;
            api.check("ncclCommUserRank", (api.user_rank)(raw, &mut number)).map_err(gone)?;
        }
        if (ranks, number) != (size as c_int, rank as c_int) {
            let what = format!("the communicator is rank {number} of {ranks}, not rank {rank} of {size}");
            return Err(PluginError::invalid(what));
        }
        let shared = Arc::new(Shared { api, context, timeout, state: Mutex::default() });
        let (handle, peers) = (shared.borrowed(raw), Arc::new(Peers::default()));
        Ok(Rank { shared, handle, rank, size, stream: OwnStream::new(context)?, _peers: peers })
    }

    /// Agrees with the other ranks whether small exchanges go by mailboxes.
    fn with_mailboxes(self) -> Result<Rank, PluginError> {
        let gather = |own: &[u8]| {
            let mut all = vec![0; own.len() * self.size];
            let exchange = BlockExchange {
                op: CollectiveOp::AllGather,
                dtype: DType::U8,
                count: own.len(),
                send: own.as_ptr(),
                receive: all.as_mut_ptr(),
                stream: Stream::DEFAULT,
                step: "mailboxes",
            };
            // SAFETY: the operand is one block of the host, the result one for each rank.
            unsafe { self.through_device(&exchange) }.map(|()| all)
        };
        let made = Mailboxes::meet(self.shared.context, (self.rank, self.size), &gather)?;
        if let Some(made) = made {
            let _ = self.handle.mailboxes.set(made);
        }
        Ok(self)
    }

    /// Puts an exchange of device memory on a stream.
    ///
    /// # Safety
    /// `send` and `receive` are device memory of the exchange's blocks, used by work on the stream alone.
    unsafe fn put(
        &self,
        e: &BlockExchange<'_>,
        send: *const c_void,
        receive: *mut c_void,
        stream: CudaStream,
    ) -> Result<(), PluginError> {
        let api = self.shared.api;
        self.shared.check()?;
        let comm = self.handle.lock();
        if comm.0.is_null() {
            return self.shared.check();
        }
        if let Some(mailboxes) = self.handle.mailboxes.get().filter(|_| Mailboxes::takes(e)) {
            // SAFETY: the caller's guarantee is passed on unchanged.
            return unsafe { mailboxes.put(&[(*e, send, receive)], stream) };
        }
        let call = Call { api, comm: comm.0, stream, rank: self.rank, size: self.size, grouped: false };
        // SAFETY: the caller's guarantee is passed on unchanged.
        unsafe { call.run(e, send, receive) }
    }

    /// An exchange of host memory, through memory of the device.
    ///
    /// # Safety
    /// `e.send` and `e.receive` are host memory of the exchange's blocks.
    unsafe fn through_device(&self, e: &BlockExchange<'_>) -> Result<(), PluginError> {
        let (takes, gives) = e.op.blocks();
        let block = e.count * e.dtype.size();
        let bytes = |many: bool| if many { block * self.size } else { block };
        let (sent, received) = (bytes(takes), bytes(gives));
        if block == 0 {
            return Ok(());
        }
        let (from, to) = (Staging::new(sent)?, Staging::new(received)?);
        // SAFETY: the operand has this many bytes by the caller's guarantee.
        let host = unsafe { std::slice::from_raw_parts(e.send, sent) };
        // SAFETY: the memory was just allocated with this many bytes.
        unsafe { result::memcpy_htod_sync(from.0, host) }.map_err(|e| driver("cuMemcpyHtoD", e))?;
        // SAFETY: both are device memory of these bytes, which live until the stream has been waited for or is given up.
        unsafe { self.put(e, from.0 as *const c_void, to.0 as *mut c_void, self.stream.0.cast())? };
        if let Err(error) = self.finish(e.step) {
            // The device may still use them.
            std::mem::forget((from, to));
            return Err(error);
        }
        // SAFETY: the result has this many bytes by the caller's guarantee.
        let host = unsafe { std::slice::from_raw_parts_mut(e.receive, received) };
        // SAFETY: the memory has this many bytes, and the exchange that wrote it has ended.
        unsafe { result::memcpy_dtoh_sync(host, to.0) }.map_err(|e| driver("cuMemcpyDtoH", e))
    }

    /// Waits for the own stream, no longer than the time limit.
    fn finish(&self, step: &str) -> Result<(), PluginError> {
        let limit = deadline(self.shared.timeout);
        loop {
            // SAFETY: the stream is this rank's own.
            match unsafe { sys::cuStreamQuery(self.stream.0) } {
                sys::CUresult::CUDA_SUCCESS => return self.shared.check(),
                sys::CUresult::CUDA_ERROR_NOT_READY => {}
                other => return Err(driver("cuStreamQuery", result::DriverError(other))),
            }
            self.shared.check()?;
            if Instant::now() >= limit {
                let within = self.shared.timeout;
                self.shared.end(&format!("ranks did not come to `{step}` within {within:?}"));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Communicator for Rank {
    fn split(&self, color: usize, key: usize) -> Result<Box<dyn Communicator>, PluginError> {
        let _caller = Caller::now();
        let Shared { api, context, .. } = *self.shared;
        context.enter()?;
        self.shared.check()?;
        let own = self.handle.lock();
        let mut raw = std::ptr::null_mut();
        let (mut size, mut rank) = (0, 0);
        // SAFETY: the communicator lives under the lock; the places live through the calls.
        unsafe {
            let status = (api.split)(own.0, color as c_int, key as c_int, &mut raw, std::ptr::null_mut());
            api.check("ncclCommSplit", status).map_err(gone)?;
            api.check("ncclCommCount", (api.count)(raw, &mut size)).map_err(gone)?;
            api.check("ncclCommUserRank", (api.user_rank)(raw, &mut rank)).map_err(gone)?;
        }
        drop(own);
        let rank = Rank {
            handle: self.shared.keep(raw, false),
            shared: Arc::clone(&self.shared),
            rank: rank as usize,
            size: size as usize,
            stream: OwnStream::new(context)?,
            _peers: Arc::clone(&self._peers),
        };
        Ok(Box::new(rank.with_mailboxes()?))
    }

    unsafe fn start(&self, e: &BlockExchange<'_>) -> Result<u64, PluginError> {
        self.shared.context.enter()?;
        // SAFETY: the caller's guarantee; memory is the host's where there is no stream.
        unsafe {
            match e.stream {
                Stream::DEFAULT => self.through_device(e)?,
                stream => self.put(e, e.send.cast(), e.receive.cast(), stream.0)?,
            }
        }
        Ok(0)
    }

    /// What stands between the ends of a group of NCCL's is launched as one.
    unsafe fn start_several<'a>(&self, all: &[BlockExchange<'a>]) -> Result<Vec<u64>, PluginError> {
        let stream = all.first().map_or(Stream::DEFAULT, |e| e.stream);
        if stream == Stream::DEFAULT || all.iter().any(|e| e.stream != stream) {
            // SAFETY: the caller's guarantee is passed on unchanged.
            return all.iter().map(|e| unsafe { self.start(e) }).collect();
        }
        self.shared.context.enter()?;
        self.shared.check()?;
        // Held until the group has ended: an abort would free what the group still needs.
        let comm = self.handle.lock();
        let numbers = vec![0; all.len()];
        if comm.0.is_null() {
            return self.shared.check().map(|()| numbers);
        }
        let placed = |e: &BlockExchange<'a>| (*e, e.send.cast::<c_void>(), e.receive.cast::<c_void>());
        let mailboxes = self.handle.mailboxes.get();
        let (small, all): (Vec<_>, Vec<_>) =
            all.iter().map(placed).partition(|(e, ..)| mailboxes.is_some() && Mailboxes::takes(e));
        if let Some(mailboxes) = mailboxes {
            // SAFETY: the caller's guarantee is passed on unchanged.
            unsafe { mailboxes.put(&small, stream.0)? };
        }
        if all.is_empty() {
            return Ok(numbers);
        }
        let api = self.shared.api;
        let mut call =
            Call { api, comm: comm.0, stream: stream.0, rank: self.rank, size: self.size, grouped: true };
        // SAFETY: the group is this thread's, and ended below whatever happens in it.
        api.check("ncclGroupStart", unsafe { (api.group_start)() }).map_err(gone)?;
        // SAFETY: the caller's guarantee is passed on unchanged; the communicator lives under the lock.
        let done = all.iter().try_for_each(|(e, send, receive)| unsafe { call.run(e, *send, *receive) });
        // SAFETY: the group was started above.
        let ended = unsafe { (api.group_end)() };
        call.grouped = false;
        let ended = api.check("ncclGroupEnd", ended).map_err(gone).and_then(|()| call.settle(ended));
        done.and(ended).map(|()| numbers)
    }

    fn wait(&self, _ticket: u64) -> Result<(), PluginError> {
        self.shared.check()?;
        if self.handle.borrowed {
            // Whose it is watches over it.
            return Ok(());
        }
        let api = self.shared.api;
        let comm = self.handle.lock();
        let mut status = 0;
        // SAFETY: the communicator lives under the lock; the place lives through the call.
        let asked = if comm.0.is_null() { 0 } else { unsafe { (api.async_error)(comm.0, &mut status) } };
        api.check("ncclCommGetAsyncError", asked).and_then(|()| api.check("NCCL", status)).map_err(gone)
    }

    fn abort(&self) {
        let _caller = Caller::now();
        self.shared.end("this rank ended the exchanges");
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        if self.handle.borrowed {
            return;
        }
        let _caller = Caller::now();
        let _ = self.shared.context.enter();
        let raw = std::mem::replace(&mut *self.handle.lock(), Raw(std::ptr::null_mut()));
        if !raw.0.is_null() {
            // SAFETY: the communicator is this value's own, and nothing uses it any more.
            unsafe { (self.shared.api.destroy)(raw.0) };
        }
    }
}

/// Device memory of an exchange of host memory.
struct Staging(u64);

impl Staging {
    fn new(bytes: usize) -> Result<Staging, PluginError> {
        // SAFETY: the context is current; the memory is freed once, by this value.
        unsafe { result::malloc_sync(bytes) }.map(Staging).map_err(|e| driver("cuMemAlloc", e))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: the memory is this value's own, and nothing uses it any more.
        let _ = unsafe { result::free_sync(self.0) };
    }
}

/// An exchange on its way to NCCL.
struct Call<'a> {
    api: &'a Api,
    comm: Comm,
    stream: CudaStream,
    rank: usize,
    size: usize,
    /// Whether it stands between the ends of a group.
    grouped: bool,
}

/// Returns when a communicator is ready that has said it is still at it.
fn settled(api: &Api, comm: Comm, status: c_int, limit: Duration) -> Result<(), PluginError> {
    let (mut status, limit) = (status, deadline(limit));
    while status == IN_PROGRESS {
        // SAFETY: the communicator lives; the place lives through the call.
        let asked = unsafe { (api.async_error)(comm, &mut status) };
        api.check("ncclCommGetAsyncError", asked).map_err(gone)?;
        if status == IN_PROGRESS && Instant::now() >= limit {
            return Err(gone("a call of NCCL did not end in time".to_owned()));
        }
        std::thread::yield_now();
    }
    api.check("NCCL", status).map_err(gone)
}

/// `ncclUint8`.
const BYTES: c_int = 1;

impl Call<'_> {
    /// # Safety
    /// As for [`Rank::put`]; the communicator lives.
    unsafe fn run(
        &self,
        e: &BlockExchange<'_>,
        send: *const c_void,
        receive: *mut c_void,
    ) -> Result<(), PluginError> {
        let Call { api, comm, stream, .. } = *self;
        let bytes = e.count * e.dtype.size();
        let combined = || number(e);
        // SAFETY: by the caller's guarantee the memory has the blocks of the exchange; counts are of these dtypes.
        let (name, status) = unsafe {
            match e.op {
                CollectiveOp::AllReduce(_) => {
                    let (dtype, count, how) = combined()?;
                    ("ncclAllReduce", (api.all_reduce)(send, receive, count, dtype, how, comm, stream))
                }
                CollectiveOp::ReduceScatter(_) => {
                    let (dtype, count, how) = combined()?;
                    (
                        "ncclReduceScatter",
                        (api.reduce_scatter)(send, receive, count, dtype, how, comm, stream),
                    )
                }
                CollectiveOp::AllGather => {
                    ("ncclAllGather", (api.all_gather)(send, receive, bytes, BYTES, comm, stream))
                }
                CollectiveOp::Broadcast { root } => (
                    "ncclBroadcast",
                    (api.broadcast)(send, receive, bytes, BYTES, root as c_int, comm, stream),
                ),
                CollectiveOp::AllToAll => {
                    let all: Vec<_> = (0..self.size).map(|n| (n, n * bytes)).collect();
                    return self.several(bytes, send, receive, &all, &all);
                }
                CollectiveOp::Shift { by, wraps } => {
                    return self.shift(bytes, send, receive, i64::from(by), wraps);
                }
            }
        };
        api.check(name, status).map_err(gone)?;
        self.settle(status)
    }

    /// Returns when what a call began is on the stream: communicators that do not block say so later.
    fn settle(&self, status: c_int) -> Result<(), PluginError> {
        // Within a group nothing is begun before its end.
        if self.grouped { Ok(()) } else { settled(self.api, self.comm, status, super::PATIENCE) }
    }

    /// Sends blocks to ranks and receives blocks of ranks, each with its place in bytes, all at once.
    ///
    /// # Safety
    /// Operand and result are device memory with these blocks.
    unsafe fn several(
        &self,
        bytes: usize,
        send: *const c_void,
        receive: *mut c_void,
        to: &[(usize, usize)],
        from: &[(usize, usize)],
    ) -> Result<(), PluginError> {
        let Call { api, comm, stream, .. } = *self;
        // SAFETY: by the caller's guarantee the blocks are memory of these bytes.
        let all = unsafe {
            let mut all = vec![("ncclGroupStart", (api.group_start)())];
            for &(rank, at) in to {
                let block = send.wrapping_byte_add(at);
                all.push(("ncclSend", (api.send)(block, bytes, BYTES, rank as c_int, comm, stream)));
            }
            for &(rank, at) in from {
                let block = receive.wrapping_byte_add(at);
                all.push(("ncclRecv", (api.receive)(block, bytes, BYTES, rank as c_int, comm, stream)));
            }
            all.push(("ncclGroupEnd", (api.group_end)()));
            all
        };
        let last = all.last().map_or(0, |(_, status)| *status);
        all.into_iter().try_for_each(|(name, status)| api.check(name, status)).map_err(gone)?;
        self.settle(last)
    }

    /// # Safety
    /// As for [`Call::run`].
    unsafe fn shift(
        &self,
        bytes: usize,
        send: *const c_void,
        receive: *mut c_void,
        by: i64,
        wraps: bool,
    ) -> Result<(), PluginError> {
        let size = self.size as i64;
        let neighbour = |at: i64| match wraps {
            true => Some((at.rem_euclid(size) as usize, 0)),
            false => (0..size).contains(&at).then_some((at as usize, 0)),
        };
        let (to, from) = (neighbour(self.rank as i64 + by), neighbour(self.rank as i64 - by));
        if from.is_none() {
            // SAFETY: the result is device memory of this many bytes, used in the stream's order.
            let status = unsafe { sys::cuMemsetD8Async(receive as u64, 0, bytes, self.stream.cast()) };
            status.result().map_err(|e| driver("cuMemsetD8Async", e))?;
        }
        // SAFETY: the caller's guarantee is passed on unchanged.
        unsafe { self.several(bytes, send, receive, &Vec::from_iter(to), &Vec::from_iter(from)) }
    }
}

/// Of an exchange that combines: NCCL's dtype, elements of that dtype, NCCL's combination.
fn number(e: &BlockExchange<'_>) -> Result<(c_int, usize, c_int), PluginError> {
    let refused = |why: &str| {
        let (how, dtype) = (e.op.combine().map_or("", Combine::name), e.dtype);
        PluginError::unsupported(format!("step `{}`: NCCL does not combine {dtype} by `{how}`{why}", e.step))
    };
    let how = match e.op.combine() {
        Some(Combine::Sum) => 0,
        Some(Combine::Prod) => 1,
        Some(Combine::Max) => 2,
        Some(Combine::Min) => 3,
        Some(Combine::Mean) => 4,
        None => return Err(refused("")),
    };
    let adds = matches!(e.op.combine(), Some(Combine::Sum | Combine::Mean));
    let (dtype, each) = match e.dtype {
        DType::I8 => (0, 1),
        DType::U8 => (1, 1),
        // Bytes that are 0 or 1: the largest tells whether any is true, the smallest whether all are.
        DType::Bool if matches!(e.op.combine(), Some(Combine::Max | Combine::Min)) => (1, 1),
        DType::I32 => (2, 1),
        DType::I64 => (4, 1),
        DType::F16 => (6, 1),
        DType::F32 => (7, 1),
        DType::F64 => (8, 1),
        DType::BF16 => (9, 1),
        // Sums of complex numbers are those of their parts.
        DType::C64 if adds => (7, 2),
        DType::C128 if adds => (8, 2),
        _ => return Err(refused("; exchange it in another dtype")),
    };
    Ok((dtype, e.count * each, how))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(dtype: DType, how: Combine) -> BlockExchange<'static> {
        BlockExchange {
            op: CollectiveOp::AllReduce(how),
            dtype,
            count: 3,
            send: std::ptr::null(),
            receive: std::ptr::null_mut(),
            stream: Stream::DEFAULT,
            step: "sum",
        }
    }

    #[test]
    fn dtypes_and_combinations_have_their_numbers() {
        let of = |dtype, how| number(&exchange(dtype, how));
        assert_eq!(of(DType::BF16, Combine::Sum).ok(), Some((9, 3, 0)));
        assert_eq!(of(DType::C64, Combine::Mean).ok(), Some((7, 6, 4)), "the parts of complex numbers");
        assert_eq!(of(DType::Bool, Combine::Max).ok(), Some((1, 3, 2)));
        for (dtype, how) in
            [(DType::Bool, Combine::Sum), (DType::C64, Combine::Prod), (DType::I16, Combine::Sum)]
        {
            let refused = of(dtype, how).expect_err("NCCL has no such combination").to_string();
            assert!(refused.contains("`sum`: NCCL does not combine"), "{refused}");
        }
    }
}
