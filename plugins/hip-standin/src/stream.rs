//! Streams: work that waits until something waits for it, events among it, and what is recorded instead of waiting.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpu_runtime::{Driver, Grid};

use crate::blas::Multiplication;
use crate::convolution::Convolution;
use crate::device::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, UNKNOWN};
use crate::module::Kernel;
use crate::state::{CURRENT, Opaque, State, give, opaque, with};

/// How long a stream waits for a word of memory.
const PATIENCE: Duration = Duration::from_secs(20);

/// A piece of work.
#[derive(Clone)]
pub(crate) enum Work {
    Launch {
        kernel: Arc<Kernel>,
        grid: Grid,
        words: Vec<u64>,
    },
    /// `kind` is `hipMemcpyKind`.
    Copy {
        to: u64,
        from: u64,
        bytes: usize,
        kind: c_int,
    },
    Fill {
        to: u64,
        word: u32,
        words: u64,
    },
    Free {
        address: u64,
    },
    /// A product of hipBLASLt or rocBLAS.
    Multiply(Multiplication),
    /// A convolution of MIOpen.
    Convolve(Convolution),
    /// An event's setting of this number.
    Mark {
        event: usize,
        number: u64,
    },
    /// Waits for an event's setting of this number.
    Wait {
        event: usize,
        number: u64,
    },
    /// Waits for a word.
    Word {
        address: u64,
        value: u32,
    },
}

/// A stream of a device.
pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) work: VecDeque<Work>,
    /// What is recorded instead.
    pub(crate) recording: Option<Vec<Work>>,
    /// The node that was recorded last, where callers read it.
    pub(crate) last: Box<usize>,
}

/// A mark on a stream.
#[derive(Default)]
pub(crate) struct Event {
    stream: usize,
    /// How often it was set, and the last setting that was passed.
    set: u64,
    passed: u64,
    time: Option<Instant>,
}

impl State {
    /// Puts work on a stream.
    pub(crate) fn put(&mut self, stream: Opaque, work: Work) -> Result<(), c_int> {
        let stream = self.stream(stream)?;
        let device = stream.device;
        match &mut stream.recording {
            Some(nodes) => {
                nodes.push(work);
                // Nodes are numbered from 1: null is none.
                *stream.last = nodes.len();
            }
            None => stream.work.push_back(work),
        }
        self.devices[device].answers()
    }

    /// Does the work of a stream, up to an event's setting where one is named.
    pub(crate) fn run(&mut self, stream: usize, until: Option<(usize, u64)>) -> Result<(), c_int> {
        loop {
            let passed = |state: &State, (event, number): (usize, u64)| {
                state.events.get(&event).is_none_or(|e| e.passed >= number)
            };
            if until.is_some_and(|until| passed(self, until)) {
                return Ok(());
            }
            let Some(this) = self.streams.get_mut(&stream) else { return Ok(()) };
            let device = this.device;
            let Some(work) = this.work.pop_front() else { return self.devices[device].answers() };
            self.perform(device, work)?;
        }
    }

    fn perform(&mut self, device: usize, work: Work) -> Result<(), c_int> {
        let here = &mut self.devices[device];
        match work {
            Work::Launch { kernel, grid, words } => {
                // SAFETY: whoever launched it vouches for the arguments.
                unsafe { here.launch(&kernel, grid, &words) }
            }
            Work::Copy { to, from, bytes, kind } => {
                let emulator = &here.emulator;
                // SAFETY: whoever copies vouches for the host's memory; the emulator checks the device's.
                let done = unsafe {
                    match kind {
                        1 => emulator.upload(to, from as *const u8, bytes),
                        2 => emulator.download(to as *mut u8, from, bytes),
                        _ => emulator.copy(to, from, bytes as u64),
                    }
                };
                here.outcome(done)
            }
            Work::Fill { to, word, words } => {
                // SAFETY: the emulator checks the memory.
                let done = unsafe { here.emulator.fill(to, word, words) };
                here.outcome(done)
            }
            Work::Free { address } => here.free(address),
            Work::Multiply(multiplication) => {
                // SAFETY: whoever put it there vouches for the matrices.
                unsafe { multiplication.run() };
                Ok(())
            }
            Work::Convolve(convolution) => {
                // SAFETY: whoever put it there vouches for the tensors.
                unsafe { convolution.run() };
                Ok(())
            }
            Work::Mark { event, number } => {
                if let Some(event) = self.events.get_mut(&event) {
                    (event.passed, event.time) = (event.passed.max(number), Some(Instant::now()));
                }
                Ok(())
            }
            Work::Wait { event, number } => {
                let stream = self.events.get(&event).map(|e| e.stream);
                stream.map_or(Ok(()), |stream| self.run(stream, Some((event, number))))
            }
            Work::Word { address, value } => wait_for(address as *const u32, value),
        }
    }

    /// Does all work of all streams, as calls do that wait for the device.
    pub(crate) fn run_all(&mut self) -> Result<(), c_int> {
        let streams: Vec<usize> = self.streams.keys().copied().collect();
        streams.into_iter().try_for_each(|stream| self.run(stream, None))
    }
}

fn wait_for(word: *const u32, value: u32) -> Result<(), c_int> {
    let begun = Instant::now();
    // SAFETY: whoever waits vouches for the word.
    while unsafe { word.read_volatile() } != value {
        if begun.elapsed() > PATIENCE {
            return Err(UNKNOWN);
        }
        std::thread::yield_now();
    }
    Ok(())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipStreamCreateWithFlags(stream: *mut Opaque, _flags: c_uint) -> c_int {
    with(|state| {
        state.device()?.answers()?;
        let handle = state.handle();
        let last = Box::new(0);
        let device = CURRENT.get();
        state.streams.insert(handle, Stream { device, work: VecDeque::new(), recording: None, last });
        // SAFETY: the caller's pointer.
        unsafe { give(stream, opaque(handle)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamSynchronize(stream: Opaque) -> c_int {
    with(|state| {
        if state.stream(stream)?.recording.is_some() {
            return Err(crate::device::CAPTURE_UNSUPPORTED);
        }
        state.run(stream as usize, None)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamWaitEvent(stream: Opaque, event: Opaque, _flags: c_uint) -> c_int {
    with(|state| {
        let event = event as usize;
        let number = state.events.get(&event).ok_or(INVALID_HANDLE)?.set;
        state.put(stream, Work::Wait { event, number })
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipStreamWaitValue32(
    stream: Opaque,
    address: *mut c_void,
    value: u32,
    flags: c_uint,
    _mask: u32,
) -> c_int {
    // Equality alone.
    if flags != 1 {
        return INVALID_VALUE;
    }
    with(|state| state.put(stream, Work::Word { address: address as u64, value }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipEventCreateWithFlags(event: *mut Opaque, _flags: c_uint) -> c_int {
    with(|state| {
        state.device()?.answers()?;
        let handle = state.handle();
        state.events.insert(handle, Event::default());
        // SAFETY: the caller's pointer.
        unsafe { give(event, opaque(handle)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventDestroy(event: Opaque) -> c_int {
    with(|state| {
        // What waits for it still does.
        let event = event as usize;
        if let Some((stream, number)) = state.events.get(&event).map(|e| (e.stream, e.set)) {
            let _ = state.run(stream, Some((event, number)));
        }
        state.events.remove(&event).map(|_| ()).ok_or(INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventRecord(event: Opaque, stream: Opaque) -> c_int {
    with(|state| {
        let handle = event as usize;
        let event = state.events.get_mut(&handle).ok_or(INVALID_HANDLE)?;
        event.set += 1;
        event.stream = stream as usize;
        let number = event.set;
        state.put(stream, Work::Mark { event: handle, number })
    })
}

#[unsafe(no_mangle)]
extern "C" fn hipEventSynchronize(event: Opaque) -> c_int {
    with(|state| {
        let handle = event as usize;
        let event = state.events.get(&handle).ok_or(INVALID_HANDLE)?;
        let (stream, number) = (event.stream, event.set);
        if number == 0 { Ok(()) } else { state.run(stream, Some((handle, number))) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hipEventElapsedTime(ms: *mut f32, from: Opaque, to: Opaque) -> c_int {
    with(|state| {
        let time = |event: Opaque| {
            let event = state.events.get(&(event as usize)).ok_or(INVALID_HANDLE)?;
            event.time.filter(|_| event.passed == event.set).ok_or(NOT_READY)
        };
        let between = time(to)?.saturating_duration_since(time(from)?);
        // SAFETY: the caller's pointer.
        unsafe { give(ms, between.as_secs_f32() * 1e3) }
    })
}
