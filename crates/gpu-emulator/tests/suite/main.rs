//! The tests of this crate in one binary, one module per subject: generated kernels run on the host and are compared with
//! the interpreter.

#![allow(clippy::unwrap_used)] // a failing test may panic

mod attention_gradient;
mod attention_masks;
mod bind;
mod checked;
mod common;
mod cores;
mod costs;
mod decode;
mod depthwise;
mod epilogues;
mod few_inputs;
mod few_rows;
mod fourier;
mod fused_launch;
mod grouped;
mod index_calls;
mod index_operators;
mod indices;
mod long_rows;
mod misuse;
mod ordered;
mod points;
mod present;
mod programs;
mod reductions;
mod rows;
mod selection;
mod steps;
mod tensor_core;
mod tiles;
mod tma;
mod tma_epilogues;
mod variants;
