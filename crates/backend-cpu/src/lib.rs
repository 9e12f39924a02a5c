//! Compiles and runs kernel-ir on the host CPU: vector IR, Cranelift, matrix and convolution templates.
//!
//! `vir` describes a loop kernel lane by lane, `clif` generates its machine code, `leaf` that of innermost loops where there is
//! AVX-512 or AVX2, `math` has the formulas of both, `micro` has the hand-written matrix kernels, and `exec` owns memory and runs a program's steps. [`CpuBackend`] is the plugin.
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
mod leaf;
mod math;
pub mod micro;
mod ranks;
pub mod vir;

pub use backend::CpuBackend;
pub use exec::{after_fork, before_fork, wait_for_files};
