//! Composites that read and write by index, order and select. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod dynamic;
pub(in crate::ops) mod embedding_bag;
pub(in crate::ops) mod index;
pub(in crate::ops) mod sampling;
pub(in crate::ops) mod scatter;
pub(in crate::ops) mod select;
pub(in crate::ops) mod slice;
pub(in crate::ops) mod sort;
pub(in crate::ops) mod unique;
pub(in crate::ops) mod unique_dim;
