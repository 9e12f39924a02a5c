//! A variable: holds a recorded value and is replaced by in-place operators. Not here: views of variables, which the facade's
//! `Tensor` knows, and the variables' part in a captured function ([`crate::frame`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use crate::{Value, frame};

/// A variable that holds a value, or none (a gradient that is not there yet). In a function that is captured, reads and
/// writes of variables from outside are recorded; the variable itself changes when the compiled function has run.
#[derive(Default)]
pub struct Cell {
    value: RwLock<Option<Value>>,
    version: AtomicU64,
    /// The variable that it stands for.
    forward: OnceLock<Arc<Cell>>,
}

impl Cell {
    /// A new variable.
    pub fn new(value: Option<Value>) -> Arc<Cell> {
        let cell = Arc::new(Cell { value: RwLock::new(value), ..Cell::default() });
        frame::with(|frame| frame.own(&cell));
        cell
    }

    /// Its value, for the program that runs on this thread: where a function is captured, the value that stands for it there.
    #[track_caller]
    pub fn get(self: &Arc<Cell>) -> Option<Value> {
        match frame::with(|frame| frame.read(self)) {
            Some(Ok(value)) => value,
            Some(Err(frame::Shared)) => {
                let _ = frame::interrupt(shared);
                self.actual()
            }
            None => self.actual(),
        }
    }

    /// Gives it a new value; where a function is captured, a variable from outside gets it when the function has run. Gives the
    /// value back where the capture had to end: the variable may stand for a caller's since.
    #[must_use = "the value is not set where it is given back"]
    #[track_caller]
    pub fn try_set(self: &Arc<Cell>, value: Option<Value>) -> Option<Option<Value>> {
        match frame::with(|frame| frame.write(self, value.clone())) {
            Some(Ok(true)) => None,
            Some(Err(frame::Shared)) => {
                // Where the capture must not end, its error is what the function's caller gets.
                let _ = frame::interrupt(shared);
                Some(value).filter(|_| !frame::is_active())
            }
            Some(Ok(false)) | None => {
                self.replace(value);
                None
            }
        }
    }

    /// As [`try_set`](Cell::try_set), for a variable that is no argument of a captured function.
    #[track_caller]
    pub fn set(self: &Arc<Cell>, value: Option<Value>) {
        if let Some(value) = self.try_set(value) {
            self.replace(value);
        }
    }

    /// Makes it stand for another one.
    pub(crate) fn forward_to(&self, target: &Arc<Cell>) {
        let _ = self.forward.set(Arc::clone(target));
    }

    #[inline]
    fn own(&self) -> &Cell {
        self.forward.get().map_or(self, |target| target.own())
    }

    /// The value outside of any capture.
    #[inline]
    pub fn actual(&self) -> Option<Value> {
        self.own().value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Calls `f` with the value outside of any capture.
    pub fn peek<R>(&self, f: impl FnOnce(Option<&Value>) -> R) -> R {
        f(self.own().value.read().unwrap_or_else(PoisonError::into_inner).as_ref())
    }

    /// Gives it a new value outside of any capture.
    pub fn replace(&self, value: Option<Value>) {
        let old =
            std::mem::replace(&mut *self.own().value.write().unwrap_or_else(PoisonError::into_inner), value);
        self.own().version.fetch_add(1, Ordering::Release);
        // Releasing a long history takes time: not under the lock.
        drop(old);
    }

    /// Counts the writes, those of a function that is captured on this thread included.
    pub fn version(&self) -> u64 {
        let own = self.own().version.load(Ordering::Acquire);
        own + frame::with(|frame| frame.writes(std::ptr::from_ref(self))).unwrap_or(0)
    }
}

fn shared() -> String {
    "a tensor is written that shares memory with another one that the function uses".to_owned()
}
