//! Files that the command writes: checked before the work begins, then written whole or not at all.

use std::path::Path;

use anyhow::{Context, Result};
use ferroflux::ir_core::{AtomicFile, write_whole};

use crate::report::advised;

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Whether `path` can be written later; costs one empty file that is removed again.
///
/// # Errors
/// Where it is a folder, or its folder is not there or not writable.
pub(crate) fn check_writable(path: &Path) -> Result<()> {
    let shown = path.display();
    if path.is_dir() {
        return Err(advised(format!("cannot write {shown}: it is a folder"), "name a file"));
    }
    if !folder(path).is_dir() {
        let why = format!("cannot write {shown}: there is no folder {}", folder(path).display());
        return Err(advised(why, "create the folder first, or name another"));
    }
    AtomicFile::begin(path).map(drop).with_context(|| format!("cannot write {shown}"))
}

/// Writes the whole file or nothing.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_whole(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}
