//! What libraries of convolutions keep for the life of a device: plans by what they were made for, and a workspace that grows.
//!
//! Not here: what plans are.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use crate::GpuError;

/// Maximum number of kept values; all are dropped when it is exceeded.
const MAX_KEPT: usize = 1024;
/// Minimum bytes of a workspace allocation, so that it grows rarely.
const MIN_WORKSPACE: u64 = 32 << 20;

/// Values that are dear to make, by what they were made for.
pub struct Kept<K, V>(Mutex<HashMap<K, Arc<V>>>);

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Kept(Mutex::default())
    }
}

impl<K: Eq + Hash, V> Kept<K, V> {
    /// The value that was kept for a key.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Keeps a value.
    pub fn put(&self, key: K, value: V) -> Arc<V> {
        let value = Arc::new(value);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_KEPT {
            all.clear();
        }
        all.insert(key, Arc::clone(&value));
        value
    }
}

/// Device memory that the calls of one stream use one after another. It grows; earlier blocks are never freed, since recorded
/// work contains their addresses.
#[derive(Debug, Default)]
pub struct GrowingWorkspace {
    /// The address and the bytes of the present block.
    block: Mutex<(u64, u64)>,
}

impl GrowingWorkspace {
    /// The address of the present block; 0 where nothing was reserved.
    pub fn address(&self) -> u64 {
        self.block.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Makes sure that it has at least this many bytes. `allocate` gives the address of a block of so many bytes.
    ///
    /// # Errors
    /// The device has no memory left for it.
    pub fn reserve(
        &self,
        bytes: u64,
        allocate: impl FnOnce(u64) -> Result<u64, GpuError>,
    ) -> Result<(), GpuError> {
        let mut block = self.block.lock().unwrap_or_else(PoisonError::into_inner);
        if block.1 < bytes {
            let most = bytes.checked_next_power_of_two().unwrap_or(bytes).max(MIN_WORKSPACE);
            *block = (allocate(most)?, most);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_workspace_grows_and_stays() {
        let workspace = GrowingWorkspace::default();
        workspace.reserve(0, |_| panic!("nothing is wanted")).unwrap();
        workspace.reserve(1, |bytes| Ok(bytes + 1)).unwrap();
        assert_eq!(workspace.address(), MIN_WORKSPACE + 1);
        workspace.reserve(MIN_WORKSPACE, |_| panic!("there is enough")).unwrap();
        let full = |_| Err(GpuError::OutOfMemory { bytes: 1, free: 0, total: 0 });
        assert!(workspace.reserve(MIN_WORKSPACE + 1, full).is_err());
        assert_eq!(workspace.address(), MIN_WORKSPACE + 1);
        workspace.reserve(MIN_WORKSPACE + 1, |bytes| Ok(bytes + 2)).unwrap();
        assert_eq!(workspace.address(), 2 * MIN_WORKSPACE + 2);
    }

    #[test]
    fn values_are_kept_until_there_are_too_many() {
        let kept = Kept::default();
        (0..MAX_KEPT).for_each(|n| drop(kept.put(n, n)));
        assert_eq!(kept.get(&1).as_deref(), Some(&1));
        assert_eq!(*kept.put(MAX_KEPT, 7), 7);
        assert_eq!((kept.get(&1), kept.get(&MAX_KEPT).as_deref()), (None, Some(&7)));
    }
}
