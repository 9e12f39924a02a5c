//! The tests of this crate, in one program: what generated kernels say. A module a subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod texts;
