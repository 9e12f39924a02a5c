//! The tests of this crate, in one program: the command as a user runs it, a process per test. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod cache;
mod command;
mod debugging;
mod documents;
mod plugin;
#[cfg(feature = "cpu")]
mod ranks;
mod train;
