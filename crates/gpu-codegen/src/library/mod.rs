//! Kernels around a library's call, and what a library is told of a step: epilogues over a result in memory, operands in another
//! order or folded, weights packed once. Not here: the libraries (the backends of their vendors).

pub(crate) mod blocks;
pub(crate) mod epilogue;
pub(crate) mod pack;
pub(crate) mod vendor_epilogue;
