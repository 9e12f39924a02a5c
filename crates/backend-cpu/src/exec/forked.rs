//! Thread pools after a fork. A child process has none of its parent's threads, so a pool of the parent never answers there;
//! whoever forks tells by [`after_fork`], and programs of the parent then run on pools of the child.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{ExecError, saving};
use crate::micro::team;

/// How often this process is a fork of one that used this crate.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// A pool by the number of forks before it and its threads.
type Pool = (usize, usize, Arc<rayon::ThreadPool>);

static POOLS: Mutex<Vec<Pool>> = Mutex::new(Vec::new());

/// To be called by a thread that is about to fork the process: the child has no other thread, and the process's OpenMP runtime would wait
/// there for those that have helped this one.
pub fn before_fork() {
    team::before_fork();
    // The child would have half a file, and no thread that goes on with it.
    saving::wait();
}

/// Tells that this process is the child of a fork.
pub fn after_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of forks so far.
pub(super) fn forks() -> usize {
    FORKS.load(Ordering::Relaxed)
}

/// The pool of this process with that many threads.
///
/// # Errors
/// The system makes no threads.
pub(super) fn pool(threads: usize) -> Result<Arc<rayon::ThreadPool>, ExecError> {
    let forks = forks();
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, _, pool)) = pools.iter().find(|(f, n, _)| (*f, *n) == (forks, threads)) {
        return Ok(Arc::clone(pool));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = Arc::new(pool.map_err(|e| ExecError::Host(format!("no thread pool: {e}")))?);
    pools.push((forks, threads, Arc::clone(&pool)));
    Ok(pool)
}
