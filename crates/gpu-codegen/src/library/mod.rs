//! Kernels around a library call, and what a library must know of a step: epilogues over a result in memory, operands in
//! another order or rearranged from space to depth, weights packed once. Not here: the libraries themselves (the vendors'
//! backends).

pub(crate) mod blocks;
pub(crate) mod epilogue;
mod given_rows;
pub(crate) mod pack;
pub(crate) mod rows;
pub(crate) mod vendor_epilogue;
