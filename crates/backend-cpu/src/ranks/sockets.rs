//! Ranks that are processes, connected by sockets, every two of them: for launchers that start no MPI (`torchrun`), and
//! machines without one. A rank that dies is noticed at once, because its connections end.
//!
//! A thread of each communicator performs its exchanges in their order, so that programs compute meanwhile. Sums are made in
//! the order of ranks, each part by one rank, so that all ranks get the same bits. Every message begins with the exchange that
//! it belongs to: ranks whose programs differ are told so.
//!
//! Not here: how ranks find each other (`plugin_sdk::rendezvous`).

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kernel_ir::runtime::{combine_into, divide};
use kernel_ir::{CollectiveOp, Combine};
use plugin_sdk::rendezvous::{Meeting, connect, listen, meet, number_of};
use plugin_sdk::{BlockExchange, Communicator, DType, ErrorKind, PluginError, Stream, World};

/// How long a rank is waited for where the world does not say.
const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes for all others that the buffers of sockets hold, so that nobody has to receive meanwhile.
const SMALL: usize = 16 << 10;
/// The longest description of an exchange.
const MAX_TEXT: usize = 1 << 12;

/// Joins the ranks of a world, which are processes that meet at an address.
pub(super) fn join(world: &World, host: &str, port: u16) -> Result<Box<dyn Communicator>, PluginError> {
    let timeout = world.timeout.unwrap_or(PATIENCE);
    let group = number_of((host, port, world.size));
    let meeting = Meeting { rank: world.rank, size: world.size, group, deadline: Instant::now() + timeout };
    let found = meet(&meeting, host, port);
    let streams = found.map_err(|why| {
        gone(format!("rank {} of `{}`, within {timeout:?}: {why}", world.rank, world.address))
    })?;
    Rank::new(Peers { name: world.address.clone(), rank: world.rank, group, timeout, streams }).map(boxed)
}

fn boxed(rank: Rank) -> Box<dyn Communicator> {
    Box::new(rank)
}

fn gone(what: String) -> PluginError {
    PluginError::new(ErrorKind::Unavailable, what)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections of a rank.
struct Peers {
    name: String,
    rank: usize,
    group: u64,
    timeout: Duration,
    /// By rank; nothing at the rank's own place.
    streams: Vec<Option<TcpStream>>,
}

/// An exchange on its way to the thread that performs it.
struct Job {
    number: u64,
    op: CollectiveOp,
    dtype: DType,
    count: usize,
    send: *const u8,
    receive: *mut u8,
    step: String,
}

// SAFETY: the memory stays valid and unused by its owner until the exchange has been waited for, by the contract of
// `Communicator::start`.
unsafe impl Send for Job {}
// SAFETY: the second thread of an exchange reads its description alone; the memory it sends is passed to it as slices.
unsafe impl Sync for Job {}

/// What has become of exchanges.
#[derive(Default)]
struct Ends {
    by_number: Mutex<HashMap<u64, Result<(), String>>>,
    changed: Condvar,
}

/// A rank of a group.
struct Rank {
    peers: Arc<Peers>,
    ends: Arc<Ends>,
    jobs: Option<Mutex<Jobs>>,
    thread: Option<JoinHandle<()>>,
}

struct Jobs {
    last: u64,
    splits: u64,
    queue: Sender<Job>,
}

impl Rank {
    fn new(peers: Peers) -> Result<Rank, PluginError> {
        for stream in peers.streams.iter().flatten() {
            let set = stream.set_read_timeout(Some(peers.timeout));
            let set = set.and_then(|()| stream.set_write_timeout(Some(peers.timeout)));
            set.map_err(|e| gone(e.to_string()))?;
        }
        let (peers, ends) = (Arc::new(peers), Arc::new(Ends::default()));
        let (queue, jobs) = channel();
        let work = {
            let (peers, ends) = (Arc::clone(&peers), Arc::clone(&ends));
            move || perform_all(&peers, &ends, &jobs)
        };
        let thread = std::thread::Builder::new().name("exchanges".into()).spawn(work);
        let thread = Some(thread.map_err(|e| gone(format!("no thread for exchanges: {e}")))?);
        Ok(Rank { peers, ends, jobs: Some(Mutex::new(Jobs { last: 0, splits: 0, queue })), thread })
    }

    fn jobs(&self) -> Result<MutexGuard<'_, Jobs>, PluginError> {
        self.jobs.as_ref().map(lock).ok_or_else(|| PluginError::internal("the rank has left"))
    }

    /// The bytes of every rank, in their order.
    fn all_gather(&self, own: &[u8], step: &str) -> Result<Vec<u8>, PluginError> {
        let mut all = vec![0u8; own.len() * self.peers.streams.len()];
        let exchange = BlockExchange {
            op: CollectiveOp::AllGather,
            dtype: DType::U8,
            count: own.len(),
            send: own.as_ptr(),
            receive: all.as_mut_ptr(),
            stream: Stream::DEFAULT,
            step,
        };
        // SAFETY: both live, unused, until the exchange has been waited for.
        let ticket = unsafe { self.start(&exchange) }?;
        self.wait(ticket).map(|()| all)
    }
}

impl Communicator for Rank {
    fn split(&self, color: usize, key: usize) -> Result<Box<dyn Communicator>, PluginError> {
        let listener = listen().map_err(|e| gone(format!("no port is free: {e}")))?;
        let port = listener.local_addr().map_err(|e| gone(e.to_string()))?.port();
        let own = [color as u64, key as u64, u64::from(port)].map(u64::to_le_bytes).concat();
        let all = self.all_gather(&own, "split")?;
        let word = |rank: usize, n: usize| {
            let at = rank * own.len() + n * 8;
            u64::from_le_bytes(std::array::from_fn(|i| all[at + i]))
        };
        let mut members: Vec<usize> =
            (0..self.peers.streams.len()).filter(|r| word(*r, 0) == color as u64).collect();
        members.sort_by_key(|r| (word(*r, 1), *r));
        let splits = {
            let mut jobs = self.jobs()?;
            jobs.splits += 1;
            jobs.splits
        };
        let place = |rank: &usize| {
            let port = word(*rank, 2) as u16;
            match &self.peers.streams[*rank] {
                Some(stream) => stream.peer_addr().map(|at| SocketAddr::new(at.ip(), port)),
                None => listener.local_addr(),
            }
        };
        let places =
            members.iter().map(place).collect::<io::Result<Vec<_>>>().map_err(|e| gone(e.to_string()))?;
        let timeout = self.peers.timeout;
        let rank = members.iter().position(|r| *r == self.peers.rank);
        let meeting = Meeting {
            rank: rank.ok_or_else(|| PluginError::internal("a rank outside of its own group"))?,
            size: members.len(),
            group: number_of((self.peers.group, splits, color)),
            deadline: Instant::now() + timeout,
        };
        let name = format!("{}/{color}", self.peers.name);
        let streams = connect(&meeting, &listener, &places)
            .map_err(|why| gone(format!("rank {} of `{name}`, within {timeout:?}: {why}", meeting.rank)))?;
        Rank::new(Peers { name, rank: meeting.rank, group: meeting.group, timeout, streams }).map(boxed)
    }

    unsafe fn start(&self, e: &BlockExchange<'_>) -> Result<u64, PluginError> {
        let mut jobs = self.jobs()?;
        jobs.last += 1;
        let (number, step) = (jobs.last, e.step.to_owned());
        let job =
            Job { number, op: e.op, dtype: e.dtype, count: e.count, send: e.send, receive: e.receive, step };
        jobs.queue.send(job).map_err(|_| PluginError::internal("the thread of exchanges has ended"))?;
        Ok(number)
    }

    fn wait(&self, ticket: u64) -> Result<(), PluginError> {
        let mut ends = lock(&self.ends.by_number);
        loop {
            if let Some(end) = ends.remove(&ticket) {
                return end.map_err(gone);
            }
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                return Err(PluginError::internal("the thread of exchanges has ended"));
            }
            let waited = self.ends.changed.wait_timeout(ends, Duration::from_secs(1));
            ends = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn abort(&self) {
        self.peers.leave();
    }
}

/// The ends of connections are what the other ranks see of one that leaves.
impl Drop for Rank {
    fn drop(&mut self) {
        self.jobs = None;
        self.peers.leave();
        if let Some(thread) = self.thread.take() {
            // Its failures have been reported to those who waited.
            let _ = thread.join();
        }
    }
}

/// The thread of a communicator. After a failure nothing is exchanged any more.
fn perform_all(peers: &Peers, ends: &Ends, jobs: &Receiver<Job>) {
    let mut broken: Option<String> = None;
    for job in jobs {
        let end = match &broken {
            Some(why) => Err(why.clone()),
            None => perform(peers, &job),
        };
        if let (Err(why), None) = (&end, &broken) {
            broken = Some(why.clone());
            peers.leave();
        }
        lock(&ends.by_number).insert(job.number, end);
        ends.changed.notify_all();
    }
}

fn perform(peers: &Peers, job: &Job) -> Result<(), String> {
    let exchange = Exchange { peers, job, bytes: job.count * job.dtype.size() };
    exchange
        .perform()
        .map_err(|why| format!("rank {} of `{}`, step `{}`: {why}", peers.rank, peers.name, job.step))
}

/// A part of a block's bytes.
type Span = std::ops::Range<usize>;

/// One exchange in progress.
struct Exchange<'a> {
    peers: &'a Peers,
    job: &'a Job,
    /// Of a block.
    bytes: usize,
}

impl Exchange<'_> {
    fn perform(&self) -> Result<(), String> {
        let (rank, size, bytes) = (self.peers.rank, self.peers.streams.len(), self.bytes);
        let whole = |_: usize| 0..bytes;
        let block = |n: usize| n * bytes..(n + 1) * bytes;
        match self.job.op {
            CollectiveOp::AllGather => self.swap(whole, block),
            CollectiveOp::AllToAll => self.swap(block, block),
            CollectiveOp::ReduceScatter(how) => self.reduce(how, block, 0..bytes),
            CollectiveOp::AllReduce(how) => {
                // Each rank adds one part for all.
                let width = self.job.dtype.size();
                let part = |n: usize| {
                    let each = self.job.count.div_ceil(size);
                    (n * each).min(self.job.count) * width..((n + 1) * each).min(self.job.count) * width
                };
                self.reduce(how, part, part(rank))?;
                // SAFETY: the parts of a result do not overlap; those received are the others'.
                unsafe { self.exchange((self.job.receive, &|_| part(rank)), (self.job.receive, &part)) }
            }
            CollectiveOp::Broadcast { root } => {
                let root = root as usize;
                if root >= size {
                    return Err(format!("there is no rank {root}"));
                }
                self.swap(
                    |_| if rank == root { 0..bytes } else { 0..0 },
                    |from| if from == root { 0..bytes } else { 0..0 },
                )
            }
            CollectiveOp::Shift { by, wraps } => {
                let at = |rank: usize, by: i64| match rank as i64 + by {
                    to if wraps => Some(to.rem_euclid(size as i64) as usize),
                    to => usize::try_from(to).ok().filter(|r| *r < size),
                };
                let (to, from) = (at(rank, i64::from(by)), at(rank, -i64::from(by)));
                if from.is_none() {
                    // SAFETY: the result has this many bytes.
                    unsafe { self.job.receive.write_bytes(0, bytes) };
                }
                let span = |with: bool| if with { 0..bytes } else { 0..0 };
                self.swap(|n| span(to == Some(n)), |n| span(from == Some(n)))
            }
        }
    }

    /// Sends parts of the operand and receives parts of the result, by rank.
    fn swap(&self, out: impl Fn(usize) -> Span, into: impl Fn(usize) -> Span) -> Result<(), String> {
        // SAFETY: operand and result are valid for their blocks until the exchange has been waited for, and do not overlap.
        unsafe { self.exchange((self.job.send.cast_mut(), &out), (self.job.receive, &into)) }
    }

    /// Combines the parts of the operands that are this rank's into `to` of the result.
    fn reduce(&self, how: Combine, part: impl Fn(usize) -> Span, to: Span) -> Result<(), String> {
        let (rank, size, length) = (self.peers.rank, self.peers.streams.len(), to.len());
        // Elements have at most 16 bytes and are aligned to 8.
        let padded = length.next_multiple_of(16);
        let mut scratch = vec![0u64; padded / 8 * size];
        let memory: *mut u8 = scratch.as_mut_ptr().cast();
        let place = |n: usize| n * padded..n * padded + length;
        // SAFETY: the operand is valid for its blocks, `scratch` has a place for each rank.
        unsafe { self.exchange((self.job.send.cast_mut(), &part), (memory, &place))? };
        let count = length / self.job.dtype.size().max(1);
        let (dtype, result) = (self.job.dtype, self.job.receive.wrapping_add(to.start));
        debug_assert!(rank < size);
        // SAFETY: the result has these bytes, the places have as many, all aligned to their elements; none overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(memory.cast_const(), result, length);
            for n in 1..size {
                combine_into(how, dtype, result, memory.add(place(n).start).cast_const(), count)?;
            }
            if how == Combine::Mean {
                divide(dtype, result, count, size);
            }
        }
        Ok(())
    }

    /// Sends `out(r)` to rank `r` and receives `into(r)` from it, for all ranks at once; the own part is copied.
    ///
    /// # Safety
    /// Both pointers are valid for what the spans say; what is written overlaps nothing that is read, except that the own
    /// parts may be the same.
    unsafe fn exchange(
        &self,
        (from, out): (*mut u8, &dyn Fn(usize) -> Span),
        (to, into): (*mut u8, &dyn Fn(usize) -> Span),
    ) -> Result<(), String> {
        let (rank, size) = (self.peers.rank, self.peers.streams.len());
        let (own, place) = (out(rank), into(rank));
        let (source, target) = (from.wrapping_add(own.start).cast_const(), to.wrapping_add(place.start));
        if source != target.cast_const() {
            // SAFETY: by the caller's guarantee.
            unsafe { std::ptr::copy_nonoverlapping(source, target, own.len().min(place.len())) };
        }
        let others = (1..size).map(|d| (rank + d) % size);
        let sent: Vec<(usize, &[u8])> = others
            .map(|n| {
                let span = out(n);
                // SAFETY: by the caller's guarantee.
                (n, unsafe {
                    std::slice::from_raw_parts(from.wrapping_add(span.start).cast_const(), span.len())
                })
            })
            .collect();
        let receive = || -> Result<(), String> {
            for n in (1..size).map(|d| (rank + size - d) % size) {
                let span = into(n);
                // SAFETY: by the caller's guarantee; spans of different ranks do not overlap.
                let place =
                    unsafe { std::slice::from_raw_parts_mut(to.wrapping_add(span.start), span.len()) };
                self.receive(n, place)?;
            }
            Ok(())
        };
        if sent.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() <= SMALL {
            self.send(&sent)?;
            return receive();
        }
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| self.send(&sent));
            let received = receive();
            if received.is_err() {
                // The other thread may wait for a rank that takes nothing any more.
                self.peers.leave();
            }
            let sent = sender.join().unwrap_or_else(|_| Err("the sender panicked".into()));
            received.and(sent)
        })
    }

    /// What ranks must agree about.
    fn text(&self) -> String {
        format!("{:?} of {} {}", self.job.op, self.job.count, self.job.dtype)
    }

    fn send(&self, parts: &[(usize, &[u8])]) -> Result<(), String> {
        let mut head = self.job.number.to_le_bytes().to_vec();
        let text = format!("{}\n{}", self.text(), self.job.step);
        let text = &text.as_bytes()[..text.len().min(MAX_TEXT)];
        head.extend((text.len() as u32).to_le_bytes());
        head.extend(text);
        for (rank, bytes) in parts {
            let mut stream = self.peers.stream(*rank)?;
            let sent = if bytes.len() <= SMALL {
                stream.write_all(&[&head[..], bytes].concat())
            } else {
                stream.write_all(&head).and_then(|()| stream.write_all(bytes))
            };
            sent.map_err(|e| self.peers.lost(*rank, &e))?;
        }
        Ok(())
    }

    fn receive(&self, rank: usize, place: &mut [u8]) -> Result<(), String> {
        let mut stream = self.peers.stream(rank)?;
        let lost = |e: io::Error| self.peers.lost(rank, &e);
        let mut head = [0; 12];
        stream.read_exact(&mut head).map_err(lost)?;
        let number = u64::from_le_bytes(std::array::from_fn(|i| head[i]));
        let length = u32::from_le_bytes(std::array::from_fn(|i| head[8 + i])) as usize;
        let mut text = vec![0; length.min(MAX_TEXT)];
        stream.read_exact(&mut text).map_err(lost)?;
        let text = String::from_utf8_lossy(&text);
        let (what, step) = text.split_once('\n').unwrap_or((&text, ""));
        if number != self.job.number || what != self.text() {
            let (own, before) = (self.text(), self.job.number);
            return Err(format!(
                "rank {rank} is at `{step}` ({what}, its exchange {number}), this one at {own} (its exchange {before}): the \
                 ranks' programs differ"
            ));
        }
        stream.read_exact(place).map_err(lost)
    }
}

impl Peers {
    fn stream(&self, rank: usize) -> Result<&TcpStream, String> {
        self.streams.get(rank).and_then(Option::as_ref).ok_or_else(|| format!("there is no rank {rank}"))
    }

    /// What the failure of a connection means.
    fn lost(&self, rank: usize, error: &io::Error) -> String {
        let (name, timeout) = (&self.name, self.timeout);
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("rank {rank} of `{name}` did not come within {timeout:?}")
            }
            _ => format!("rank {rank} of `{name}` has left ({error})"),
        }
    }

    /// Ends all connections.
    fn leave(&self) {
        for stream in self.streams.iter().flatten() {
            // One that the other side has ended already is as good.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
