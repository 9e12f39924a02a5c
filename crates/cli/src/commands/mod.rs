//! The subcommands, one file each: its arguments, its work, its output.

pub(crate) mod backends;
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod explain;
pub(crate) mod graph;
pub(crate) mod minify;
pub(crate) mod plugin;
pub(crate) mod quantize;
pub(crate) mod run;
pub(crate) mod train;
pub(crate) mod verify;
