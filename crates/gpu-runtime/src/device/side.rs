//! A second stream of a device, ordered with the first one by events.

use std::sync::Arc;

use plugin_sdk::Stream;

use super::events::Event;
use super::{Handle, Vendor};
use crate::{GpuError, SideStream};

/// A stream that is destroyed with this value, and its events.
pub(super) struct Side<V: Vendor> {
    vendor: Arc<V>,
    stream: Handle,
    /// Where the device's stream was followed last.
    fork: Event<V>,
    marks: Vec<Event<V>>,
}

impl<V: Vendor> Side<V> {
    /// A stream with so many marks, where the vendor has one.
    pub(super) fn new(vendor: &Arc<V>, marks: usize) -> Result<Option<Side<V>>, GpuError> {
        let fork = Event::new(vendor, false)?;
        let marks = (0..marks).map(|_| Event::new(vendor, false)).collect::<Result<_, GpuError>>()?;
        let stream = vendor.create_stream()?;
        Ok(stream.map(|stream| Side { vendor: Arc::clone(vendor), stream, fork, marks }))
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
        self.fork.hold(self.stream)
    }

    fn mark(&self, n: usize) -> Result<(), GpuError> {
        self.vendor.enter()?;
        self.nth(n)?.record(self.stream)
    }

    fn join(&self, n: usize) -> Result<(), GpuError> {
        self.vendor.enter()?;
        self.nth(n)?.hold(self.vendor.stream())
    }
}

impl<V: Vendor> Drop for Side<V> {
    fn drop(&mut self) {
        if self.vendor.enter().is_ok() {
            self.vendor.destroy_stream(self.stream);
        }
    }
}
