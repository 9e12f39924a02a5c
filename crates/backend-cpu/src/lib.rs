//! Compiles and runs kernel-ir on the host CPU: vector IR, Cranelift, matrix and convolution templates.
//!
//! `vir` says what a loop kernel does lane by lane, `clif` makes machine code of it, `micro` holds the hand-written matrix
//! kernels and `exec` owns memory and runs a program's steps. [`CpuBackend`] is the plugin.
//!
//! ```
//! use plugin_sdk::Backend;
//!
//! let about = backend_cpu::CpuBackend::open(plugin_sdk::Host::NONE)?.describe();
//! assert_eq!(about.name, "cpu");
//! # Ok::<(), plugin_sdk::PluginError>(())
//! ```

mod backend;
pub mod clif;
pub mod exec;
pub mod micro;
pub mod vir;

pub use backend::CpuBackend;
