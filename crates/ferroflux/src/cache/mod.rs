//! Compiled programs on disk: a later process loads what an earlier one compiled. `docs/cache.md` is the page for users.
//!
//! - [`Cache`]: whether and where, a setting of [`Options`](crate::Options).
//! - [`Store`]: the folder: files by key, bounded in size, least recently used removed first.
//! - [`Key`], [`Part`]: the key of an entry, part by part, so that a miss can be explained.
//! - `entry`: the bytes of one file. `form`: its contents for a program. `lookup`: one compilation with the cache.
//! - [`Report`]: whether a model would be found, and otherwise what is different.
//!
//! Weights are never part of an entry: they are bound after loading. Nothing here is needed for a result: missing, damaged
//! or foreign entries are compiled again, and the log (`cache`) says so.

mod entry;
mod folder;
mod form;
mod key;
mod lookup;
mod report;
mod store;

use std::path::PathBuf;

pub use entry::EntryInfo;
pub use key::{Key, Part};
pub use report::{Difference, Report};
pub use store::{Removed, Store};

pub(crate) use form::{Caller, Form, Wiring};
pub(crate) use lookup::{Lookup, Stage, get_or_compile};
#[cfg(test)]
mod tests;

/// A text that differs between builds of the compiler: a part of every key.
pub fn build() -> &'static str {
    env!("FFX_BUILD")
}

/// Whether compiled programs are kept on disk for later processes, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// In the user's cache folder: `$FERROFLUX_CACHE_DIR`, `$XDG_CACHE_HOME/ferroflux` or `~/.cache/ferroflux`, bounded
    /// by `$FERROFLUX_CACHE_SIZE` (bytes, or with `K`, `M`, `G`; 4G where it is not set). `FERROFLUX_CACHE=off` is
    /// [`Cache::Off`].
    #[default]
    Usual,
    /// Nothing is stored or looked up.
    Off,
    /// In this folder.
    In {
        /// The folder; it is created if it does not exist.
        folder: PathBuf,
        /// The bound of all its files together, in bytes; `None` is the default bound.
        limit: Option<u64>,
    },
}

impl Cache {
    /// A folder of the user's choice, with the default bound.
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache::In { folder: folder.into(), limit: None }
    }
}
