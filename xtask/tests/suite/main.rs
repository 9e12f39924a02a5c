//! The tests of this crate, in one program: the commands as they are run. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod corpus;
