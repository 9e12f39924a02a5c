//! The recorder of a process: events of all threads while someone records. Where nobody does, a range costs one load.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use plugin_host::StepRun;
use plugin_host::dlpack::DL_CPU;

use super::{Trace, ranks};

/// What a range is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// Stages of the compiler.
    Compile,
    /// The capture of functions.
    Capture,
    /// Guards, and the search for a compiled form.
    Guards,
    /// Calls of compiled programs.
    Launch,
    /// Steps of compiled programs, where the backend reports them: fused kernels, products, convolutions.
    Kernel,
    /// Exchanges between ranks, and waits for them, where the backend reports them.
    Collective,
    /// Memory in use.
    Memory,
    /// The program's own ranges.
    User,
}

impl Category {
    /// Its name in traces.
    pub fn name(self) -> &'static str {
        match self {
            Category::Compile => "compile",
            Category::Capture => "capture",
            Category::Guards => "guards",
            Category::Launch => "launch",
            Category::Kernel => "kernel",
            Category::Collective => "collective",
            Category::Memory => "memory",
            Category::User => "user",
        }
    }
}

/// A range of a thread's time, or an amount of memory from a time on.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its name.
    pub name: String,
    /// What it is a part of.
    pub category: Category,
    /// A number for each thread, from 1 on. For what runs on a device of its own [`DEVICE`], the device's ordinal and [`STREAM`]
    /// times the number of the stream, 0 for that of kernels.
    pub thread: usize,
    /// Nanoseconds since the first event of the process; on a mesh since that of the process that was the first.
    pub start: u64,
    /// Nanoseconds; 0 of an amount.
    pub duration: u64,
    /// Bytes: of an amount, or those of an exchange, of its operand or its result on this rank, whichever are more.
    pub bytes: Option<u64>,
    /// The rank that it is of, on a mesh.
    pub rank: Option<usize>,
    /// What was exchanged.
    pub exchange: Option<Exchange>,
}

/// What an event of the category [`Collective`](Category::Collective) says besides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The step of the program.
    pub step: String,
    /// What it was: `all_reduce`, or `wait` for what was started before.
    pub what: String,
    /// The axis of the mesh, or the process group.
    pub axis: String,
    /// How many exchanges of the program ran as one.
    pub exchanges: u64,
}

impl Event {
    fn new(category: Category, name: String, (start, duration): (u64, u64)) -> Event {
        let (thread, rank) = (thread(), ranks::of_thread());
        Event { name, category, thread, start, duration, bytes: None, rank, exchange: None }
    }
}

/// Events beyond these are not kept: a program that never stops recording must not take all memory.
const MOST: usize = 1 << 20;

static RECORDINGS: AtomicUsize = AtomicUsize::new(0);
static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());

fn events() -> MutexGuard<'static, Vec<Event>> {
    EVENTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since the first event.
pub(crate) fn now() -> u64 {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    u64::try_from(BEGIN.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    OWN.with(|own| *own)
}

/// The first number of devices among those of threads.
pub const DEVICE: usize = 1 << 20;
/// What lies between the numbers of two streams of a device.
pub const STREAM: usize = 1 << 10;

thread_local! {
    /// Whether the thread does what belongs to no program.
    static PAUSED: Cell<bool> = const { Cell::new(false) };
}

fn is_recording() -> bool {
    RECORDINGS.load(Ordering::Relaxed) > 0 && !PAUSED.get()
}

/// Records nothing of what `work` does on this thread.
pub(crate) fn paused<R>(work: impl FnOnce() -> R) -> R {
    /// Ends the pause, also where `work` panics.
    struct Resume(bool);
    impl Drop for Resume {
        fn drop(&mut self) {
            PAUSED.set(self.0);
        }
    }
    let _resume = Resume(PAUSED.replace(true));
    work()
}

/// A backend has run a step.
fn step(run: &StepRun) {
    if !is_recording() {
        return;
    }
    let nanos = |d: std::time::Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
    let when = (now().saturating_sub(nanos(run.ago)), nanos(run.duration));
    let mut event = Event::new(Category::Kernel, run.step.clone(), when);
    if run.device.device_type != DL_CPU {
        let number = |n: u64| usize::try_from(n).unwrap_or(0) % STREAM;
        let ordinal = u64::try_from(run.device.device_id).unwrap_or(0);
        event.thread = DEVICE + STREAM * number(run.stream) + number(ordinal);
    }
    if let Some(exchange) = &run.exchange {
        let (what, axis) = (exchange.what.clone(), exchange.group.clone());
        event.category = Category::Collective;
        event.name = format!("{what} over {axis}");
        event.bytes = Some(exchange.bytes);
        event.exchange = Some(Exchange { step: run.step.clone(), what, axis, exchanges: exchange.exchanges });
    }
    keep(event);
}

fn keep(event: Event) {
    let mut events = events();
    if events.len() < MOST {
        events.push(event);
    }
}

/// A range that ends when it is dropped.
pub(crate) struct Span(Option<(String, Category, u64)>);

/// Begins a range, if someone records.
pub(crate) fn span(category: Category, name: impl FnOnce() -> String) -> Span {
    Span(is_recording().then(|| (name(), category, now())))
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some((name, category, start)) = self.0.take() {
            keep(Event::new(category, name, (start, now().saturating_sub(start))));
        }
    }
}

/// Notes the bytes that are in use from now on.
pub(crate) fn memory(name: &str, bytes: u64) {
    if is_recording() {
        let amount = Event::new(Category::Memory, name.to_owned(), (now(), 0));
        keep(Event { bytes: Some(bytes), ..amount });
    }
}

/// Someone who records.
pub(crate) struct Recording {
    start: u64,
}

impl Recording {
    pub(crate) fn begin() -> Recording {
        let start = now();
        if RECORDINGS.fetch_add(1, Ordering::Relaxed) == 0 {
            plugin_host::observe_steps(Some(step));
        }
        Recording { start }
    }

    /// What began since the beginning, so far.
    pub(crate) fn so_far(&self) -> Trace {
        let ranks = ranks::names();
        // All of a process that is one rank is that rank's.
        let only = ranks.keys().next().copied().filter(|_| ranks.len() == 1);
        let mut found: Vec<Event> = events().iter().filter(|e| e.start >= self.start).cloned().collect();
        for event in &mut found {
            event.rank = event.rank.or(only);
            event.start = ranks::common(event.start);
        }
        Trace { events: found, ranks }
    }

    /// What began since the beginning.
    pub(crate) fn end(self) -> Trace {
        self.so_far()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if RECORDINGS.fetch_sub(1, Ordering::Relaxed) == 1 {
            plugin_host::observe_steps(None);
            *events() = Vec::new();
        }
    }
}
