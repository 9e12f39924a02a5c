//! The tests of this crate, in one program: archives as they are written, and as a stranger might write them. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod common;
mod corpus;
mod goldens;
mod hostile;
mod shipped;
mod written;
