//! Parallel loops over tasks on the caller's rayon pool, and [`with`], which keeps the pool's threads spinning between
//! loops. Splits nothing itself: the templates define the tasks.
//!
//! A rayon thread without work sleeps after some microseconds and is woken through a futex; a network is hundreds of loops
//! of some tens of microseconds. So within [`with`] the first loop that is split enlists the pool's other threads; they poll a
//! counter for the next loop and yield the processor only after some thousand polls without one, as OpenMP runtimes do.
//!
//! Under [`hosted`] the other threads are not the pool's but those of the OpenMP runtime that the process has (`openmp`).
//!
//! Who leads a loop never waits for a thread to wake up: it works on the tasks itself, and waits for those helpers alone that
//! have begun some. A helper that comes too late finds nothing to do.
//!
//! Each thread begins with a share of neighbouring tasks, the same share in every loop, and takes tasks of other shares when its own is
//! done. Loops that number their tasks in the order of memory so find what the loop before wrote in the cache of the same core: lines
//! that another core has written take several times as long to read.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

use smallvec::SmallVec;

use super::driver::part;
use super::openmp::OpenMp;

/// Iterations of the polling loop before a helper begins to yield between polls (about 100 microseconds).
const SPIN: u32 = 4000;

/// Neighbouring tasks, in a cache line of its own.
#[repr(align(64))]
struct Share {
    next: AtomicUsize,
    end: usize,
}

/// A loop in progress.
struct Loop<'a> {
    body: &'a (dyn Fn(usize) + Sync),
    /// One for each thread.
    shares: SmallVec<[Share; 8]>,
    panicked: AtomicBool,
}

impl<'a> Loop<'a> {
    fn new(body: &'a (dyn Fn(usize) + Sync), tasks: usize, threads: usize) -> Loop<'a> {
        let share = |i| {
            let Range { start, end } = part(tasks, threads, i);
            Share { next: AtomicUsize::new(start), end }
        };
        Loop { body, shares: (0..threads).map(share).collect(), panicked: AtomicBool::new(false) }
    }

    /// Runs tasks until none is left, those of share `own` first.
    fn work(&self, own: usize) {
        let count = self.shares.len();
        for i in 0..count {
            let share = &self.shares[(own + i) % count];
            loop {
                // What is done is seen without writing to the counter, whose line its owner is using.
                if share.next.load(Ordering::Relaxed) >= share.end {
                    break;
                }
                let task = share.next.fetch_add(1, Ordering::Relaxed);
                if task >= share.end {
                    break;
                }
                (self.body)(task);
            }
        }
    }
}

/// The shared state of the leader and its helpers.
#[derive(Default)]
struct Team {
    /// Counts loops; a change makes the helpers look at `current`.
    epoch: AtomicUsize,
    current: AtomicPtr<Loop<'static>>,
    /// Helpers still inside the current loop.
    busy: AtomicUsize,
    /// Whether helpers were sent for.
    enlisted: AtomicBool,
    /// No loop will follow: helpers leave, and those that come late stay out.
    closed: AtomicBool,
    /// Whether the helpers are an OpenMP region, which the leader's thread ends.
    region: AtomicBool,
}

thread_local! {
    /// The team that this thread leads.
    static LEADS: RefCell<Option<Arc<Team>>> = const { RefCell::new(None) };
    /// The threads of loops that this thread leads, if helpers are those of the OpenMP runtime; else 0.
    static HOSTED: Cell<usize> = const { Cell::new(0) };
    /// Set on helpers and inside loops: a nested loop runs on its own thread.
    static IN_PARALLEL: Cell<bool> = const { Cell::new(false) };
}

/// How many threads a loop started here may use.
pub fn threads() -> usize {
    match (IN_PARALLEL.get(), HOSTED.get()) {
        (true, _) => 1,
        (_, 0) => rayon::current_num_threads(),
        (_, threads) => threads,
    }
}

/// Whether this thread leads a team.
fn leads() -> bool {
    LEADS.with_borrow(Option::is_some)
}

/// How many threads a loop of `work` multiply-adds (or copies of a value, at a few to a multiply-add) should use: one, if
/// dispatching a part takes longer than computing it. Dispatch takes about a microsecond in a team, else ten and more.
pub fn threads_for(work: usize) -> usize {
    let worth = if leads() { 1 << 16 } else { 1 << 20 };
    if work < worth { 1 } else { threads() }
}

/// So many tasks, or fewer that all threads have as many of.
pub fn even(tasks: usize) -> usize {
    let threads = threads();
    if tasks > threads { tasks / threads * threads } else { tasks }
}

/// Runs `f(0) .. f(tasks - 1)`, each once, on the caller's thread and the pool's others; returns when all are done. A
/// panic in `f` is passed on. Inside another loop it runs on the calling thread alone.
pub fn par_for(tasks: usize, f: &(dyn Fn(usize) + Sync)) {
    run(tasks, threads(), f);
}

/// [`par_for`] for a loop of `work` multiply-adds in all: on the calling thread alone if that is too little.
pub fn par_for_work(tasks: usize, work: usize, f: &(dyn Fn(usize) + Sync)) {
    run(tasks, threads_for(work), f);
}

fn run(tasks: usize, threads: usize, f: &(dyn Fn(usize) + Sync)) {
    let threads = threads.min(tasks);
    if threads <= 1 {
        return (0..tasks).for_each(f);
    }
    let work = Loop::new(f, tasks, threads);
    if let Some(team) = LEADS.with_borrow(Option::clone) {
        return team.lead(&work, self::threads());
    }
    let team = Arc::new(Team::default());
    // Closes the team even if a task panics, so that its helpers leave.
    let _closes = Closes(&team);
    team.lead(&work, threads);
}

/// Resets the flag, also on a panic.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        IN_PARALLEL.set(self.0);
    }
}

/// Runs `body` with the pool's other threads kept ready for [`par_for`] from the first loop on that is split. Nested calls, and
/// calls inside a loop, just run `body`. Meanwhile the pool does no other work: `body` must use [`par_for`] and not rayon itself.
pub fn with<R>(body: impl FnOnce() -> R) -> R {
    if threads() <= 1 || leads() {
        return body();
    }
    let team = Arc::new(Team::default());
    LEADS.set(Some(Arc::clone(&team)));
    // Closes the team and clears LEADS even if `body` panics; otherwise the helpers would spin forever.
    let _closes = Closes(&team);
    body()
}

/// Runs `body` on the calling thread, with `threads - 1` threads of the process's OpenMP runtime for its loops; `None` where the process
/// has none. They are kept ready as by [`with`] if `several` loops follow. In a child of a fork such threads are missing: do not call it there.
pub fn hosted<R>(threads: usize, several: bool, body: impl FnOnce() -> R) -> Option<R> {
    OpenMp::loaded()?;
    let _restores = Unhosted(HOSTED.replace(threads));
    Some(if several { with(body) } else { body() })
}

/// To be called before a fork by the thread that does it.
pub fn before_fork() {
    OpenMp::release();
}

/// Resets the number, also on a panic.
struct Unhosted(usize);

impl Drop for Unhosted {
    fn drop(&mut self) {
        HOSTED.set(self.0);
    }
}

/// Runs `body` on the calling thread alone: its loops are not split.
pub fn alone<R>(body: impl FnOnce() -> R) -> R {
    let _guard = Restore(IN_PARALLEL.replace(true));
    body()
}

/// Ends a team when it is dropped.
struct Closes<'a>(&'a Arc<Team>);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        LEADS.with_borrow_mut(|leads| leads.take_if(|team| Arc::ptr_eq(team, self.0)));
        self.0.closed.store(true, Ordering::Release);
        if let Some(openmp) = OpenMp::loaded().filter(|_| self.0.region.load(Ordering::Relaxed)) {
            // SAFETY: this thread, which led the team, has started the region.
            unsafe { openmp.end() };
        }
    }
}

impl Team {
    /// The leader's side of one loop on up to `threads` threads: publish, work, withdraw, wait for the helpers inside it.
    fn lead(self: &Arc<Self>, work: &Loop<'_>, threads: usize) {
        // A helper may read the pointer before it reads the epoch: what it points to must be there then.
        self.current.store(ptr::from_ref(work).cast_mut().cast(), Ordering::Release);
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if !self.enlisted.swap(true, Ordering::Relaxed) {
            self.enlist(threads);
        }
        let guard = Restore(IN_PARALLEL.replace(true));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.work(0)));
        drop(guard);
        // See `help`: after this store no helper takes the pointer; those that have it are counted in `busy`.
        self.current.store(ptr::null_mut(), Ordering::SeqCst);
        let mut turns = 0u32;
        while self.busy.load(Ordering::SeqCst) != 0 {
            pause(&mut turns);
        }
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        assert!(
            !work.panicked.load(Ordering::Relaxed),
            "a task of a parallel loop panicked on another thread"
        );
    }

    /// Sends for helpers.
    fn enlist(self: &Arc<Self>, threads: usize) {
        if let Some(openmp) = OpenMp::loaded().filter(|_| HOSTED.get() > 0) {
            self.region.store(true, Ordering::Relaxed);
            // SAFETY: the leader, this thread, ends the region before it lets go of the team (`Closes`); `help` catches panics.
            unsafe { openmp.start(helper, Arc::as_ptr(self).cast_mut().cast(), threads) };
            return;
        }
        for number in 1..threads {
            let team = Arc::clone(self);
            rayon::spawn(move || team.help(number));
        }
    }

    /// The loop of helper `number`: polls for loops until the team closes.
    fn help(&self, number: usize) {
        let guard = Restore(IN_PARALLEL.replace(true));
        let (mut seen, mut turns) = (0, 0u32);
        while !self.closed.load(Ordering::Acquire) {
            let epoch = self.epoch.load(Ordering::SeqCst);
            if epoch == seen {
                pause(&mut turns);
                continue;
            }
            (seen, turns) = (epoch, 0);
            // `busy` is incremented before the pointer is read, and the leader clears the pointer before it reads `busy`:
            // in the single order of these sequentially consistent operations, either the helper sees null or the leader
            // waits.
            self.busy.fetch_add(1, Ordering::SeqCst);
            let current = self.current.load(Ordering::SeqCst);
            if !current.is_null() {
                // SAFETY: the leader keeps the loop alive until `busy` is 0 again.
                let work = unsafe { &*current };
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work.work(number))).is_err() {
                    work.panicked.store(true, Ordering::Relaxed);
                }
            }
            self.busy.fetch_sub(1, Ordering::SeqCst);
        }
        drop(guard);
    }
}

/// A thread of a region.
unsafe extern "C" fn helper(team: *mut c_void) {
    let number = OpenMp::loaded().map_or(0, OpenMp::thread);
    // SAFETY: the leader keeps the team until the region has ended.
    unsafe { &*team.cast::<Team>() }.help(number);
}

/// Waits a moment: a pause instruction at first, the scheduler after [`SPIN`] iterations.
fn pause(turns: &mut u32) {
    *turns = turns.saturating_add(1);
    if *turns < SPIN { std::hint::spin_loop() } else { std::thread::yield_now() }
}
