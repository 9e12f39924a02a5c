//! The tests of this crate, in one program: functionalization, the joint graph and its halves, autocast, transforms, judged by the interpreter. A module a subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod control;
mod corpus;
mod files;
mod gradients;
mod halves;
mod joint;
mod oracle;
mod partition;
mod passes;
mod pooling;
mod random;
mod surrogate_gradients;
mod training;
mod transforms;
mod values;
