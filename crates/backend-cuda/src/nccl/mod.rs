//! The engine of collectives over NCCL: ranks are processes, or threads of one, each with a GPU of its own. Exchanges of device
//! memory are put on the program's stream, and are recorded in device graphs with the rest of a call.
//!
//! Ranks of a launcher first meet by TCP at the address that it names, get NCCL's unique id there, and stay connected: a rank that
//! dies is noticed at once by the end of its connections, and what the others wait for is aborted.
//!
//! Not here: which exchanges a program makes (`gpu_runtime`), how ranks find each other (`plugin_sdk::rendezvous`).

mod api;
mod communicator;
mod mailbox;
mod peers;

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use plugin_sdk::dlpack::DL_CUDA;
use plugin_sdk::{CollectiveEngine, Communicator, ErrorKind, PluginError, World, rendezvous};

use self::api::{Api, UniqueId};
use self::communicator::{Context, Rank};
use self::peers::Peers;
use crate::backend::Caller;
use crate::libraries::{Library, is_mapped};

/// How long a rank is waited for where the world does not say.
const PATIENCE: Duration = Duration::from_secs(300);

/// The engine.
pub(crate) struct Engine;

impl CollectiveEngine for Engine {
    fn join(&self, world: &World) -> Result<Box<dyn Communicator>, PluginError> {
        if world.device.device_type != DL_CUDA {
            return Err(PluginError::invalid(format!(
                "the engine `cuda` exchanges memory of NVIDIA GPUs, not of device type {}",
                world.device.device_type
            )));
        }
        let _caller = Caller::now();
        let api = Api::load()?;
        let context = Context::of(world.device.device_id)?;
        let timeout = world.timeout.unwrap_or(PATIENCE);
        let (id, peers) = match rendezvous::host_and_port(&world.address) {
            Some(place) if world.size > 1 => Peers::meet(api, world, place, timeout)?,
            _ => (in_process(api, world)?, Peers::default()),
        };
        Ok(Box::new(Rank::join(api, context, id, (world.rank, world.size), timeout, peers)?))
    }

    unsafe fn adopt(&self, native: *mut c_void, world: &World) -> Result<Box<dyn Communicator>, PluginError> {
        let _caller = Caller::now();
        if !is_mapped(Library::Nccl) {
            let what = "the process has loaded no NCCL as a shared library, so a communicator is one of another NCCL";
            return Err(PluginError::unsupported(what));
        }
        let (api, context) = (Api::load()?, Context::of(world.device.device_id)?);
        let timeout = world.timeout.unwrap_or(PATIENCE);
        // SAFETY: the caller's guarantee is passed on unchanged.
        Ok(Box::new(unsafe { Rank::adopt(api, context, native, (world.rank, world.size), timeout)? }))
    }
}

/// The id for ranks that are threads of this process, which meet by a name.
fn in_process(api: &Api, world: &World) -> Result<UniqueId, PluginError> {
    static MEETINGS: Mutex<Option<HashMap<String, (UniqueId, usize)>>> = Mutex::new(None);
    let mut meetings = MEETINGS.lock().unwrap_or_else(PoisonError::into_inner);
    let meetings = meetings.get_or_insert_default();
    let (id, come) = match meetings.get(&world.address) {
        Some(found) => *found,
        None => (new_id(api)?, 0),
    };
    // The last one frees the name.
    match come + 1 == world.size {
        true => meetings.remove(&world.address),
        false => meetings.insert(world.address.clone(), (id, come + 1)),
    };
    Ok(id)
}

fn new_id(api: &Api) -> Result<UniqueId, PluginError> {
    let mut id = UniqueId([0; 128]);
    // SAFETY: the place lives through the call.
    api.check("ncclGetUniqueId", unsafe { (api.unique_id)(&mut id) }).map_err(gone)?;
    Ok(id)
}

/// The error of ranks that are not there.
fn gone(what: String) -> PluginError {
    PluginError::new(ErrorKind::Unavailable, what)
}

/// The error of a call of the driver.
fn driver(call: &'static str, e: cudarc::driver::result::DriverError) -> PluginError {
    crate::error::error(call)(e).into()
}

/// A time that has not come yet.
fn deadline(timeout: Duration) -> Instant {
    Instant::now() + timeout
}
