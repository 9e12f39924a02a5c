//! All that the runtime knows, behind one lock, and the handles that it gives out: numbers in the place of pointers.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::device::{Device, INVALID_DEVICE, INVALID_HANDLE, NO_DEVICE, SUCCESS};
use crate::graph::{Executable, Graph};
use crate::module::{Kernel, Module};
use crate::settings::Settings;
use crate::stream::{Event, Stream};

pub(crate) type Opaque = *mut c_void;

thread_local! {
    /// The device of this thread.
    pub(crate) static CURRENT: Cell<usize> = const { Cell::new(0) };
}

pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<Device>,
    pub(crate) streams: HashMap<usize, Stream>,
    pub(crate) events: HashMap<usize, Event>,
    pub(crate) modules: HashMap<usize, Module>,
    pub(crate) kernels: HashMap<usize, Arc<Kernel>>,
    pub(crate) graphs: HashMap<usize, Graph>,
    pub(crate) executables: HashMap<usize, Executable>,
    /// Page-locked memory by its address.
    pub(crate) pinned: HashMap<usize, Box<[u128]>>,
    last: usize,
}

impl State {
    fn new() -> State {
        let settings = Settings::of_environment();
        let devices = settings.devices.iter().map(|a| Device::new(a, &settings)).collect();
        State {
            settings,
            devices,
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            kernels: HashMap::new(),
            graphs: HashMap::new(),
            executables: HashMap::new(),
            pinned: HashMap::new(),
            last: 0,
        }
    }

    /// A handle that nothing had before.
    pub(crate) fn handle(&mut self) -> usize {
        self.last += 1;
        // Looks like a pointer, so that whoever follows it is found out.
        self.last << 4
    }

    /// The device of this thread.
    pub(crate) fn device(&mut self) -> Result<&mut Device, c_int> {
        if self.devices.is_empty() {
            return Err(NO_DEVICE);
        }
        self.devices.get_mut(CURRENT.get()).ok_or(INVALID_DEVICE)
    }

    /// The stream of a handle; the null stream is no stream here.
    pub(crate) fn stream(&mut self, stream: Opaque) -> Result<&mut Stream, c_int> {
        self.streams.get_mut(&(stream as usize)).ok_or(INVALID_HANDLE)
    }
}

/// Does something with the state; the number of its error.
pub(crate) fn with(work: impl FnOnce(&mut State) -> Result<(), c_int>) -> c_int {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    let state = STATE.get_or_init(|| Mutex::new(State::new()));
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    work(&mut state).err().unwrap_or(SUCCESS)
}

/// Writes a result to where the caller wants it.
///
/// # Safety
/// The pointer is the caller's and may be written, or null.
pub(crate) unsafe fn give<T>(to: *mut T, value: T) -> Result<(), c_int> {
    if to.is_null() {
        return Err(crate::device::INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// A handle as the caller gets it.
pub(crate) fn opaque(handle: usize) -> Opaque {
    handle as Opaque
}
