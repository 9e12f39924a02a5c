//! Complex numbers as pairs of real ones, and composites on them. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod formula;
pub(in crate::ops) mod numbers;
pub(in crate::ops) mod prims;
pub(in crate::ops) mod scalar;
