//! Numbers of things by their identity. Not here: what the things are.

use std::hash::Hash;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// So many are looked through one by one, which takes less time than hashing and allocating a table does.
const FEW: usize = 16;

/// A number for each key.
pub(crate) struct Places<K> {
    few: SmallVec<[(K, usize); FEW]>,
    /// All of them, once they are more.
    many: FxHashMap<K, usize>,
}

impl<K> Default for Places<K> {
    fn default() -> Places<K> {
        Places { few: SmallVec::new(), many: FxHashMap::default() }
    }
}

impl<K: Copy + Eq + Hash> Places<K> {
    pub(crate) fn get(&self, key: &K) -> Option<usize> {
        match self.many.is_empty() {
            true => self.few.iter().find(|(k, _)| k == key).map(|(_, n)| *n),
            false => self.many.get(key).copied(),
        }
    }

    /// Sets the number of a key, and gives the one that it had.
    pub(crate) fn insert(&mut self, key: K, number: usize) -> Option<usize> {
        if !self.many.is_empty() {
            return self.many.insert(key, number);
        }
        if let Some((_, old)) = self.few.iter_mut().find(|(k, _)| *k == key) {
            return Some(std::mem::replace(old, number));
        }
        match self.few.len() < FEW {
            true => self.few.push((key, number)),
            false => self.many = self.few.drain(..).chain([(key, number)]).collect(),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_found() {
        let mut places = Places::default();
        for n in 0..3 * FEW {
            assert_eq!(places.get(&n), None);
            assert_eq!(places.insert(n, n + 7), None);
            assert_eq!(places.insert(n, 2 * n), Some(n + 7));
            assert!((0..=n).all(|k| places.get(&k) == Some(2 * k)), "after {n}");
        }
    }
}
