//! Owned device memory: of the allocator that the host's process has for the device, or else of a pool over the driver's.
//!
//! All work of a device runs in the order of its stream, so a freed block may be reused at once: its new owner's work
//! comes after that of the old owner.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plugin_sdk::{Host, Stream};

use crate::faults::{Unread, report_all};
use crate::{Driver, GpuError};

/// The smallest block, and the alignment of all addresses.
const GRAIN: u64 = 512;
/// Size classes per power of two: at most an eighth of a block is unused.
const STEPS: u64 = 8;
/// Larger blocks are multiples of a device page: weights are many and large, and little may be unused.
const LARGE: u64 = 16 << 20;
/// Bytes of a device page.
const PAGE: u64 = 2 << 20;

/// The memory of one device, from which all programs and tensors on it are allocated.
pub struct DeviceMemory<D: Driver> {
    driver: Arc<D>,
    host: Host,
    pool: Mutex<Pool>,
    exclusive: Mutex<()>,
    /// Streams of callers, which may read what was given to them.
    readers: Mutex<Vec<Stream>>,
    /// Programs with calls that nobody has waited for.
    pub(crate) unread: Unread<D>,
}

/// Unused blocks by size, and statistics.
#[derive(Default)]
struct Pool {
    free: BTreeMap<u64, Vec<u64>>,
    used: u64,
    peak: u64,
    reserved: u64,
    allocations: u64,
}

/// Statistics of a device's memory, in bytes; the host's allocator's part of it is counted as if the driver gave it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes of blocks in use.
    pub used: u64,
    /// Maximum of `used` so far.
    pub peak: u64,
    /// Bytes allocated from the driver, in use or not.
    pub reserved: u64,
    /// Number of allocations from the driver.
    pub allocations: u64,
}

impl<D: Driver> DeviceMemory<D> {
    /// Makes an empty pool over a device. Programs share memory if they share the pool.
    pub fn new(driver: Arc<D>) -> Arc<DeviceMemory<D>> {
        DeviceMemory::of_host(driver, Host::NONE)
    }

    /// The memory of a device that the host's allocator gives; that of a pool where it has none.
    pub fn of_host(driver: Arc<D>, host: Host) -> Arc<DeviceMemory<D>> {
        Arc::new(DeviceMemory {
            driver,
            host,
            pool: Mutex::default(),
            exclusive: Mutex::default(),
            readers: Mutex::default(),
            unread: Unread::default(),
        })
    }

    /// The device.
    pub fn driver(&self) -> &Arc<D> {
        &self.driver
    }

    /// The host whose allocator it asks first.
    pub fn host(&self) -> Host {
        self.host
    }

    /// Allocates a block of at least one byte, with arbitrary contents.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], after all unused memory was returned to the driver and the allocation was tried again;
    /// [`GpuError::HostOutOfMemory`] of the host's allocator.
    pub fn block(self: &Arc<Self>, bytes: u64) -> Result<Block<D>, GpuError> {
        self.block_for(bytes, self.driver.stream())
    }

    /// As [`block`](Self::block), for work that the caller orders with a stream of the driver: it comes after what the stream was
    /// given before the allocation, and before what it is given after the block is dropped.
    ///
    /// # Errors
    /// Those of [`block`](Self::block).
    pub(crate) fn block_for(self: &Arc<Self>, bytes: u64, stream: Stream) -> Result<Block<D>, GpuError> {
        let (memory, bytes) = (Arc::clone(self), bytes.max(1));
        if let Some(address) = self.of_hosts_allocator(bytes, stream)? {
            return Ok(Block { memory, address, size: bytes, bytes, lender: Some(stream) });
        }
        let size = if self.driver.pooled() { class(bytes) } else { bytes };
        let (size, address) = match self.take(size) {
            Some(found) => found,
            None => (size, self.allocate(size)?),
        };
        Ok(Block { memory, address, size, bytes, lender: None })
    }

    /// A block that a caller on this stream is given: work on the stream may read it until the block is dropped.
    ///
    /// # Errors
    /// Those of [`block`](Self::block).
    pub(crate) fn block_of_caller(
        self: &Arc<Self>,
        bytes: u64,
        stream: Stream,
    ) -> Result<Block<D>, GpuError> {
        let block = self.block_for(bytes, stream)?;
        if block.is_lent() && stream != self.driver.stream() {
            // The stream may have been given work that uses the memory since it was last waited for.
            self.driver.after(stream)?;
        }
        Ok(block)
    }

    /// Notes that work on a caller's stream may read what calls return.
    pub(crate) fn note_reader(&self, stream: Stream) {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if !readers.contains(&stream) {
            readers.push(stream);
        }
    }

    /// Makes the own stream wait for all callers' streams, before memory goes back that they may read.
    fn wait_for_readers(&self) {
        let readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // Memory that was given away is dropped by whoever has it.
        self.driver.keeping_device(&mut || {
            for stream in &readers {
                // A stream that is gone reads nothing.
                let _ = self.driver.after(*stream);
            }
        });
    }

    /// Memory of the host's allocator, where it has one for this device. No lock is held meanwhile: the allocator has its own.
    fn of_hosts_allocator(&self, bytes: u64, stream: Stream) -> Result<Option<u64>, GpuError> {
        if stream == Stream::DEFAULT {
            return Ok(None);
        }
        let device = self.driver.device();
        let full = |e: plugin_sdk::PluginError| GpuError::HostOutOfMemory { bytes, what: e.message };
        let address = match self.host.allocate_memory(device, bytes, stream) {
            Err(_) => {
                self.trim();
                let again = self.host.allocate_memory(device, bytes, stream);
                if again.is_err() {
                    // A device that is lost is the cause, and not the lack of memory.
                    self.driver.synchronize()?;
                }
                again.map_err(full)?
            }
            Ok(given) => given,
        };
        if address.is_some() {
            let mut pool = self.pool();
            pool.reserved += bytes;
            pool.allocations += 1;
            pool.count(bytes);
        }
        Ok(address)
    }

    /// Takes the smallest unused block that is not much larger than `size`.
    fn take(&self, size: u64) -> Option<(u64, u64)> {
        let mut pool = self.pool();
        // A much larger block is left for requests of its own size.
        let (&found, list) = pool.free.range_mut(size..=size + size / STEPS).next()?;
        let address = list.pop()?;
        if list.is_empty() {
            pool.free.remove(&found);
        }
        pool.count(found);
        Some((found, address))
    }

    fn allocate(&self, size: u64) -> Result<u64, GpuError> {
        let address = match self.driver.allocate(size) {
            Err(GpuError::OutOfMemory { .. }) => {
                self.trim();
                self.driver.allocate(size)
            }
            other => other,
        }?;
        let mut pool = self.pool();
        pool.reserved += size;
        pool.allocations += 1;
        pool.count(size);
        Ok(address)
    }

    /// Returns all unused memory to the driver, and the driver's to the system.
    pub fn trim(&self) {
        let free = std::mem::take(&mut self.pool().free);
        for (size, list) in free {
            self.pool().reserved -= size * list.len() as u64;
            list.into_iter().for_each(|address| self.driver.free(address));
        }
        self.driver.trim();
    }

    /// Returns the statistics.
    pub fn usage(&self) -> MemoryUsage {
        let pool = self.pool();
        MemoryUsage {
            used: pool.used,
            peak: pool.peak,
            reserved: pool.reserved,
            allocations: pool.allocations,
        }
    }

    /// Waits for all work so far.
    ///
    /// # Errors
    /// The driver's error for that work, and [`GpuError::Index`] where a call that nobody waited for found an index out of
    /// bounds.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let waited = self.unread.before_waiting();
        self.driver.synchronize()?;
        if waited.iter().any(|f| f.found()) {
            let _guard = self.exclusive();
            report_all(&waited)?;
        }
        Ok(())
    }

    /// Copies to the host, after all work so far. The errors are those of [`synchronize`](Self::synchronize).
    ///
    /// # Safety
    /// The conditions of [`Driver::download`]; the device's lock is held.
    pub(crate) unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError> {
        let waited = self.unread.before_waiting();
        // SAFETY: the caller guarantees both memory ranges.
        unsafe { self.driver.download(to, from, bytes)? };
        report_all(&waited)
    }

    /// The device's lock, held while a sequence of work is enqueued as a whole or recorded.
    pub(crate) fn exclusive(&self) -> MutexGuard<'_, ()> {
        self.exclusive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        // No code that holds this lock can panic between two writes.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pool {
    fn count(&mut self, size: u64) {
        self.used += size;
        self.peak = self.peak.max(self.used);
    }
}

impl<D: Driver> Drop for DeviceMemory<D> {
    fn drop(&mut self) {
        self.trim();
    }
}

/// The block size for a request of `bytes`.
fn class(bytes: u64) -> u64 {
    if bytes > LARGE {
        return bytes.next_multiple_of(PAGE);
    }
    let grains = bytes.max(1).div_ceil(GRAIN);
    let step = (grains.next_power_of_two() / 2 / STEPS).max(1);
    grains.next_multiple_of(step) * GRAIN
}

/// A block of device memory, returned to where it is from when dropped.
pub struct Block<D: Driver> {
    memory: Arc<DeviceMemory<D>>,
    address: u64,
    /// The size of the block.
    size: u64,
    /// The size that was requested.
    bytes: u64,
    /// The stream for which the host's allocator gave it; `None` for a block of the pool.
    lender: Option<Stream>,
}

impl<D: Driver> Block<D> {
    /// The address of its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }
    /// The requested length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Whether the host's allocator gave it, which others may want to use between two calls.
    pub(crate) fn is_lent(&self) -> bool {
        self.lender.is_some()
    }
    /// Whether it may be used in the order of a stream.
    pub(crate) fn serves(&self, stream: Stream) -> bool {
        self.lender.is_none_or(|lender| lender == stream)
    }
}

impl<D: Driver> Drop for Block<D> {
    fn drop(&mut self) {
        let mut pool = self.memory.pool();
        pool.used -= self.size;
        if let Some(stream) = self.lender {
            pool.reserved -= self.size;
            drop(pool);
            if stream == self.memory.driver.stream() {
                self.memory.wait_for_readers();
            }
            // SAFETY: it was given for this stream, and is given back once; the stream's order covers its work.
            unsafe { self.memory.host.free_memory(self.memory.driver.device(), self.address, stream) };
        } else if self.memory.driver.pooled() {
            pool.free.entry(self.size).or_default().push(self.address);
        } else {
            pool.reserved -= self.size;
            drop(pool);
            self.memory.driver.free(self.address);
        }
    }
}

/// The number of elements that sizes and strides span, `1 + Σ (size - 1) * stride`; 0 where a size is 0.
pub(crate) fn span(sizes: &[i64], strides: &[i64]) -> u64 {
    if sizes.contains(&0) {
        return 0;
    }
    1 + sizes.iter().zip(strides).map(|(n, s)| (n - 1) * s).sum::<i64>().max(0) as u64
}

/// Copies elements of `width` bytes from one layout to another.
///
/// # Safety
/// Both pointers are valid for every element of their layout.
pub(crate) unsafe fn copy_strided(
    width: usize,
    sizes: &[i64],
    from: (*const u8, &[i64]),
    to: (*mut u8, &[i64]),
) {
    let count: i64 = sizes.iter().product();
    let mut index = vec![0i64; sizes.len()];
    for _ in 0..count {
        let at = |strides: &[i64]| index.iter().zip(strides).map(|(i, s)| i * s).sum::<i64>() as isize;
        let (source, target) = (at(from.1) * width as isize, at(to.1) * width as isize);
        // SAFETY: the index is within the sizes, and the caller guarantees that both elements exist.
        unsafe { std::ptr::copy_nonoverlapping(from.0.offset(source), to.0.offset(target), width) };
        for d in (0..sizes.len()).rev() {
            index[d] += 1;
            if index[d] < sizes[d] {
                break;
            }
            index[d] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::class;

    #[test]
    fn size_classes_fit_and_waste_little() {
        for bytes in (0..100_000).chain([1 << 20, (1 << 20) + 1, 3 << 30, (7 << 33) + 5]) {
            let size = class(bytes);
            assert!(size >= bytes.max(1) && size.is_multiple_of(512), "{bytes}: {size}");
            assert!(size <= bytes + bytes / 8 + 512, "{bytes}: {size}");
            assert_eq!(class(size), size, "a class is its own class");
        }
    }
}
