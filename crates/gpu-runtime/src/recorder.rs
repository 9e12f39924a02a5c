//! What drivers note of launches while work is recorded: a graph node, or the launch itself. Not here: what a recording
//! does with them (`Recording`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::GpuError;

/// The launches of the present recording, one `T` each.
pub struct Recorder<T> {
    on: AtomicBool,
    launches: Mutex<Vec<T>>,
}

impl<T> Default for Recorder<T> {
    fn default() -> Self {
        Recorder { on: AtomicBool::new(false), launches: Mutex::default() }
    }
}

impl<T> Recorder<T> {
    fn launches(&self) -> MutexGuard<'_, Vec<T>> {
        self.launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether work is being recorded.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Adds a launch to the recording.
    pub fn note(&self, launch: T) {
        self.launches().push(launch);
    }

    /// Runs work, and returns its result and the noted launches in order.
    pub fn during(&self, work: &mut dyn FnMut() -> Result<(), GpuError>) -> (Result<(), GpuError>, Vec<T>) {
        self.launches().clear();
        self.on.store(true, Ordering::Relaxed);
        let done = work();
        self.on.store(false, Ordering::Relaxed);
        (done, std::mem::take(&mut *self.launches()))
    }

    /// Launch `n` of the recorded ones, counted from 0.
    ///
    /// # Errors
    /// There is no such launch.
    pub fn nth(launches: &[T], n: usize) -> Result<&T, GpuError> {
        launches.get(n).ok_or_else(|| GpuError::Malformed(format!("launch {n} was not recorded")))
    }
}
