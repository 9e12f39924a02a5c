//! A second stream of a device, ordered with the first one by events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plugin_sdk::Stream;

use super::events::Event;
use super::{Handle, Vendor};
use crate::{GpuError, SideStream, Timed};

/// A stream that is destroyed with this value, and its events.
pub(super) struct Side<V: Vendor> {
    vendor: Arc<V>,
    stream: Handle,
    /// Where the device's stream was followed last.
    fork: Event<V>,
    marks: Vec<Event<V>>,
    /// The times of its work, while someone watches.
    watched: Mutex<Option<Watched<V>>>,
}

/// Marks whose times can be read.
struct Watched<V: Vendor> {
    /// Of work that has begun: where the device's stream was followed, and the beginning.
    open: Option<(Event<V>, Event<V>)>,
    /// The same with the end.
    done: Vec<(Event<V>, Event<V>, Event<V>)>,
}

impl<V: Vendor> Side<V> {
    /// A stream with so many marks, where the vendor has one.
    pub(super) fn new(vendor: &Arc<V>, marks: usize) -> Result<Option<Side<V>>, GpuError> {
        let fork = Event::new(vendor, false)?;
        let marks = (0..marks).map(|_| Event::new(vendor, false)).collect::<Result<_, GpuError>>()?;
        let stream = vendor.create_stream()?;
        Ok(stream.map(|stream| Side {
            vendor: Arc::clone(vendor),
            stream,
            fork,
            marks,
            watched: Mutex::new(None),
        }))
    }

    fn watched(&self) -> MutexGuard<'_, Option<Watched<V>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timed_mark(&self, stream: Handle) -> Result<Event<V>, GpuError> {
        let mark = Event::new(&self.vendor, true)?;
        mark.record(stream).map(|()| mark)
    }

    fn nth(&self, n: usize) -> Result<&Event<V>, GpuError> {
        self.marks.get(n).ok_or_else(|| GpuError::Malformed(format!("the stream has no mark {n}")))
    }
}

impl<V: Vendor> SideStream for Side<V> {
    fn stream(&self) -> Stream {
        Stream(self.stream.0)
    }

    fn follow(&self) -> Result<(), GpuError> {
        self.vendor.enter()?;
        self.fork.record(self.vendor.stream())?;
        let mut watched = self.watched();
        let followed = watched.as_ref().map(|_| self.timed_mark(self.vendor.stream())).transpose()?;
        self.fork.hold(self.stream)?;
        if let (Some(watched), Some(followed)) = (&mut *watched, followed) {
            watched.open = Some((followed, self.timed_mark(self.stream)?));
        }
        Ok(())
    }

    fn mark(&self, n: usize) -> Result<(), GpuError> {
        self.vendor.enter()?;
        if let Some(watched) = &mut *self.watched()
            && let Some((followed, begin)) = watched.open.take()
        {
            watched.done.push((followed, begin, self.timed_mark(self.stream)?));
        }
        self.nth(n)?.record(self.stream)
    }

    fn join(&self, n: usize) -> Result<(), GpuError> {
        self.vendor.enter()?;
        self.nth(n)?.hold(self.vendor.stream())
    }

    fn watch(&self, on: bool) {
        *self.watched() = on.then(|| Watched { open: None, done: Vec::new() });
    }

    fn spans(&self) -> Result<Vec<Timed>, GpuError> {
        self.vendor.enter()?;
        let watched = self.watched();
        let one = |(followed, begin, end): &(Event<V>, Event<V>, Event<V>)| {
            end.wait()?;
            Ok(Timed { begin: followed.seconds_to(begin)?, seconds: begin.seconds_to(end)? })
        };
        watched.iter().flat_map(|w| &w.done).map(one).collect()
    }
}

impl<V: Vendor> Drop for Side<V> {
    fn drop(&mut self) {
        if self.vendor.enter().is_ok() {
            self.vendor.destroy_stream(self.stream);
        }
    }
}
