//! The tests of this crate, in one program: what is fused, and what is written in place. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod exchanges;
mod files;
mod fusion;
mod in_place;
