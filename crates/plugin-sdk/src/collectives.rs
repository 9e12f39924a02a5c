//! Programs on many ranks, for authors: an engine implements [`CollectiveEngine`] and [`Communicator`], a backend that runs
//! programs with collectives gets [`Groups`]. The tables are filled by `thunk::collectives`.

use std::time::Duration;

use kernel_ir::runtime::{Collectives, Exchange, Ticket};
use kernel_ir::{CollectiveOp, Combine};
use plugin_abi::{
    FFX_ALL_GATHER, FFX_ALL_REDUCE, FFX_ALL_TO_ALL, FFX_BROADCAST, FFX_COMBINE_MAX, FFX_COMBINE_MEAN,
    FFX_COMBINE_MIN, FFX_COMBINE_PROD, FFX_COMBINE_SUM, FFX_OK, FFX_REDUCE_SCATTER, FFX_SHIFT,
    FFX_SHIFT_AROUND, FfxCollectives, FfxCommunicator, FfxError, FfxExchange, FfxStartExchange,
    FfxStartExchanges, FfxStr, FfxWaitExchange, Head,
};

use crate::{DType, DeviceId, PluginError, Stream};

/// The ranks that join, as a launcher names them.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// This rank's number.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The device whose memory this rank exchanges.
    pub device: DeviceId,
    /// Where the ranks meet: `host:port`, or a name within a process; empty where the engine's launcher knows.
    pub address: String,
    /// How long a rank is waited for; `None` is the engine's own limit.
    pub timeout: Option<Duration>,
}

/// What joins ranks.
pub trait CollectiveEngine: Send + Sync + 'static {
    /// Joins the ranks of a world; returns when all have joined.
    ///
    /// # Errors
    /// A rank that does not come within the time limit.
    fn join(&self, world: &World) -> Result<Box<dyn Communicator>, PluginError>;

    /// A communicator over one of the engine's own library that the caller has (`ncclComm_t`); the world says rank, size and device. It asks
    /// no other rank.
    ///
    /// # Safety
    /// The native communicator lives longer than the result, and its library is not called with it by others at the same time.
    ///
    /// # Errors
    /// The engine has none to take over, or one of another rank or size.
    unsafe fn adopt(
        &self,
        native: *mut std::ffi::c_void,
        world: &World,
    ) -> Result<Box<dyn Communicator>, PluginError> {
        let _ = (native, world);
        Err(PluginError::unsupported("this engine takes no communicators over"))
    }
}

/// An exchange as an engine gets it. Blocks are row-major without gaps.
#[derive(Clone, Copy, Debug)]
pub struct BlockExchange<'a> {
    /// Its kind.
    pub op: CollectiveOp,
    /// Element type.
    pub dtype: DType,
    /// Elements of a block.
    pub count: usize,
    /// One block, or one for each rank.
    pub send: *const u8,
    /// One block, or one for each rank.
    pub receive: *mut u8,
    /// The stream that the exchange is ordered in, of engines for devices.
    pub stream: Stream,
    /// The step of the program, for messages.
    pub step: &'a str,
}

/// Ranks that have joined. All of them make the same calls in the same order, from one thread at a time.
pub trait Communicator: Send + Sync {
    /// A communicator of the ranks that pass the same `color`, numbered in the order of `key`.
    ///
    /// # Errors
    /// A rank that is gone.
    fn split(&self, color: usize, key: usize) -> Result<Box<dyn Communicator>, PluginError>;
    /// Starts an exchange and returns its number.
    ///
    /// # Safety
    /// The exchange's memory is valid for its blocks, and stays so, unread and unwritten by others, until it has been waited
    /// for.
    ///
    /// # Errors
    /// A dtype that is not combined, a rank that is gone.
    unsafe fn start(&self, exchange: &BlockExchange<'_>) -> Result<u64, PluginError>;
    /// Starts several exchanges, as one where that costs less, and returns their numbers. All have the same stream, and none uses
    /// the result of another.
    ///
    /// # Safety
    /// As for [`start`](Communicator::start), for each of them.
    ///
    /// # Errors
    /// As for [`start`](Communicator::start).
    unsafe fn start_several(&self, exchanges: &[BlockExchange<'_>]) -> Result<Vec<u64>, PluginError> {
        // SAFETY: the caller's guarantee is passed on unchanged.
        exchanges.iter().map(|e| unsafe { self.start(e) }).collect()
    }
    /// Returns when the exchange is complete, or orders it before later work on its stream.
    ///
    /// # Errors
    /// A rank that is gone or does not come within the time limit.
    fn wait(&self, ticket: u64) -> Result<(), PluginError>;
    /// Ends all exchanges with an error, on every rank that can be reached.
    fn abort(&self) {}
}

/// The codes of an exchange: kind, combination, rank or distance.
pub(crate) fn codes(op: CollectiveOp) -> (u32, u32, i64) {
    let kind = match op {
        CollectiveOp::AllReduce(_) => FFX_ALL_REDUCE,
        CollectiveOp::AllGather => FFX_ALL_GATHER,
        CollectiveOp::ReduceScatter(_) => FFX_REDUCE_SCATTER,
        CollectiveOp::AllToAll => FFX_ALL_TO_ALL,
        CollectiveOp::Broadcast { .. } => FFX_BROADCAST,
        CollectiveOp::Shift { wraps: false, .. } => FFX_SHIFT,
        CollectiveOp::Shift { wraps: true, .. } => FFX_SHIFT_AROUND,
    };
    let combine = match op.combine() {
        None => 0,
        Some(Combine::Sum) => FFX_COMBINE_SUM,
        Some(Combine::Mean) => FFX_COMBINE_MEAN,
        Some(Combine::Prod) => FFX_COMBINE_PROD,
        Some(Combine::Max) => FFX_COMBINE_MAX,
        Some(Combine::Min) => FFX_COMBINE_MIN,
    };
    let parameter = match op {
        CollectiveOp::Broadcast { root } => i64::from(root),
        CollectiveOp::Shift { by, .. } => i64::from(by),
        _ => 0,
    };
    (kind, combine, parameter)
}

/// The exchange of codes; `None` for codes of a later version.
pub(crate) fn of_codes(kind: u32, combine: u32, parameter: i64) -> Option<CollectiveOp> {
    let how = match combine {
        FFX_COMBINE_SUM => Some(Combine::Sum),
        FFX_COMBINE_MEAN => Some(Combine::Mean),
        FFX_COMBINE_PROD => Some(Combine::Prod),
        FFX_COMBINE_MAX => Some(Combine::Max),
        FFX_COMBINE_MIN => Some(Combine::Min),
        _ => None,
    };
    Some(match kind {
        FFX_ALL_REDUCE => CollectiveOp::AllReduce(how?),
        FFX_ALL_GATHER => CollectiveOp::AllGather,
        FFX_REDUCE_SCATTER => CollectiveOp::ReduceScatter(how?),
        FFX_ALL_TO_ALL => CollectiveOp::AllToAll,
        FFX_BROADCAST => CollectiveOp::Broadcast { root: u32::try_from(parameter).ok()? },
        FFX_SHIFT | FFX_SHIFT_AROUND => {
            CollectiveOp::Shift { by: i32::try_from(parameter).ok()?, wraps: kind == FFX_SHIFT_AROUND }
        }
        _ => return None,
    })
}

/// One group, with the slots that its exchanges need.
struct Group {
    name: String,
    rank: usize,
    size: usize,
    ctx: *mut std::ffi::c_void,
    communicator: *mut FfxCommunicator,
    start: FfxStartExchange,
    several: Option<FfxStartExchanges>,
    wait: FfxWaitExchange,
}

/// The groups of an executable's collectives. The host keeps the communicators until the executable is destroyed or has
/// other groups.
pub struct Groups(Vec<Group>);

// SAFETY: the ABI requires that an engine's slots may be called from any thread, one at a time on a communicator.
unsafe impl Send for Groups {}
// SAFETY: calls on one communicator come from the one call of the executable that runs.
unsafe impl Sync for Groups {}

impl std::fmt::Debug for Groups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|g| (&g.name, g.rank, g.size))).finish()
    }
}

impl Groups {
    pub(crate) fn empty() -> Groups {
        Groups(Vec::new())
    }

    /// # Safety
    /// `communicator` is one of the engine behind `table`, and stays valid as long as this value.
    pub(crate) unsafe fn push(
        &mut self,
        name: &str,
        (rank, size): (usize, usize),
        table: &FfxCollectives,
        communicator: *mut FfxCommunicator,
    ) -> Result<(), PluginError> {
        let (Some(start), Some(wait)) = (table.start, table.wait) else {
            return Err(PluginError::invalid(format!(
                "the engine of group `{name}` lacks `start` or `wait`"
            )));
        };
        let (ctx, several) = (table.ctx, table.start_several);
        self.0.push(Group { name: name.to_owned(), rank, size, ctx, communicator, start, several, wait });
        Ok(())
    }
}

/// The message of a call that failed.
fn message(error: &FfxError) -> String {
    let text = error.message.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

impl Collectives for Groups {
    fn group(&self, name: &str) -> Option<(usize, usize)> {
        self.0.iter().find(|g| g.name == name).map(|g| (g.size, g.rank))
    }

    unsafe fn start(&self, e: &Exchange<'_>) -> Result<Ticket, String> {
        // SAFETY: the caller's guarantee is passed on unchanged.
        unsafe { self.start_on(e, Stream::DEFAULT) }
    }

    fn wait(&self, ticket: Ticket) -> Result<(), String> {
        let Some(group) = self.0.get((ticket.0 >> 56) as usize) else { return Ok(()) };
        let mut error = FfxError::new();
        // SAFETY: the communicator lives by the host's guarantee; the error struct lives through the call.
        let status =
            unsafe { (group.wait)(group.ctx, group.communicator, ticket.0 & (u64::MAX >> 8), &mut error) };
        if status == FFX_OK { Ok(()) } else { Err(message(&error)) }
    }
}

impl Groups {
    /// Starts an exchange of device memory in the order of a stream: it comes after the work on it, and later work after the
    /// exchange. [`Collectives::wait`] then only tells whether the ranks are still there, as often as it is asked.
    ///
    /// # Safety
    /// `send` and `receive` are device memory of the blocks that `exchange.op` takes and gives, do not overlap, and are used by
    /// work on the stream alone.
    ///
    /// # Errors
    /// A message that names the cause.
    pub unsafe fn start_on(&self, e: &Exchange<'_>, stream: Stream) -> Result<Ticket, String> {
        let (number, group) = self.numbered(e.group)?;
        let exchange = described(e, stream);
        let (mut ticket, mut error) = (0u64, FfxError::new());
        // SAFETY: the communicator lives by the host's guarantee, the caller answers for the memory, everything else lives
        // through the call.
        let status =
            unsafe { (group.start)(group.ctx, group.communicator, &exchange, &mut ticket, &mut error) };
        if status == FFX_OK { Ok(of_group(number, ticket)) } else { Err(message(&error)) }
    }

    /// Starts exchanges of one group as [`start_on`](Self::start_on) does, as one where the engine can, else one by one.
    ///
    /// # Safety
    /// As for [`start_on`](Self::start_on), for each of them; none uses the result of another.
    ///
    /// # Errors
    /// A message that names the cause, and the number of the exchange in the list where it is known.
    pub unsafe fn start_several_on(
        &self,
        all: &[Exchange<'_>],
        stream: Stream,
    ) -> Result<Vec<Ticket>, (usize, String)> {
        let Some(first) = all.first() else { return Ok(Vec::new()) };
        let (number, group) = self.numbered(first.group).map_err(|m| (0, m))?;
        let (Some(several), [_, _, ..]) = (group.several, all) else {
            // SAFETY: the caller's guarantee is passed on unchanged.
            let one = |(n, e)| unsafe { self.start_on(e, stream) }.map_err(|m| (n, m));
            return all.iter().enumerate().map(one).collect();
        };
        if let Some(other) = all.iter().position(|e| e.group != first.group) {
            return Err((
                other,
                format!("exchanges of the groups `{}` and another are not one", first.group),
            ));
        }
        let exchanges: Vec<FfxExchange> = all.iter().map(|e| described(e, stream)).collect();
        let list: Vec<*const FfxExchange> = exchanges.iter().map(std::ptr::from_ref).collect();
        let (mut tickets, mut error) = (vec![0u64; all.len()], FfxError::new());
        // SAFETY: the communicator lives by the host's guarantee, the caller answers for the memory, everything else lives
        // through the call; the lists have `n` elements.
        let status = unsafe {
            several(
                group.ctx,
                group.communicator,
                list.as_ptr(),
                list.len(),
                tickets.as_mut_ptr(),
                &mut error,
            )
        };
        match status {
            FFX_OK => Ok(tickets.into_iter().map(|ticket| of_group(number, ticket)).collect()),
            _ => Err((0, message(&error))),
        }
    }

    fn numbered(&self, name: &str) -> Result<(usize, &Group), String> {
        let found = self.0.iter().enumerate().find(|(_, g)| g.name == name);
        found.ok_or_else(|| format!("there is no group `{name}`"))
    }
}

/// An exchange as engines get it.
fn described(e: &Exchange<'_>, stream: Stream) -> FfxExchange {
    let (kind, combine, parameter) = codes(e.op);
    FfxExchange {
        head: Head::of::<FfxExchange>(),
        kind,
        combine,
        dtype: crate::tensor::dl_type(e.dtype),
        reserved: 0,
        count: e.count as u64,
        send: e.send.cast(),
        receive: e.receive.cast(),
        parameter,
        stream: stream.0,
        step: FfxStr::new(e.step),
    }
}

/// Groups count their exchanges separately: the number of the group is in the upper bits.
fn of_group(number: usize, ticket: u64) -> Ticket {
    Ticket(ticket & (u64::MAX >> 8) | (number as u64) << 56)
}
