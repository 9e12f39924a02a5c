//! A bounded map that forgets what was not used for longest. Small: what is forgotten is found by looking at all entries.

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// A map with a limit.
pub struct Lru<K, V> {
    entries: FxHashMap<K, (u64, V)>,
    limit: usize,
    clock: u64,
}

impl<K: Hash + Eq + Clone, V: Clone> Lru<K, V> {
    /// An empty map of at most `limit` entries.
    pub fn new(limit: usize) -> Lru<K, V> {
        Lru { entries: FxHashMap::default(), limit: limit.max(1), clock: 0 }
    }

    /// The entry of this key, which counts as used.
    pub fn get(&mut self, key: &K) -> Option<V> {
        self.clock += 1;
        let (used, value) = self.entries.get_mut(key)?;
        *used = self.clock;
        Some(value.clone())
    }

    /// Adds an entry; where there are too many, the one that was not used for longest goes.
    pub fn insert(&mut self, key: K, value: V) {
        self.clock += 1;
        self.entries.insert(key, (self.clock, value));
        if self.entries.len() > self.limit {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| key.clone());
            oldest.into_iter().for_each(|key| drop(self.entries.remove(&key)));
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::Lru;

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let mut map = Lru::new(2);
        map.insert(1, "a");
        map.insert(2, "b");
        assert_eq!(map.get(&1), Some("a"));
        map.insert(3, "c");
        assert_eq!((map.get(&1), map.get(&2), map.get(&3)), (Some("a"), None, Some("c")));
        assert_eq!(map.len(), 2);
    }
}
