//! The subcommands, one file each: its arguments, what it does, what it prints.

pub(crate) mod backends;
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod explain;
pub(crate) mod graph;
pub(crate) mod plugin;
pub(crate) mod run;
pub(crate) mod train;
