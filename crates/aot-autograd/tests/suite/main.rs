//! The tests of this crate, in one program: functionalization, the joint graph and its halves, autocast, batch norm in groups, transforms, judged by the interpreter. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod batch_groups;
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
