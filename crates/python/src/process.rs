//! Threads of this process. The child of a fork has none of its parent's, so the global pool never answers there: everything
//! then runs on a pool of the child. And threads at the end: Python ends a thread that wants its lock back then by unwinding
//! it, which Rust's frames do not survive, so threads that run compiled code wait for the end of the process instead.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use pyo3::prelude::*;

/// Whether this process is the child of a fork.
static FORKED: AtomicBool = AtomicBool::new(false);
static CHILD: Mutex<Option<Arc<rayon::ThreadPool>>> = Mutex::new(None);

/// Called by Python before a fork.
#[pyfunction]
pub(crate) fn before_fork() {
    ferroflux::foreign::before_fork();
}

/// Called by Python in the child of a fork.
#[pyfunction]
pub(crate) fn after_fork() -> PyResult<()> {
    let pool = rayon::ThreadPoolBuilder::new().build();
    let pool = pool.map_err(|e| crate::error::Error::new_err(format!("no threads after a fork: {e}")))?;
    let old = CHILD.lock().unwrap_or_else(PoisonError::into_inner).replace(Arc::new(pool));
    // A pool of the parent cannot be ended here: its threads would have to answer.
    std::mem::forget(old);
    FORKED.store(true, Ordering::Release);
    ferroflux::foreign::after_fork();
    Ok(())
}

/// The thread that ends the process, once it does.
static ENDING: OnceLock<ThreadId> = OnceLock::new();
/// Threads that have left compiled code and wait for Python's lock.
static RETURNING: AtomicUsize = AtomicUsize::new(0);

/// Called by Python when the process ends: from now on no other thread takes Python's lock after compiled code.
#[pyfunction]
pub(crate) fn at_exit(py: Python<'_>) {
    ENDING.get_or_init(|| std::thread::current().id());
    py.detach(ferroflux::foreign::before_exit);
    while RETURNING.load(Ordering::SeqCst) > 0 {
        py.detach(|| std::thread::sleep(Duration::from_millis(1)));
    }
}

/// Whether the process ends and this is another thread than the one that ends it.
fn is_left_over() -> bool {
    ENDING.get().is_some_and(|id| *id != std::thread::current().id())
}

/// Keeps a thread that must not return until the process is gone.
fn wait_for_the_end() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Runs `body` without Python's lock.
pub(crate) fn without_lock<T: Send>(py: Python<'_>, body: impl FnOnce() -> T + Send) -> T {
    if is_left_over() {
        py.detach(|| wait_for_the_end());
    }
    let result = py.detach(|| {
        let result = body();
        // Counted before the question: the end waits for those who were told that they may return.
        RETURNING.fetch_add(1, Ordering::SeqCst);
        if is_left_over() {
            RETURNING.fetch_sub(1, Ordering::SeqCst);
            wait_for_the_end();
        }
        result
    });
    RETURNING.fetch_sub(1, Ordering::SeqCst);
    result
}

/// Runs `body` where its parallel loops find threads.
pub(crate) fn with_threads<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    if !FORKED.load(Ordering::Acquire) {
        return body();
    }
    let pool = CHILD.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match pool {
        Some(pool) => pool.install(body),
        None => body(),
    }
}
