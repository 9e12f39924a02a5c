//! The closed set: primitive operators. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod collective;
pub(in crate::ops) mod cover;
pub(in crate::ops) mod fourier;
pub(in crate::ops) mod grouped;
pub(in crate::ops) mod index;
pub(in crate::ops) mod integer;
pub(in crate::ops) mod linalg;
pub(in crate::ops) mod linalg_grad;
pub(in crate::ops) mod linalg_run;
pub(in crate::ops) mod movement;
pub(in crate::ops) mod reduce;
pub(in crate::ops) mod scalar;
pub(in crate::ops) mod shape;
pub(in crate::ops) mod sort;
pub(in crate::ops) mod special;
pub(in crate::ops) mod template;
pub(in crate::ops) mod value;
pub(in crate::ops) mod weights;
