//! Slow, obvious executor of graphs and of kernels: the oracle and the eager backend.
