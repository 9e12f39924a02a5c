//! The suite that tests any plugin library: the contract of the boundary, and every loop-level operator against the oracle.
//!
//! [`check`] runs each of the [`CHECKS`] in a process of its own, so that a plugin that crashes, hangs or corrupts memory
//! fails the check it is in and nothing else. A backend may decline programs: a check of which everything was declined
//! counts as *declined*, not as failed.
//!
//! - [`checks`]: the checks, one file per family. Each is a function over a [`Cx`](checks::Cx).
//! - [`case`]: a program with inputs, run by the plugin and by `interp`.
//! - [`judge`]: the processes; [`report`]: the results, as table, JSON and JUnit XML.
//! - [`raw`]: the plugin's table without the checks of the host, for calls that a well-behaved host never makes.
//! - [`stress`]: two plugins at once on many threads.
//!
//! What this is not: a benchmark, and not a test of `inductor`; programs are written here, by hand.
//!
//! ```
//! let names: Vec<&str> = conformance::CHECKS.iter().map(|check| check.name).collect();
//! assert!(names.contains(&"matmul") && names.contains(&"leaks"));
//! ```

pub mod build;
pub mod case;
pub mod checks;
pub mod command;
pub mod judge;
mod junit;
mod memory;
pub mod raw;
pub mod report;
pub mod stress;
pub mod values;

pub use checks::{CHECKS, Check, Effort};
pub use judge::{Error, Judge, Options, check};
pub use report::{Outcome, Report, Status};
