//! Operators of captured programs that run on many devices. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod functional;
