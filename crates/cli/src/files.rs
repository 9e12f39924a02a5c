//! Files that the command writes: checked before the work begins, written under a temporary name and renamed, so that
//! a path is either what it was or the whole new file.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::report::advised;

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn temporary(path: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".ferroflux-");
    #[cfg(unix)]
    // As for any new file: the process' umask takes away what it does not want.
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    builder.tempfile_in(folder(path))
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
    temporary(path).map(drop).with_context(|| format!("cannot write {shown}"))
}

/// Writes the whole file or nothing.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = temporary(path).with_context(failed)?;
    file.write_all(bytes).with_context(failed)?;
    file.persist(path).map_err(|e| e.error).with_context(failed)?;
    Ok(())
}
