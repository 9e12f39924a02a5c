//! The tests of this crate in one binary, one module per subject: calls, arenas and recorded graphs over a driver that
//! only counts.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod calls;
mod common;
mod held;
mod lent_memory;
mod libraries;
