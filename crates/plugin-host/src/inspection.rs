//! What plugins show of compiled programs: the texts of their kernels, and the steps that calls run while someone observes.

use std::ffi::c_void;
use std::panic::catch_unwind;
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

use plugin_abi::{DLDevice, FFX_ERR_UNSUPPORTED, FfxListing, FfxObserve, FfxStepRun};

use crate::handshake::{Slots, call};
use crate::{HostError, LoadedExecutable, read};

/// The text of a function of a compiled program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Name of the step that it belongs to.
    pub step: String,
    /// What the text is: `machine code (x86_64)`, `CUDA C++`.
    pub language: String,
    /// The text.
    pub text: String,
}

/// A step that a call has run.
#[derive(Clone, Debug, PartialEq)]
pub struct StepRun {
    /// Name of the program.
    pub program: String,
    /// Name of the step.
    pub step: String,
    /// Where it ran.
    pub device: DLDevice,
    /// Time since its beginning.
    pub ago: Duration,
    /// Its time.
    pub duration: Duration,
    /// What it exchanged; `None` of a step that computes.
    pub exchange: Option<ExchangeRun>,
    /// The number of the order on the device in which it ran: 0 is that of the device's other steps.
    pub stream: u64,
}

/// What a step exchanged with other ranks, or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangeRun {
    /// What it was: `all_reduce`, `wait`.
    pub what: String,
    /// The group of ranks.
    pub group: String,
    /// Bytes of its operand or its result on this rank, whichever are more.
    pub bytes: u64,
    /// How many exchanges of the program ran as this one.
    pub exchanges: u64,
}

/// Called with each step, on the thread of the call that ran it.
pub type StepObserver = fn(&StepRun);

/// Who observes.
static OBSERVER: RwLock<Option<StepObserver>> = RwLock::new(None);

/// A plugin's slot with its context.
#[derive(Clone, Copy)]
struct Observed {
    ctx: *mut c_void,
    observe: FfxObserve,
}

// SAFETY: the ABI requires that slots may be called from any thread with this context.
unsafe impl Send for Observed {}

impl Observed {
    fn set(&self, on: bool) {
        // SAFETY: a slot of a plugin, which is never unloaded; the sink is a function of this library and needs no pointer.
        unsafe { (self.observe)(self.ctx, on.then_some(sink), std::ptr::null_mut()) }
    }
}

/// The plugins that report steps.
static PLUGINS: Mutex<Vec<Observed>> = Mutex::new(Vec::new());

/// Observes the steps that all plugins of this process run, also those that are loaded later; `None` ends that.
pub fn observe_steps(observer: Option<StepObserver>) {
    let plugins = PLUGINS.lock().unwrap_or_else(PoisonError::into_inner);
    *OBSERVER.write().unwrap_or_else(PoisonError::into_inner) = observer;
    plugins.iter().for_each(|plugin| plugin.set(observer.is_some()));
}

/// A plugin was entered.
pub(crate) fn entered(slots: &Slots) {
    let Some(observe) = slots.inspection.and_then(|i| i.observe) else { return };
    let mut plugins = PLUGINS.lock().unwrap_or_else(PoisonError::into_inner);
    let plugin = Observed { ctx: slots.ctx, observe };
    if !plugins.iter().any(|p| p.ctx == plugin.ctx && std::ptr::fn_addr_eq(p.observe, observe)) {
        plugins.push(plugin);
    }
    if OBSERVER.read().unwrap_or_else(PoisonError::into_inner).is_some() {
        plugin.set(true);
    }
}

unsafe extern "C" fn sink(_user: *mut c_void, run: *const FfxStepRun) {
    // An observer may panic; the plugin's frames below cannot take that.
    let seen = catch_unwind(|| {
        let Some(observer) = *OBSERVER.read().unwrap_or_else(PoisonError::into_inner) else { return };
        // SAFETY: the struct is the plugin's, lent for this call, and is checked while it is read.
        match unsafe { read::step_run(run) } {
            Ok(run) => observer(&run),
            Err(why) => tracing::debug!(target: "ferroflux::plugin", "a step is not recorded: {why}"),
        }
    });
    if let Err(payload) = seen {
        std::mem::forget(payload);
    }
}

impl LoadedExecutable {
    /// The texts of its functions in the order of its steps; `None` where the plugin shows none. It may take as long as
    /// compiling.
    ///
    /// # Errors
    /// The plugin's error.
    pub fn listings(&self) -> Result<Option<Vec<Listing>>, HostError> {
        type Collected = Vec<Result<Listing, String>>;
        unsafe extern "C" fn sink(user: *mut c_void, listing: *const FfxListing) {
            // SAFETY: `user` is the vector below, lent for the call; the listing is the plugin's, checked while it is read.
            unsafe { (*user.cast::<Collected>()).push(read::listing(listing)) }
        }
        let (slots, name) = (&self.plugin().slots, &self.plugin().described.name);
        let Some(listings) = slots.inspection.and_then(|i| i.listings) else { return Ok(None) };
        let mut found = Collected::new();
        let given = call(name, "listings", |error| {
            // SAFETY: the executable lives; the sink and what it collects live through the call.
            unsafe { listings(slots.ctx, self.raw(), sink, (&raw mut found).cast(), error) }
        });
        match given {
            Ok(()) => {}
            Err(HostError::Plugin { failure, .. }) if failure.code == FFX_ERR_UNSUPPORTED => return Ok(None),
            Err(error) => return Err(error),
        }
        let all: Result<Vec<Listing>, String> = found.into_iter().collect();
        all.map(Some).map_err(|reason| HostError::handshake(name, reason))
    }
}
