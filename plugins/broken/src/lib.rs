//! Deliberately broken plugins, to test the conformance suite: one library, whose fault the environment variable
//! `FERROFLUX_BROKEN` selects. Without it, or with `none`, the plugin is correct.
//!
//! The correct part is the template of `ferroflux plugin new`. Faults of a safe backend are in [`backend_faults`], those of
//! the C table in [`table_faults`]; [`graphs`] takes fx graphs in addition to kernels. Each fault is made to fail one check
//! and no other.

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
