//! The tests of this crate, in one program: calls, arenas and recorded graphs over a driver that only counts. A module a subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod calls;
mod common;
mod libraries;
