//! What a backend shows of its compiled programs: the texts of kernels, and the steps of calls while a host observes them.
//!
//! One observer serves all backends of a library: [`steps_wanted`] costs one load where there is none.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use plugin_abi::{FfxStepRun, FfxStepSink, FfxStr, Head};

use crate::DeviceId;

/// The text of a function of a compiled program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Name of the step that it belongs to.
    pub step: String,
    /// What the text is, for the user.
    pub language: String,
    /// The text.
    pub text: String,
}

/// A host's function for steps.
#[derive(Clone, Copy)]
struct Target {
    sink: FfxStepSink,
    user: *mut c_void,
}

// SAFETY: the ABI requires that the sink may be called on any thread, and that `user` lives as long as the process.
unsafe impl Send for Target {}
// SAFETY: the struct is never changed; the ABI requires that the sink may be called on many threads at once.
unsafe impl Sync for Target {}

/// The present observer, or null; it points to one of [`KNOWN`].
static TARGET: AtomicPtr<Target> = AtomicPtr::new(std::ptr::null_mut());
/// All observers that there were. They stay: a call that has loaded one may still use it.
static KNOWN: Mutex<Vec<&'static Target>> = Mutex::new(Vec::new());

/// Sets the observer.
pub(crate) fn observe(sink: Option<FfxStepSink>, user: *mut c_void) {
    let Some(sink) = sink else {
        TARGET.store(std::ptr::null_mut(), Ordering::Release);
        return;
    };
    let target = Target { sink, user };
    let mut known = KNOWN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let same = |t: &&&'static Target| std::ptr::fn_addr_eq(t.sink, sink) && t.user == user;
    let target = known.iter().find(same).copied().unwrap_or_else(|| {
        known.push(Box::leak(Box::new(target)));
        known[known.len() - 1]
    });
    TARGET.store(std::ptr::from_ref(target).cast_mut(), Ordering::Release);
}

/// Whether a host wants to know of steps.
pub fn steps_wanted() -> bool {
    !TARGET.load(Ordering::Relaxed).is_null()
}

/// What a step exchanged with other ranks, or waited for.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeRun<'a> {
    /// What it was: `all_reduce`, `wait`.
    pub what: &'a str,
    /// The group of ranks.
    pub group: &'a str,
    /// Bytes of its operand or its result on this rank, whichever are more.
    pub bytes: u64,
    /// How many exchanges of the program ran as this one.
    pub exchanges: u64,
    /// The number of the device's stream: 0 is that of the other steps.
    pub stream: u64,
}

/// Tells the host of a step that began `ago` before now and took `duration`. To be called on the thread of `execute`, before that
/// returns. Nothing happens where no host observes.
pub fn step_ran(program: &str, step: &str, device: DeviceId, ago: Duration, duration: Duration) {
    let none = ExchangeRun { what: "", group: "", bytes: 0, exchanges: 0, stream: 0 };
    exchange_ran((program, step), device, (ago, duration), &none);
}

/// The same of a step that exchanges data with other ranks or waits for that: of a program and its step, on a device, with the
/// times of [`step_ran`].
pub fn exchange_ran(
    (program, step): (&str, &str),
    device: DeviceId,
    (ago, duration): (Duration, Duration),
    exchange: &ExchangeRun<'_>,
) {
    let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    // SAFETY: null, or one of the observers that stay for the life of the process.
    let Some(target) = (unsafe { TARGET.load(Ordering::Acquire).as_ref() }) else { return };
    let run = FfxStepRun {
        head: Head::of::<FfxStepRun>(),
        device,
        program: FfxStr::new(program),
        step: FfxStr::new(step),
        ago: nanos(ago),
        duration: nanos(duration),
        exchange: FfxStr::new(exchange.what),
        group: FfxStr::new(exchange.group),
        bytes: exchange.bytes,
        exchanges: exchange.exchanges,
        stream: exchange.stream,
    };
    // SAFETY: the host's pair of function and pointer; the struct and its texts live through the call.
    unsafe { (target.sink)(target.user, &run) }
}
