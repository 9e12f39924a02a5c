//! Fourier transforms and windows. What each file has is said at its head; this one only lists them.

pub(in crate::ops) mod fft;
pub(in crate::ops) mod fft_fast;
pub(in crate::ops) mod fft_pairs;
pub(in crate::ops) mod signal;
