//! Events: marks on a stream, and the times between them.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::mpsc;
use std::time::Duration;

use cudarc::driver::sys;
use gpu_runtime::GpuError;

use crate::driver::error;

/// Pieces that are put on the stream before they may begin; far fewer launches than a stream holds.
const MAX_QUEUED: usize = 64;
/// The gate opens after this at the latest, in case putting the work on the stream waits for the stream.
const GATE_TIMEOUT: Duration = Duration::from_millis(250);

/// A mark on a stream.
pub(crate) struct Event(sys::CUevent);

// SAFETY: a handle of the driver's, valid in every thread with the context.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A mark that no stream has yet; `timed`: times between two can be asked for.
    pub(crate) fn new(timed: bool) -> Result<Event, GpuError> {
        let flags = match timed {
            true => sys::CUevent_flags_enum::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING,
        };
        let mut event = null_mut();
        // SAFETY: the handle is written to a local.
        unsafe { sys::cuEventCreate(&mut event, flags as u32) }.result().map_err(error("cuEventCreate"))?;
        Ok(Event(event))
    }

    pub(crate) fn record(&self, stream: sys::CUstream) -> Result<(), GpuError> {
        // SAFETY: the event lives, the stream is the caller's.
        unsafe { sys::cuEventRecord(self.0, stream) }.result().map_err(error("cuEventRecord"))
    }

    /// Returns when the work before the mark is done; at once where it was never set.
    pub(crate) fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: the event lives.
        unsafe { sys::cuEventSynchronize(self.0) }.result().map_err(error("cuEventSynchronize"))
    }

    /// Makes a stream wait for the mark.
    pub(crate) fn hold(&self, stream: sys::CUstream) -> Result<(), GpuError> {
        // SAFETY: the event lives, the stream is the caller's.
        unsafe { sys::cuStreamWaitEvent(stream, self.0, 0) }.result().map_err(error("cuStreamWaitEvent"))
    }

    fn seconds_until(&self, later: &Event) -> Result<f64, GpuError> {
        let mut ms = 0f32;
        // SAFETY: both events live and have been passed; the number is written to a local.
        unsafe { sys::cuEventElapsedTime_v2(&mut ms, self.0, later.0) }
            .result()
            .map_err(error("cuEventElapsedTime"))?;
        Ok(f64::from(ms) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; the driver waits for what is under way.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// A word of host memory that a stream waits for.
struct Gate(*mut u32);

// SAFETY: the word is only written, by volatile stores of one value.
unsafe impl Sync for Gate {}
// SAFETY: as above.
unsafe impl Send for Gate {}

impl Gate {
    /// Makes the stream wait until the gate is opened.
    fn new(stream: sys::CUstream) -> Result<Gate, GpuError> {
        let mut memory: *mut c_void = null_mut();
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the address is written to a local.
        unsafe { sys::cuMemHostAlloc(&mut memory, 4, flags) }.result().map_err(error("cuMemHostAlloc"))?;
        let gate = Gate(memory.cast::<u32>());
        let mut address = 0;
        // SAFETY: the word was just allocated; the stream reads it until it is 1, which `drop` waits for.
        unsafe {
            gate.0.write_volatile(0);
            sys::cuMemHostGetDevicePointer_v2(&mut address, memory, 0)
                .result()
                .map_err(error("cuMemHostGetDevicePointer"))?;
            let equal = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_EQ as u32;
            sys::cuStreamWaitValue32_v2(stream, address, 1, equal)
                .result()
                .map_err(error("cuStreamWaitValue32"))?;
        }
        Ok(gate)
    }

    fn open(&self) {
        // SAFETY: the word lives as long as the gate.
        unsafe { self.0.write_volatile(1) };
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
        // SAFETY: allocated in `new`; freeing waits for the device.
        let _ = unsafe { sys::cuMemFreeHost(self.0.cast::<c_void>()) };
    }
}

/// Times pieces of work: some are put on the stream behind a closed gate, so that none waits for the host.
pub(crate) fn timed(
    stream: sys::CUstream,
    pieces: usize,
    run: &mut dyn FnMut(usize) -> Result<(), GpuError>,
) -> Result<Vec<f64>, GpuError> {
    let mut times = Vec::with_capacity(pieces);
    let marks = (0..=MAX_QUEUED.min(pieces)).map(|_| Event::new(true)).collect::<Result<Vec<_>, _>>()?;
    for from in (0..pieces).step_by(MAX_QUEUED) {
        let count = MAX_QUEUED.min(pieces - from);
        // Where the driver has no gates the times have the host's in them.
        let gate = Gate::new(stream).ok();
        let work = std::thread::scope(|scope| {
            let (done, late) = mpsc::channel::<()>();
            let gate = gate.as_ref();
            scope.spawn(move || {
                let _ = late.recv_timeout(GATE_TIMEOUT);
                if let Some(gate) = gate {
                    gate.open();
                }
            });
            let result = marks[0].record(stream).and_then(|()| {
                (0..count).try_for_each(|n| run(from + n).and_then(|()| marks[n + 1].record(stream)))
            });
            drop(done);
            result
        });
        work?;
        marks[count].wait()?;
        for n in 0..count {
            times.push(marks[n].seconds_until(&marks[n + 1])?);
        }
    }
    Ok(times)
}
