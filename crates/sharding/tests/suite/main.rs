//! The tests of this crate, in one program. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod graphs;
mod ranks;
mod rules;
mod training;
