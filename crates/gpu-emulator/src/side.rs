//! The emulated device's second stream. It runs nothing, because all calls are synchronous: it judges the order in which marks are
//! set and joined, which real devices do not.

use std::sync::Mutex;
use std::time::Instant;

use gpu_runtime::{GpuError, SideStream, Timed};
use plugin_sdk::Stream;

use crate::driver::locked;

/// What was done so far.
pub(crate) struct Side(Mutex<State>);

struct State {
    /// Whether the device's stream was followed since the last mark.
    followed: bool,
    /// For each mark whether it was set.
    set: Vec<bool>,
    /// The times of the work, while someone watches, and the beginning of what has not ended.
    watched: Option<Vec<Timed>>,
    since: Option<Instant>,
}

impl Side {
    pub(crate) fn new(marks: usize) -> Side {
        Side(Mutex::new(State { followed: false, set: vec![false; marks], watched: None, since: None }))
    }
}

fn wrong(what: &str, n: usize) -> GpuError {
    GpuError::Malformed(format!("mark {n} of the side stream {what}"))
}

impl SideStream for Side {
    /// No engine uses it; it is another one than the default stream.
    fn stream(&self) -> Stream {
        Stream(std::ptr::dangling_mut())
    }

    fn follow(&self) -> Result<(), GpuError> {
        let mut state = locked(&self.0);
        state.followed = true;
        state.since = Some(Instant::now());
        Ok(())
    }

    fn mark(&self, n: usize) -> Result<(), GpuError> {
        let mut state = locked(&self.0);
        if n >= state.set.len() {
            return Err(wrong("does not exist", n));
        }
        // The last mark stands behind whatever there is.
        if !std::mem::take(&mut state.followed) && n + 1 < state.set.len() {
            return Err(wrong("is set behind work that did not follow the device's", n));
        }
        state.set[n] = true;
        if let (Some(since), Some(watched)) = (state.since.take(), &mut state.watched) {
            watched.push(Timed { begin: 0.0, seconds: since.elapsed().as_secs_f64() });
        }
        Ok(())
    }

    fn join(&self, n: usize) -> Result<(), GpuError> {
        match locked(&self.0).set.get(n) {
            Some(true) => Ok(()),
            _ => Err(wrong("is waited for before it was set", n)),
        }
    }

    fn watch(&self, on: bool) {
        locked(&self.0).watched = on.then(Vec::new);
    }

    fn spans(&self) -> Result<Vec<Timed>, GpuError> {
        Ok(locked(&self.0).watched.clone().unwrap_or_default())
    }
}
