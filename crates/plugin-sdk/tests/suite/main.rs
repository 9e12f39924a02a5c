//! The tests of this crate, in one program: a plugin from both sides of the table. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod artifacts;
mod calls;
mod common;
mod manifests;
mod minors;
mod older;
mod raw_table;
