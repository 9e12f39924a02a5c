//! The tests of this crate, in one program: offsets, sizes and the reading of tables. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod layout;
mod read;
