//! The tests of this crate, in one program: the command as a user runs it, a process a test. A module a subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod cache;
mod command;
mod plugin;
mod train;
