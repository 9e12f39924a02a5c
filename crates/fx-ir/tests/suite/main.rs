//! The tests of this crate, in one program: text, verifier and drawings of graphs. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod common;
mod draw;
mod files;
mod roundtrip;
