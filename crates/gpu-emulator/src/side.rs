//! The emulated device's second stream. It runs nothing, because all calls are synchronous: it judges the order in which marks are
//! set and joined, which real devices do not.

use std::sync::Mutex;

use gpu_runtime::{GpuError, SideStream};
use plugin_sdk::Stream;

use crate::driver::locked;

/// What was done so far.
pub(crate) struct Side(Mutex<State>);

struct State {
    /// Whether the device's stream was followed since the last mark.
    followed: bool,
    /// For each mark whether it was set.
    set: Vec<bool>,
}

impl Side {
    pub(crate) fn new(marks: usize) -> Side {
        Side(Mutex::new(State { followed: false, set: vec![false; marks] }))
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
        locked(&self.0).followed = true;
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
        Ok(())
    }

    fn join(&self, n: usize) -> Result<(), GpuError> {
        match locked(&self.0).set.get(n) {
            Some(true) => Ok(()),
            _ => Err(wrong("is waited for before it was set", n)),
        }
    }
}
