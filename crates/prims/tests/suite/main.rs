//! The tests of this crate, in one program: the operator table as a whole. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod complex;
mod decompose;
mod given;
mod recurrent;
mod semantics;
mod support;
mod symbolic;
mod table;
