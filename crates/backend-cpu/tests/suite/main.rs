//! The tests of this crate, in one program: kernels, templates, control flow and checks on the host, judged by `interp` or by hand. A module per subject.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod artifact;
mod chain;
mod checks;
mod common;
mod control;
mod dropout;
mod fourier;
mod kernels;
mod plugin;
mod scalar_ops;
mod split;
mod staged;
mod templates;
mod together;
mod tune;
