//! Composites element by element. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod activation;
pub(in crate::ops) mod binary;
pub(in crate::ops) mod compare;
pub(in crate::ops) mod convert;
pub(in crate::ops) mod foreach;
pub(in crate::ops) mod frexp;
pub(in crate::ops) mod gamma;
pub(in crate::ops) mod special;
pub(in crate::ops) mod unary;
