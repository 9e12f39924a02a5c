//! Compiles and runs kernel-ir on the host CPU: vector IR, Cranelift, matrix and convolution templates.

pub mod micro;
