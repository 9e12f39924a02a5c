//! Rules by which primitive operators take a batch dimension. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod conv;
pub(in crate::ops) mod grouped;
pub(in crate::ops) mod rules;
