//! Events: marks on a stream, and the times between them.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use super::{Calls, Handle};
use crate::{GpuError, HostMemory, Timed};

/// Pieces that are put on the stream before they may begin; far fewer launches than a stream holds.
const MAX_QUEUED: usize = 64;
/// The gate opens after this at the latest, in case putting the work on the stream waits for the stream.
const GATE_TIMEOUT: Duration = Duration::from_millis(250);

/// A mark on a stream.
pub(super) struct Event<C: Calls> {
    calls: Arc<C>,
    event: Handle,
}

impl<C: Calls> Event<C> {
    /// A mark that no stream has yet; `timed`: the time between two of them can be read.
    pub(super) fn new(calls: &Arc<C>, timed: bool) -> Result<Event<C>, GpuError> {
        Ok(Event { event: calls.create_event(timed)?, calls: Arc::clone(calls) })
    }

    pub(super) fn record(&self, stream: Handle) -> Result<(), GpuError> {
        self.calls.record_event(self.event, stream)
    }

    /// Returns when the work before the mark is done; at once where it was never set.
    pub(super) fn wait(&self) -> Result<(), GpuError> {
        self.calls.wait_event(self.event)
    }

    /// Seconds from this mark to a later one, where both were passed.
    pub(super) fn seconds_to(&self, later: &Event<C>) -> Result<f64, GpuError> {
        self.calls.seconds_between(self.event, later.event)
    }

    /// Makes a stream wait for the mark.
    pub(super) fn hold(&self, stream: Handle) -> Result<(), GpuError> {
        self.calls.hold_stream(stream, self.event)
    }
}

impl<C: Calls> Drop for Event<C> {
    fn drop(&mut self) {
        self.calls.destroy_event(self.event);
    }
}

/// A word of host memory that the stream waits for.
struct Gate<'a, C: Calls> {
    calls: &'a C,
    memory: HostMemory,
}

// SAFETY: the word is only written, by volatile stores of one value.
unsafe impl<C: Calls> Sync for Gate<'_, C> {}

impl<C: Calls> Gate<'_, C> {
    /// Makes the stream wait until the gate is opened.
    fn new(calls: &C) -> Result<Gate<'_, C>, GpuError> {
        let gate = Gate { calls, memory: calls.allocate_pinned(size_of::<u32>(), true)? };
        // SAFETY: the word was just allocated; the stream reads it until it is 1, which `drop` waits for.
        unsafe {
            gate.memory.host.cast::<u32>().write_volatile(0);
            calls.hold_for_word(gate.memory.device)?;
        }
        Ok(gate)
    }

    fn open(&self) {
        // SAFETY: the word lives as long as the gate.
        unsafe { self.memory.host.cast::<u32>().write_volatile(1) };
    }
}

impl<C: Calls> Drop for Gate<'_, C> {
    fn drop(&mut self) {
        self.open();
        // Freeing waits for the device.
        self.calls.free_pinned(self.memory.host);
    }
}

/// Times pieces of work: some are put on the stream behind a closed gate, so that none waits for the host.
pub(super) fn timed<C: Calls>(
    calls: &Arc<C>,
    pieces: usize,
    run: &mut dyn FnMut(usize) -> Result<(), GpuError>,
) -> Result<Vec<Timed>, GpuError> {
    let stream = calls.stream();
    let first = Event::new(calls, true)?;
    let mut times = Vec::with_capacity(pieces);
    let marks =
        (0..=MAX_QUEUED.min(pieces)).map(|_| Event::new(calls, true)).collect::<Result<Vec<_>, _>>()?;
    for from in (0..pieces).step_by(MAX_QUEUED) {
        let count = MAX_QUEUED.min(pieces - from);
        // Where the driver has no gates the times have the host's in them.
        let gate = Gate::new(&**calls).ok();
        let work = std::thread::scope(|scope| {
            let (done, late) = mpsc::channel::<()>();
            let gate = gate.as_ref();
            scope.spawn(move || {
                let _ = late.recv_timeout(GATE_TIMEOUT);
                if let Some(gate) = gate {
                    gate.open();
                }
            });
            let begin = || if from == 0 { first.record(stream) } else { Ok(()) };
            let result = begin().and_then(|()| marks[0].record(stream)).and_then(|()| {
                (0..count).try_for_each(|n| run(from + n).and_then(|()| marks[n + 1].record(stream)))
            });
            drop(done);
            result
        });
        work?;
        marks[count].wait()?;
        for n in 0..count {
            let (begin, seconds) = (first.seconds_to(&marks[n])?, marks[n].seconds_to(&marks[n + 1])?);
            times.push(Timed { begin, seconds });
        }
    }
    Ok(times)
}
