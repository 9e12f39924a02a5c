//! Products and linear algebra. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod einsum;
pub(in crate::ops) mod linalg;
pub(in crate::ops) mod linalg_solve;
pub(in crate::ops) mod linalg_spectrum;
pub(in crate::ops) mod linalg_util;
pub(in crate::ops) mod matmul;
pub(in crate::ops) mod matrix_norm;
pub(in crate::ops) mod scaled;
