//! What a program spends its time on: ranges of the host's time and the memory of calls, recorded while a [`Profiler`] runs, as
//! `torch.profiler` does.
//!
//! ```
//! use ferroflux::prelude::*;
//! use ferroflux::profiler::{Profiler, Schedule, record_function};
//!
//! let step = compile(|x: Tensor| x.exp().sum()).build()?;
//! let schedule = Schedule { wait: 1, warmup: 1, active: 2, repeat: 1, ..Schedule::default() };
//! let mut profiler = Profiler::new().schedule(schedule).start();
//! for _ in 0..5 {
//!     record_function("my step", || step.call(Tensor::ones(&[8])))?;
//!     profiler.step();
//! }
//! let trace = profiler.stop();
//! let averages = trace.key_averages();
//! assert_eq!(averages.get("my step").map(|a| a.calls), Some(2));
//! println!("{averages}");
//! # Ok::<(), ferroflux::Error>(())
//! ```
//!
//! Ranges are those of the compiler's stages, of guards and captures, of calls of compiled programs and their steps, and the
//! program's own ([`record_function`]); on a mesh also exchanges between ranks, with their bytes and axis. While something
//! records, a GPU runs a call launch by launch, so that each has its time.
//! [`Trace::chrome_json`] is the format of Chrome's and Perfetto's viewers. Not here: the report of a compiled program
//! ([`crate::report`]).

mod averages;
mod chrome;
mod events;
mod ranks;
mod schedule;

use std::collections::BTreeMap;
use std::path::Path;

pub use averages::{Average, Averages};
pub use events::{Category, DEVICE, Event, Exchange, STREAM};
pub(crate) use events::{Recording, memory, now, paused, span};
pub(crate) use ranks::{as_rank, joined, joins, of_process};
pub use schedule::{Action, Schedule};

use crate::Error;

/// Called with the trace of a cycle.
type Ready = Box<dyn FnMut(&Trace) + Send>;

/// A profiler that is to be started.
#[derive(Default)]
pub struct Profiler {
    schedule: Option<Schedule>,
    ready: Option<Ready>,
}

impl Profiler {
    /// One that records everything from its start to its end.
    pub fn new() -> Profiler {
        Profiler::default()
    }
    /// The same, which records the steps that a schedule says; [`Profiling::step`] ends a step.
    pub fn schedule(self, schedule: Schedule) -> Profiler {
        Profiler { schedule: Some(schedule), ..self }
    }
    /// The same with a function that gets the trace of each cycle of the schedule, or of the whole run.
    pub fn on_trace_ready(self, ready: impl FnMut(&Trace) + Send + 'static) -> Profiler {
        Profiler { ready: Some(Box::new(ready)), ..self }
    }
    /// Starts it.
    pub fn start(self) -> Profiling {
        let mut running = Profiling { profiler: self, step: 0, recording: None, last: Trace::default() };
        running.enter();
        running
    }
}

/// A profiler that runs.
pub struct Profiling {
    profiler: Profiler,
    step: u64,
    recording: Option<Recording>,
    last: Trace,
}

impl Profiling {
    /// What happens in the present step.
    pub fn action(&self) -> Action {
        self.profiler.schedule.map_or(Action::Record, |s| s.action(self.step))
    }

    /// Ends a step of the program.
    pub fn step(&mut self) {
        if self.action() == Action::RecordAndSave {
            self.save();
        }
        self.step += 1;
        self.enter();
    }

    /// Begins to record where the schedule says so.
    fn enter(&mut self) {
        match self.action() {
            Action::None => self.recording = None,
            Action::Warmup => self.recording = Some(Recording::begin()),
            Action::Record | Action::RecordAndSave => {
                let before = self.step.checked_sub(1).zip(self.profiler.schedule);
                // What was recorded while it warmed up is forgotten.
                let warmed = before.is_some_and(|(step, s)| s.action(step) == Action::Warmup);
                if self.recording.is_none() || warmed {
                    self.recording = Some(Recording::begin());
                }
            }
        }
    }

    fn save(&mut self) {
        let Some(recording) = self.recording.take() else { return };
        self.last = recording.end();
        if let Some(ready) = &mut self.profiler.ready {
            ready(&self.last);
        }
    }

    /// Ends it; gives what was recorded last.
    pub fn stop(mut self) -> Trace {
        if matches!(self.action(), Action::Record | Action::RecordAndSave) && self.recording.is_some() {
            self.save();
        }
        std::mem::take(&mut self.last)
    }
}

/// What a profiler has recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// In the order in which they ended.
    pub events: Vec<Event>,
    /// The ranks of a mesh that this process is, with their names.
    pub ranks: BTreeMap<usize, String>,
}

impl Trace {
    /// Without the events of other ranks.
    pub fn of_rank(mut self, rank: usize) -> Trace {
        self.events.retain(|e| e.rank.is_none_or(|other| other == rank));
        self.ranks.retain(|other, _| *other == rank);
        self
    }

    /// The times of ranges of the same name together.
    pub fn key_averages(&self) -> Averages {
        Averages::of(&self.events)
    }

    /// The events in the JSON that Chrome (`chrome://tracing`) and Perfetto (`ui.perfetto.dev`) read; each rank is a process there.
    pub fn chrome_json(&self) -> String {
        chrome::file(&[chrome::list(self)], None)
    }

    /// The entries of [`chrome_json`](Trace::chrome_json), separated by commas.
    pub(crate) fn chrome_list(&self) -> String {
        chrome::list(self)
    }

    /// Writes [`chrome_json`](Trace::chrome_json) to a file, whole or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn export_chrome_trace(&self, path: &Path) -> Result<(), Error> {
        let written = ir_core::write_whole(path, self.chrome_json().as_bytes());
        written.map_err(|source| Error::Io { path: path.to_owned(), source })
    }
}

/// The file of several processes' [`chrome_list`](Trace::chrome_list), whose clocks differ by at most so many nanoseconds.
pub(crate) fn chrome_of_all(lists: &[String], accuracy: u64) -> String {
    chrome::file(lists, Some(accuracy))
}

/// Runs `f` as a range of this name.
pub fn record_function<R>(name: &str, f: impl FnOnce() -> R) -> R {
    let _span = span(Category::User, || name.to_owned());
    f()
}
