//! The record of a failed check of an index: what generated code reports to, once for each call of a program. Knows no
//! program: sites are numbers.

use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

use super::check::{LANES, MASKED, SIZED};

/// Nothing has failed.
const NO_FAULT: u32 = 0;
/// One thread writes the record.
const WRITING: u32 = 1;
/// The record is written.
const WRITTEN: u32 = 2;

/// The first failed check of a call; later ones are not kept. All threads of the call share it.
#[derive(Default)]
pub(crate) struct Fault {
    state: AtomicU32,
    site: AtomicU32,
    index: AtomicI64,
    size: AtomicI64,
}

/// An index that is not within its dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfBounds {
    /// The program's site.
    pub(crate) site: u32,
    /// The index.
    pub(crate) index: i64,
    /// The size of the dimension.
    pub(crate) size: i64,
}

impl Fault {
    /// Whether a check has failed.
    pub(crate) fn is_set(&self) -> bool {
        self.state.load(Ordering::Relaxed) != NO_FAULT
    }

    /// The failed check, once the threads that ran kernels have returned.
    pub(crate) fn get(&self) -> Option<OutOfBounds> {
        (self.state.load(Ordering::Acquire) == WRITTEN).then(|| OutOfBounds {
            site: self.site.load(Ordering::Relaxed),
            index: self.index.load(Ordering::Relaxed),
            size: self.size.load(Ordering::Relaxed),
        })
    }

    fn set(&self, found: OutOfBounds) {
        if self.state.compare_exchange(NO_FAULT, WRITING, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return;
        }
        self.site.store(found.site, Ordering::Relaxed);
        self.index.store(found.index, Ordering::Relaxed);
        self.size.store(found.size, Ordering::Relaxed);
        self.state.store(WRITTEN, Ordering::Release);
    }
}

/// What generated code calls when a check has failed in a lane: `lanes` holds the indices of `form % 256` lanes, from
/// [`LANES`] on their masks (not zero where the lane counts) where `form` has [`MASKED`], and from twice that on the sizes, one
/// a lane where `form` has [`SIZED`], else one for all. `site` is a place in `sites`.
///
/// # Safety
/// The pointers are those of the function's table and frame.
pub(super) unsafe extern "C" fn report(
    fault: *const Fault,
    sites: *const u32,
    site: u64,
    lanes: *const i64,
    form: u64,
) {
    // SAFETY: generated code has filled as many numbers as it says.
    let at = |n: usize| unsafe { lanes.add(n).read() };
    let size = |lane: usize| at(2 * LANES + if form & SIZED != 0 { lane } else { 0 });
    let counts = |lane: usize| form & MASKED == 0 || at(LANES + lane) != 0;
    let failed = |lane: &usize| counts(*lane) && !(0..size(*lane)).contains(&at(*lane));
    let Some(lane) = (0..(form & 0xff) as usize).find(failed) else { return };
    // SAFETY: the executor's table has the record of the call and the list that the kernel's sites are numbered in.
    let (fault, site) = unsafe { (&*fault, *sites.add(site as usize)) };
    fault.set(OutOfBounds { site, index: at(lane), size: size(lane) });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_lane_that_counts_is_kept_and_the_first_report() {
        let mut lanes = [0i64; 3 * LANES];
        lanes[..4].copy_from_slice(&[-7, 2, 9, 5]);
        lanes[LANES..LANES + 4].copy_from_slice(&[0, -1, -1, -1]);
        lanes[2 * LANES] = 5;
        let (fault, sites) = (Fault::default(), [11, 12]);
        // SAFETY: the numbers are there.
        unsafe { report(&fault, sites.as_ptr(), 1, lanes.as_ptr(), 4 | MASKED) };
        assert_eq!(fault.get(), Some(OutOfBounds { site: 12, index: 9, size: 5 }));
        // SAFETY: as above.
        unsafe { report(&fault, sites.as_ptr(), 0, lanes.as_ptr(), 4) };
        assert_eq!(fault.get(), Some(OutOfBounds { site: 12, index: 9, size: 5 }));
    }
}
