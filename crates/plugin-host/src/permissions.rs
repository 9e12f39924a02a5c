//! Refuses files and folders that any user of the machine could replace. The code of a plugin library runs with the rights
//! of the host; the same holds for folders of machine code.

use std::path::Path;

use crate::HostError;

/// Checks a file and every folder above it: the file and its own folder must not be world-writable; a folder further up
/// may be, where its sticky bit keeps others from replacing what they do not own (`/tmp`).
///
/// Symbolic links are resolved first. On systems without Unix permissions nothing is checked.
///
/// # Errors
/// [`HostError::WorldWritable`] with the first such path; [`HostError::Io`] where one cannot be examined.
pub fn check(file: &Path) -> Result<(), HostError> {
    let real = file.canonicalize().map_err(|e| HostError::io(file, e))?;
    for (level, place) in real.ancestors().enumerate() {
        let meta = place.metadata().map_err(|e| HostError::io(place, e))?;
        if is_open(&meta, level >= 2) {
            return Err(HostError::WorldWritable { path: place.to_owned() });
        }
    }
    Ok(())
}

#[cfg(unix)]
fn is_open(meta: &std::fs::Metadata, sticky_is_enough: bool) -> bool {
    use std::os::unix::fs::PermissionsExt;
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;
    let mode = meta.permissions().mode();
    mode & OTHERS_WRITE != 0 && !(sticky_is_enough && mode & STICKY != 0)
}

#[cfg(not(unix))]
fn is_open(_meta: &std::fs::Metadata, _sticky_is_enough: bool) -> bool {
    false
}
