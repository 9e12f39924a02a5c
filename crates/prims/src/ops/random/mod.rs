//! Random numbers. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod distributions;
pub(in crate::ops) mod fill;
