//! Deliberately broken plugins, to judge the judge: one library, whose fault the environment variable `FERROFLUX_BROKEN`
//! picks. Without it, or with `none`, the plugin is sound.
//!
//! The sound part is the template of `ferroflux plugin new`. Faults that a safe backend can have stand in [`backend_faults`],
//! those of the C table in [`table_faults`]; [`graphs`] takes fx graphs beside kernels. Each is made so that it shows in one check and nowhere else.

#[path = "../../template/src/backend.rs"]
mod backend;
mod backend_faults;
mod fault;
mod graphs;
#[path = "../../template/src/kernel.rs"]
mod kernel;
#[path = "../../template/src/memory.rs"]
mod memory;
#[path = "../../template/src/number.rs"]
mod number;
#[path = "../../template/src/products.rs"]
mod products;
#[path = "../../template/src/sizes.rs"]
mod sizes;
#[path = "../../template/src/support.rs"]
mod support;
mod table_faults;

pub use fault::{FAULTS, VARIABLE};
pub use table_faults::ffx_plugin_entry_v1;
