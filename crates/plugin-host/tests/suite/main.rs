//! The tests of this crate, in one program: what the host accepts of a plugin. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod handshake;
