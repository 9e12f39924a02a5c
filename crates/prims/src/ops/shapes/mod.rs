//! Composites that make, move and join tensors. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod bits;
pub(in crate::ops) mod core_forms;
pub(in crate::ops) mod creation;
pub(in crate::ops) mod diagonal;
pub(in crate::ops) mod gradient;
pub(in crate::ops) mod join;
pub(in crate::ops) mod pad;
pub(in crate::ops) mod sequence;
pub(in crate::ops) mod shape;
pub(in crate::ops) mod view;
