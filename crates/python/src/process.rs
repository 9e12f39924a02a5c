//! Threads of this process. The child of a fork has none of its parent's, so the global pool never answers there: everything
//! then runs on a pool of the child.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;

/// Whether this process is the child of a fork.
static FORKED: AtomicBool = AtomicBool::new(false);
static CHILD: Mutex<Option<Arc<rayon::ThreadPool>>> = Mutex::new(None);

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
