//! Gradient rules of primitive operators, and composites that PyTorch has for backward passes. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod attention;
pub(in crate::ops) mod backward;
pub(in crate::ops) mod grouped;
pub(in crate::ops) mod index;
pub(in crate::ops) mod movement;
pub(in crate::ops) mod reverse;
pub(in crate::ops) mod scalar;
pub(in crate::ops) mod shape;
pub(in crate::ops) mod template;
