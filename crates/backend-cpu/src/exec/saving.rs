//! Files that are written while what they keep is used already. A program's owner waits for its own file when it is dropped or bound again;
//! a process that ends, or forks, waits for all of them ([`wait`]).
//!
//! Not here: what the files hold (`bind_cache`).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The number of files that are being written.
static UNFINISHED: Mutex<usize> = Mutex::new(0);
static FINISHED: Condvar = Condvar::new();

fn unfinished() -> MutexGuard<'static, usize> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns when no file is being written.
pub fn wait() {
    let mut number = unfinished();
    while *number > 0 {
        number = FINISHED.wait(number).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Counts a file until it is dropped, whatever happens meanwhile.
struct Counted;

impl Counted {
    fn new() -> Counted {
        *unfinished() += 1;
        Counted
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        *unfinished() -= 1;
        FINISHED.notify_all();
    }
}

/// A file that a thread writes; it is finished when this is dropped.
#[derive(Default)]
pub(super) struct Saving(Option<JoinHandle<()>>);

impl Saving {
    /// Begins to write; where there is no thread for it nothing is written.
    pub(super) fn begin(write: impl FnOnce() + Send + 'static) -> Saving {
        let counted = Counted::new();
        let work = move || {
            write();
            drop(counted);
        };
        Saving(std::thread::Builder::new().name("keeps weights".into()).spawn(work).ok())
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic there leaves no file, which a later process makes.
            let _ = thread.join();
        }
    }
}
