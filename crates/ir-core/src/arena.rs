//! Typed arenas: a `Vec` whose index is a distinct `u32` newtype, so that a node id cannot index a buffer table.
//!
//! Not a slab: entries are never removed, ids stay valid for the life of the arena.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

/// A typed index into an [`Arena`]. Made by [`define_id!`](crate::define_id).
pub trait EntityId: Copy + Eq {
    /// The id of entry number `index`.
    fn from_index(index: usize) -> Self;
    /// The entry number.
    fn index(self) -> usize;
}

/// Defines a `u32` id type: `define_id!(/** doc */ pub struct NodeId, "n");` prints as `n7`.
#[macro_export]
macro_rules! define_id {
    ($(#[$doc:meta])* pub struct $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $crate::EntityId for $name {
            fn from_index(index: usize) -> Self {
                // 2^32 entities of one graph would not fit in memory first.
                $name(u32::try_from(index).unwrap_or(u32::MAX))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

/// A growable table indexed by the id type `I`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Arena<I, T> {
    items: Vec<T>,
    #[serde(skip)]
    id: PhantomData<fn() -> I>,
}

impl<I, T> Default for Arena<I, T> {
    fn default() -> Self {
        Arena { items: Vec::new(), id: PhantomData }
    }
}

impl<I: EntityId, T> Arena<I, T> {
    /// An empty arena.
    pub fn new() -> Self {
        Self::default()
    }
    /// Appends `item` and returns its id.
    pub fn push(&mut self, item: T) -> I {
        self.items.push(item);
        I::from_index(self.items.len() - 1)
    }
    /// The id that the next [`push`](Self::push) returns.
    pub fn next_id(&self) -> I {
        I::from_index(self.items.len())
    }
    /// The entry, or `None` where `id` is not of this arena.
    pub fn get(&self, id: I) -> Option<&T> {
        self.items.get(id.index())
    }
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// Ids and entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (I, &T)> + ExactSizeIterator {
        self.items.iter().enumerate().map(|(i, t)| (I::from_index(i), t))
    }
    /// Ids and entries in order, mutable.
    pub fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = (I, &mut T)> {
        self.items.iter_mut().enumerate().map(|(i, t)| (I::from_index(i), t))
    }
    /// All ids in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = I> + ExactSizeIterator + use<I, T> {
        (0..self.items.len()).map(I::from_index)
    }
    /// The entries alone.
    pub fn values(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }
}

impl<I: EntityId, T> Index<I> for Arena<I, T> {
    type Output = T;
    fn index(&self, id: I) -> &T {
        &self.items[id.index()]
    }
}

impl<I: EntityId, T> IndexMut<I> for Arena<I, T> {
    fn index_mut(&mut self, id: I) -> &mut T {
        &mut self.items[id.index()]
    }
}

impl<I, T> FromIterator<T> for Arena<I, T> {
    fn from_iter<It: IntoIterator<Item = T>>(iter: It) -> Self {
        Arena { items: iter.into_iter().collect(), id: PhantomData }
    }
}

impl<I: EntityId + std::fmt::Debug, T: std::fmt::Debug> std::fmt::Debug for Arena<I, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
