//! The tests of this crate in one binary, one module per subject: properties of generated kernels, and the cost model.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod costs;
mod texts;
