//! Compiled programs on disk: what a process compiled, a later one loads. `docs/cache.md` is the page for users.
//!
//! - [`Cache`]: whether and where, a setting of [`Options`](crate::Options).
//! - [`Store`]: the folder: files by key, bounded in size, the longest unused go first.
//! - [`Key`], [`Part`]: what an entry is found by, part by part, so that a miss can be explained.
//! - `entry`: the bytes of one file. `form`: what is in them of a program. `lookup`: the way of a compilation through here.
//! - [`Report`]: whether a model would be found, and what is different where it would not.
//!
//! Weights are never part of an entry: they are bound anew. Nothing here is needed for a result: what is missing, damaged or
//! foreign is compiled again, and the log (`cache`) says so.

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

/// Whether compiled programs are kept on disk for later processes, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// In the user's cache folder: `$FERROFLUX_CACHE_DIR`, `$XDG_CACHE_HOME/ferroflux` or `~/.cache/ferroflux`, bounded
    /// by `$FERROFLUX_CACHE_SIZE` (bytes, or with `K`, `M`, `G`; 4G where it is not set). `FERROFLUX_CACHE=off` is
    /// [`Cache::Off`].
    #[default]
    Usual,
    /// Nothing is kept and nothing is looked for.
    Off,
    /// In this folder.
    In {
        /// The folder; it is made where it is not there.
        folder: PathBuf,
        /// Bytes that its files may have together; `None` is the usual bound.
        limit: Option<u64>,
    },
}

impl Cache {
    /// The folder of the user's choice, with the usual bound.
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache::In { folder: folder.into(), limit: None }
    }
}
