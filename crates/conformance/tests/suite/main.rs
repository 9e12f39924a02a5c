//! The tests of this crate, in one program: the judge judged. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod broken;
mod stress;
