//! The tests of this crate, in one program: text, bytes and verifier of programs. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod common;
mod files;
mod golden;
mod plan;
mod roundtrip;
