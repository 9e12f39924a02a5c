//! Composites that reduce or scan dimensions. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod cumulative;
pub(in crate::ops) mod histogram;
pub(in crate::ops) mod mode;
pub(in crate::ops) mod quantile;
pub(in crate::ops) mod reduction;
pub(in crate::ops) mod segment;
pub(in crate::ops) mod softmax;
pub(in crate::ops) mod statistics;
