//! Device memory with an owner.

use std::sync::Arc;

use crate::{Driver, GpuError};

/// A block of device memory, freed when dropped.
pub struct Block<D: Driver> {
    driver: Arc<D>,
    address: u64,
    bytes: u64,
}

impl<D: Driver> Block<D> {
    /// A block of at least one byte.
    pub fn new(driver: &Arc<D>, bytes: u64) -> Result<Block<D>, GpuError> {
        let bytes = bytes.max(1);
        Ok(Block { driver: Arc::clone(driver), address: driver.allocate(bytes)?, bytes })
    }
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
        self.driver.free(self.address);
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
