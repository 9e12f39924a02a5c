//! Loop-level operators, kernels, templates, buffers and the execution plan; serialized.
