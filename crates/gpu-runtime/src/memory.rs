//! Device memory with an owner, and the pool that it comes from and goes back to.
//!
//! All work of a device runs in the order in which it was put on its stream. So a block that is given back may be taken
//! again at once: whoever takes it writes it after whoever gave it back has read it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::faults::{Unread, report_all};
use crate::{Driver, GpuError};

/// The smallest block, and what all addresses are multiples of.
const GRAIN: u64 = 512;
/// Steps of size classes for each power of two: at most an eighth of a block is unused.
const STEPS: u64 = 8;
/// Larger blocks are multiples of a page of the device: weights are many and large, and hardly anything may be unused.
const LARGE: u64 = 16 << 20;
/// A page of the device.
const PAGE: u64 = 2 << 20;

/// The memory of one device: whatever the programs and tensors on it need comes from here.
pub struct DeviceMemory<D: Driver> {
    driver: Arc<D>,
    pool: Mutex<Pool>,
    exclusive: Mutex<()>,
    /// Programs with calls that nobody has waited for.
    pub(crate) unread: Unread<D>,
}

/// Blocks that nobody uses, by size, and sums.
#[derive(Default)]
struct Pool {
    free: BTreeMap<u64, Vec<u64>>,
    used: u64,
    peak: u64,
    reserved: u64,
    allocations: u64,
}

/// Sums over a device's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Of blocks in use.
    pub used: u64,
    /// The most that were in use at once.
    pub peak: u64,
    /// Had from the driver, in use or not.
    pub reserved: u64,
    /// How often the driver was asked for memory.
    pub allocations: u64,
}

impl<D: Driver> DeviceMemory<D> {
    /// An empty pool over a device. One a device: programs that share it share its memory.
    pub fn new(driver: Arc<D>) -> Arc<DeviceMemory<D>> {
        Arc::new(DeviceMemory {
            driver,
            pool: Mutex::default(),
            exclusive: Mutex::default(),
            unread: Unread::default(),
        })
    }

    /// The device.
    pub fn driver(&self) -> &Arc<D> {
        &self.driver
    }

    /// A block of at least one byte; its contents are whatever was there.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], after all unused memory was given back to the driver and asked for again.
    pub fn block(self: &Arc<Self>, bytes: u64) -> Result<Block<D>, GpuError> {
        let size = if self.driver.pooled() { class(bytes) } else { bytes.max(1) };
        let address = match self.take(size) {
            Some(found) => found,
            None => (size, self.allocate(size)?),
        };
        Ok(Block { memory: Arc::clone(self), size: address.0, address: address.1, bytes: bytes.max(1) })
    }

    /// The smallest unused block that is not much larger than `size`.
    fn take(&self, size: u64) -> Option<(u64, u64)> {
        let mut pool = self.pool();
        // A larger block would be missing where its own size is asked for next.
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

    /// Gives all unused memory back to the driver, and the driver's to the system.
    pub fn trim(&self) {
        let free = std::mem::take(&mut self.pool().free);
        for (size, list) in free {
            self.pool().reserved -= size * list.len() as u64;
            list.into_iter().for_each(|address| self.driver.free(address));
        }
        self.driver.trim();
    }

    /// Sums.
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
    /// What the driver says of that work, and [`GpuError::Index`] where a call that nobody waited for met an index that is
    /// out of bounds.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        let waited = self.unread.before_waiting();
        self.driver.synchronize()?;
        if waited.iter().any(|f| f.found()) {
            let _guard = self.exclusive();
            report_all(&waited)?;
        }
        Ok(())
    }

    /// Copies to the host, after all work so far; errors are those of [`synchronize`](Self::synchronize).
    ///
    /// # Safety
    /// As for [`Driver::download`]; the turn is held.
    pub(crate) unsafe fn download(&self, to: *mut u8, from: u64, bytes: usize) -> Result<(), GpuError> {
        let waited = self.unread.before_waiting();
        // SAFETY: the caller's promise.
        unsafe { self.driver.download(to, from, bytes)? };
        report_all(&waited)
    }

    /// Whoever puts more on the stream than one call, or records it, holds this meanwhile.
    pub(crate) fn exclusive(&self) -> MutexGuard<'_, ()> {
        self.exclusive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        // Nothing in here panics half way.
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

/// The size of the block that serves `bytes`.
fn class(bytes: u64) -> u64 {
    if bytes > LARGE {
        return bytes.next_multiple_of(PAGE);
    }
    let grains = bytes.max(1).div_ceil(GRAIN);
    let step = (grains.next_power_of_two() / 2 / STEPS).max(1);
    grains.next_multiple_of(step) * GRAIN
}

/// A block of device memory, back in its pool when dropped.
pub struct Block<D: Driver> {
    memory: Arc<DeviceMemory<D>>,
    address: u64,
    /// Of the block itself.
    size: u64,
    /// Asked for.
    bytes: u64,
}

impl<D: Driver> Block<D> {
    /// Its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }
    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<D: Driver> Drop for Block<D> {
    fn drop(&mut self) {
        let mut pool = self.memory.pool();
        pool.used -= self.size;
        if self.memory.driver.pooled() {
            pool.free.entry(self.size).or_default().push(self.address);
        } else {
            pool.reserved -= self.size;
            drop(pool);
            self.memory.driver.free(self.address);
        }
    }
}

/// Elements that sizes and strides span, `1 + Σ (size - 1) * stride`; 0 where a size is 0.
pub(crate) fn span(sizes: &[i64], strides: &[i64]) -> u64 {
    if sizes.contains(&0) {
        return 0;
    }
    1 + sizes.iter().zip(strides).map(|(n, s)| (n - 1) * s).sum::<i64>().max(0) as u64
}

/// Copies elements of `width` bytes from one layout to another.
///
/// # Safety
/// Both pointers address every element of their layout.
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
        // SAFETY: the index is inside of the sizes, so both elements exist, by the caller's promise.
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
    fn classes_hold_what_is_asked_for_and_waste_little() {
        for bytes in (0..100_000).chain([1 << 20, (1 << 20) + 1, 3 << 30, (7 << 33) + 5]) {
            let size = class(bytes);
            assert!(size >= bytes.max(1) && size.is_multiple_of(512), "{bytes}: {size}");
            assert!(size <= bytes + bytes / 8 + 512, "{bytes}: {size}");
            assert_eq!(class(size), size, "a class is its own class");
        }
    }
}
