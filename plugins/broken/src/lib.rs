//! Deliberately broken plugins, to judge the judge: one library, whose fault the environment variable `FERROFLUX_BROKEN`
//! picks. Without it, or with `none`, the plugin is sound.
//!
//! The sound part is the template of `ferroflux plugin new`. Faults that a safe backend can have are in [`backend_faults`],
//! those of the C table in [`table_faults`]; [`graphs`] takes fx graphs next to kernels. Each is made so that it shows in one check and nowhere else.

#[path = "../../../crates/cli/template/src/backend.rs"]
mod backend;
mod backend_faults;
mod fault;
mod graphs;
#[path = "../../../crates/cli/template/src/kernel.rs"]
mod kernel;
#[path = "../../../crates/cli/template/src/memory.rs"]
mod memory;
#[path = "../../../crates/cli/template/src/number.rs"]
mod number;
#[path = "../../../crates/cli/template/src/products.rs"]
mod products;
#[path = "../../../crates/cli/template/src/sizes.rs"]
mod sizes;
#[path = "../../../crates/cli/template/src/support.rs"]
mod support;
mod table_faults;

pub use fault::{FAULTS, VARIABLE};
pub use table_faults::ffx_plugin_entry_v1;
