//! Which ranks of a mesh this process is, on which of them a thread works, and the time that all ranks have in common. Ranks are
//! told when they join; until then, and where a process exchanges without this crate, a launcher's variables say which rank it is. How
//! clocks are compared is not here (`mesh::clock`).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::mesh::Place;

static RANKS: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());
/// Nanoseconds to be added to this process's clock.
static SHIFT: AtomicU64 = AtomicU64::new(0);
/// Whether ranks are of several processes.
static SEVERAL: AtomicBool = AtomicBool::new(false);
/// How often a rank has joined.
static JOINS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static RANK: Cell<Option<usize>> = const { Cell::new(None) };
}

fn ranks() -> MutexGuard<'static, BTreeMap<usize, String>> {
    RANKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rank has joined on this thread, which is the rank's from now on; `shift` is the difference of the clocks, where it was
/// measured: that is where ranks are of several processes.
pub(crate) fn joined(rank: usize, name: String, shift: Option<u64>) {
    ranks().insert(rank, name);
    JOINS.fetch_add(1, Ordering::Relaxed);
    SEVERAL.store(shift.is_some(), Ordering::Relaxed);
    if let Some(shift) = shift {
        SHIFT.store(shift, Ordering::Relaxed);
    }
    RANK.set(Some(rank));
}

/// The rank of this process, the first of them, where there are several processes.
pub(crate) fn of_process() -> Option<usize> {
    if SEVERAL.load(Ordering::Relaxed) { ranks().keys().next().copied() } else { launched() }
}

/// How often ranks have joined in this process.
pub(crate) fn joins() -> u64 {
    JOINS.load(Ordering::Relaxed)
}

/// The rank that a launcher has made of this process, one of several, where none has joined.
fn launched() -> Option<usize> {
    if joins() > 0 {
        return None;
    }
    Place::from_environment().filter(|place| place.size > 1).map(|place| place.rank)
}

/// The names of the ranks of this process.
pub(super) fn names() -> BTreeMap<usize, String> {
    match launched() {
        Some(rank) => BTreeMap::from([(rank, format!("rank {rank}"))]),
        None => ranks().clone(),
    }
}

/// A time of this process's clock on the one that all ranks have in common.
pub(super) fn common(nanos: u64) -> u64 {
    nanos.saturating_add(SHIFT.load(Ordering::Relaxed))
}

/// The rank whose work the thread does.
pub(super) fn of_thread() -> Option<usize> {
    RANK.get()
}

/// Until it is dropped the thread does the work of a rank.
pub(crate) struct AsRank(Option<usize>);

/// The thread begins to do the work of a rank.
pub(crate) fn as_rank(rank: usize) -> AsRank {
    AsRank(RANK.replace(Some(rank)))
}

impl Drop for AsRank {
    fn drop(&mut self) {
        RANK.set(self.0);
    }
}
