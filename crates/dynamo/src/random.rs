//! Keys of random numbers. A recorded call that draws random numbers has a key of its own, so that it draws the same however
//! often it is computed: once for a value and once more for its gradient. How numbers follow from a key is in `prims`.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};

use tensor::formula;

/// Seed and number of keys drawn so far.
static STATE: Mutex<Option<(u64, u64)>> = Mutex::new(None);

/// Fixes the random numbers of all calls that this process records from now on, as `torch.manual_seed`.
pub fn manual_seed(seed: u64) {
    *STATE.lock().unwrap_or_else(PoisonError::into_inner) = Some((seed, 0));
}

/// The next key.
pub(crate) fn next_key() -> u64 {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    // The keys of a `RandomState` are the standard library's only source of randomness.
    let (seed, count) = state.get_or_insert_with(|| (RandomState::new().hash_one(0u8), 0));
    *count += 1;
    formula::splitmix64(*seed ^ formula::splitmix64(*count))
}
