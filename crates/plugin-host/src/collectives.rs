//! Programs on many ranks: engines of plugins (the extension `ferroflux.collectives.v1`), the communicators that they make,
//! and executables that use them (`ferroflux.collective-programs.v1`). No engine is here.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use plugin_abi::table::read;
use plugin_abi::{
    COLLECTIVE_PROGRAMS, COLLECTIVES, DLDataType, DLDevice, FFX_ALL_GATHER, FfxCollectivePrograms,
    FfxCollectives, FfxCommunicator, FfxExchange, FfxGroup, FfxStr, FfxWorld, Head,
};

use crate::executable::LoadedExecutable;
use crate::handshake::call;
use crate::{HostError, LoadedBackend};

/// The ranks that join.
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// This rank's number.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The device whose memory this rank exchanges.
    pub device: DLDevice,
    /// Where the ranks meet: `host:port`, or a name within a process; empty where the engine's launcher knows.
    pub address: String,
    /// How long a rank is waited for; `None` is the engine's own limit.
    pub timeout: Option<Duration>,
}

impl World {
    /// As a table that borrows it.
    fn lent(&self) -> FfxWorld {
        FfxWorld {
            head: Head::of::<FfxWorld>(),
            rank: self.rank as u32,
            size: self.size as u32,
            device: self.device,
            address: FfxStr::new(&self.address),
            timeout_ms: self.timeout.map_or(0, |t| t.as_millis().clamp(1, u128::from(u64::MAX)) as u64),
        }
    }
}

/// An engine that exchanges data between ranks.
#[derive(Clone)]
pub struct Engine {
    name: String,
    /// As executables are given it; valid for the life of the process.
    raw: &'static FfxCollectives,
    table: FfxCollectives,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Engine").field(&self.name).finish()
    }
}

/// Ranks that have joined; left when the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Communicator(Arc<Joined>);

#[derive(Debug)]
struct Joined {
    engine: Engine,
    raw: *mut FfxCommunicator,
    rank: usize,
    size: usize,
    /// The device whose memory is exchanged.
    device: DLDevice,
}

// SAFETY: the ABI requires that communicators may be used from any thread, by one call at a time.
unsafe impl Send for Joined {}
// SAFETY: calls on one communicator come from the executable that runs, or from the one caller of these functions.
unsafe impl Sync for Joined {}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(leave) = self.engine.table.leave {
            // SAFETY: a communicator of this engine, left once, and nothing uses it any more.
            unsafe { leave(self.engine.table.ctx, self.raw) }
        }
    }
}

impl LoadedBackend {
    /// The plugin's engine, where it has one.
    ///
    /// # Errors
    /// A table that breaks the rules of the ABI.
    pub fn collectives(&self) -> Result<Option<Engine>, HostError> {
        let Some(raw) = self.extension(COLLECTIVES) else { return Ok(None) };
        // SAFETY: the table that a plugin returns for this name is of this type, valid for the life of the process.
        unsafe { Engine::new(self.name(), raw.cast::<FfxCollectives>()) }.map(Some)
    }

    /// Whether its executables run collectives.
    pub fn runs_collectives(&self) -> bool {
        self.has_extension(COLLECTIVE_PROGRAMS)
    }
}

impl Engine {
    /// # Safety
    /// `raw` is a table that lives as long as the process.
    unsafe fn new(name: &str, raw: *const FfxCollectives) -> Result<Engine, HostError> {
        let wrong = |reason: String| HostError::handshake(name, reason);
        // SAFETY: the caller's guarantee is passed on unchanged.
        let table = unsafe { read(raw) }.map_err(|e| wrong(format!("bad table of collectives: {e}")))?;
        let missing = |slot| HostError::MissingSlot { backend: name.to_owned(), slot };
        table.join.ok_or_else(|| missing("join"))?;
        table.split.ok_or_else(|| missing("split"))?;
        table.start.ok_or_else(|| missing("start"))?;
        table.wait.ok_or_else(|| missing("wait"))?;
        table.leave.ok_or_else(|| missing("leave"))?;
        // SAFETY: the table was just read, and lives as long as the process.
        let raw = unsafe { &*raw };
        Ok(Engine { name: name.to_owned(), raw, table })
    }

    /// The plugin that it is of.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Joins the ranks of a world; returns when all have joined.
    ///
    /// # Errors
    /// The engine's: a rank that does not come.
    pub fn join(&self, world: &World) -> Result<Communicator, HostError> {
        let raw_world = world.lent();
        let missing = || HostError::MissingSlot { backend: self.name.clone(), slot: "join" };
        let join = self.table.join.ok_or_else(missing)?;
        let mut raw = std::ptr::null_mut();
        call(&self.name, "join", |error| {
            // SAFETY: world, place and error struct live through the call.
            unsafe { join(self.table.ctx, &raw_world, &mut raw, error) }
        })?;
        self.owned(raw, (world.rank, world.size), world.device)
    }

    /// A communicator over one that the process has of the engine's own library (`ncclComm_t`), with this rank's number, the number of ranks
    /// and the device in `world`. No other rank is asked.
    ///
    /// # Safety
    /// The native communicator lives longer than the result and its clones, and its library is not called with it by others at the same
    /// time.
    ///
    /// # Errors
    /// An engine that takes none over, one of another rank or size.
    pub unsafe fn adopt(&self, native: *mut c_void, world: &World) -> Result<Communicator, HostError> {
        let missing = || HostError::NotOffered { backend: self.name.clone(), slot: "adopt" };
        let adopt = self.table.adopt.ok_or_else(missing)?;
        let (raw_world, mut raw) = (world.lent(), std::ptr::null_mut());
        call(&self.name, "adopt", |error| {
            // SAFETY: world, place and error struct live through the call; the caller answers for the native communicator.
            unsafe { adopt(self.table.ctx, native, &raw_world, &mut raw, error) }
        })?;
        self.owned(raw, (world.rank, world.size), world.device)
    }

    fn owned(
        &self,
        raw: *mut FfxCommunicator,
        (rank, size): (usize, usize),
        device: DLDevice,
    ) -> Result<Communicator, HostError> {
        if raw.is_null() {
            return Err(HostError::handshake(&self.name, "ranks joined without a communicator"));
        }
        Ok(Communicator(Arc::new(Joined { engine: self.clone(), raw, rank, size, device })))
    }
}

impl Communicator {
    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.0.rank
    }
    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// A communicator of the ranks that pass the same `color`, numbered in the order of `key`: this rank is `rank` of `size`
    /// then. Every rank calls it.
    ///
    /// # Errors
    /// The engine's.
    pub fn split(
        &self,
        color: usize,
        key: usize,
        (rank, size): (usize, usize),
    ) -> Result<Communicator, HostError> {
        let engine = &self.0.engine;
        let missing = || HostError::MissingSlot { backend: engine.name.clone(), slot: "split" };
        let split = engine.table.split.ok_or_else(missing)?;
        let mut raw = std::ptr::null_mut();
        call(&engine.name, "split", |error| {
            // SAFETY: the communicator lives; place and error struct live through the call.
            unsafe { split(engine.table.ctx, self.0.raw, color as u32, key as u32, &mut raw, error) }
        })?;
        engine.owned(raw, (rank, size), self.0.device)
    }

    /// The bytes of all ranks, in their order; every rank passes as many.
    ///
    /// # Errors
    /// The engine's.
    pub fn all_gather(&self, own: &[u8]) -> Result<Vec<Vec<u8>>, HostError> {
        let engine = &self.0.engine;
        let mut all = vec![0u8; own.len() * self.0.size];
        let (code, bits) = ir_core::DType::U8.dlpack();
        let exchange = FfxExchange {
            head: Head::of::<FfxExchange>(),
            kind: FFX_ALL_GATHER,
            combine: 0,
            dtype: DLDataType { code, bits, lanes: 1 },
            reserved: 0,
            count: own.len() as u64,
            send: own.as_ptr().cast(),
            receive: all.as_mut_ptr().cast(),
            parameter: 0,
            stream: std::ptr::null_mut(),
            step: FfxStr::new("all_gather"),
        };
        let missing = || HostError::MissingSlot { backend: engine.name.clone(), slot: "start" };
        let (start, wait) = (engine.table.start.ok_or_else(missing)?, engine.table.wait.ok_or_else(missing)?);
        let mut ticket = 0;
        call(&engine.name, "start", |error| {
            // SAFETY: both arrays have the blocks of the exchange and live until it has been waited for, just below.
            unsafe { start(engine.table.ctx, self.0.raw, &exchange, &mut ticket, error) }
        })?;
        let done = call(&engine.name, "wait", |error| {
            // SAFETY: the communicator lives; the error struct lives through the call.
            unsafe { wait(engine.table.ctx, self.0.raw, ticket, error) }
        });
        if done.is_err() {
            // An engine that failed may still write: its memory is given up rather than freed.
            std::mem::forget(all);
            return done.map(|()| Vec::new());
        }
        Ok(all.chunks(own.len().max(1)).map(<[u8]>::to_vec).collect())
    }

    /// Ends the exchanges of all ranks with an error, where the engine can.
    pub fn abort(&self) {
        if let Some(abort) = self.0.engine.table.abort {
            // SAFETY: the communicator lives.
            unsafe { abort(self.0.engine.table.ctx, self.0.raw) }
        }
    }
}

impl LoadedExecutable {
    /// Gives the executable the groups of its collectives, before its constants are bound. They are kept until it is dropped
    /// or given others.
    ///
    /// # Errors
    /// A backend that runs no collectives, or in other memory than the engine exchanges, and its own error.
    pub fn attach_groups(&mut self, groups: &[(&str, &Communicator)]) -> Result<(), HostError> {
        let backend = self.plugin().described.name.clone();
        let not_offered = || HostError::NotOffered { backend: backend.clone(), slot: "collective-programs" };
        let slots = self.plugin().slots;
        let own = crate::handshake::devices(&slots, &backend)?;
        let fits = |c: &Communicator| own.iter().any(|d| d.device.device_type == c.0.device.device_type);
        if let Some((_, other)) = groups.iter().find(|(_, c)| !fits(c)) {
            let engine = other.0.engine.name.clone();
            return Err(HostError::OtherMemory { backend, engine });
        }
        let get = slots.get_extension.ok_or_else(not_offered)?;
        // SAFETY: the slot is the plugin's own; the name is static.
        let table = unsafe { get(slots.ctx, FfxStr::new(COLLECTIVE_PROGRAMS)) };
        if table.is_null() {
            return Err(not_offered());
        }
        // SAFETY: the table that a plugin returns for this name is of this type.
        let table = unsafe { read(table.cast::<FfxCollectivePrograms>()) };
        let table =
            table.map_err(|e| HostError::handshake(&backend, format!("bad table of programs: {e}")))?;
        let attach = table.attach.ok_or_else(not_offered)?;
        let one = |(name, c): &(&str, &Communicator)| FfxGroup {
            head: Head::of::<FfxGroup>(),
            name: FfxStr::new(name),
            engine: c.0.engine.raw,
            communicator: c.0.raw,
            rank: c.0.rank as u32,
            size: c.0.size as u32,
        };
        let list: Vec<FfxGroup> = groups.iter().map(one).collect();
        let pointers: Vec<*const FfxGroup> = list.iter().map(std::ptr::from_ref).collect();
        let exe = self.raw().cast_mut();
        call(&backend, "attach", |error| {
            // SAFETY: `&mut self` excludes other calls; the list lives through the call, the communicators are kept below.
            unsafe { attach(slots.ctx, exe, pointers.as_ptr(), pointers.len(), error) }
        })?;
        self.groups = groups.iter().map(|(_, c)| (*c).clone()).collect();
        Ok(())
    }
}
