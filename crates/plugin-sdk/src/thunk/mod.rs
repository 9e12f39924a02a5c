//! The bridge from the C tables to the safe traits. All `unsafe` that a plugin needs is here and in the two
//! tensor modules.
//!
//! - [`guard`]: catches panics and writes the caller's error struct.
//! - [`description`]: a [`Description`](crate::Description) laid out as C structs.
//! - [`request`]: arguments of the host, read and checked.
//! - [`entry`]: one instance per backend type, and its table.
//! - [`collectives`]: engines, and the groups of executables.
//! - [`slots`]: the functions of that table; [`artifacts`], [`extensions`] and [`inspection`]: those for artifacts, and those
//!   of extensions.

mod artifacts;
mod collectives;
mod description;
mod entry;
mod extensions;
mod guard;
mod inspection;
mod request;
mod slots;

pub use collectives::engine_table;
pub use entry::entry;
pub(crate) use guard::discard;
