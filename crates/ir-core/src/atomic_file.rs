//! Atomic file writes: a file is either complete or absent, also after a power loss. It is written under a temporary name
//! in the same folder, synced, renamed, and the folder is synced too. Caches do not use this: their files are verified on
//! reading and recreated when they are damaged, so they need not wait for the disk.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// A file that is being written. Dropped before [`finish`](AtomicFile::finish) it leaves nothing behind.
pub struct AtomicFile {
    draft: NamedTempFile,
    path: PathBuf,
}

/// The folder that a file lies in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl AtomicFile {
    /// Starts writing the file `path`; until it is finished, `path` stays what it is.
    ///
    /// # Errors
    /// The error of the file system: the folder is not there or may not be written.
    pub fn begin(path: &Path) -> io::Result<AtomicFile> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".ferroflux-");
        #[cfg(unix)]
        // The permissions are those of any new file: the umask of the process applies.
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        Ok(AtomicFile { draft: builder.tempfile_in(folder_of(path))?, path: path.to_owned() })
    }
    /// The file that receives the bytes.
    pub fn file(&mut self) -> &mut File {
        self.draft.as_file_mut()
    }
    /// Renames the file to its final name and waits until it is on the disk.
    ///
    /// # Errors
    /// The error of the file system. If the file was renamed and only the folder could not be synced, `path` is
    /// nevertheless the complete new file.
    pub fn finish(self) -> io::Result<()> {
        // If the rename happened before the bytes are on the disk, the file may be empty after a power loss.
        self.draft.as_file().sync_all()?;
        self.draft.persist(&self.path).map_err(|e| e.error)?;
        sync_folder(folder_of(&self.path))
    }
}

/// Syncs the directory entries of a folder.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some network file systems do not support this for folders.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        done => done,
    }
}

/// On other systems a folder cannot be opened as a file.
#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// Writes `bytes` to `path` atomically.
///
/// # Errors
/// The error of the file system; `path` is then unchanged.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = AtomicFile::begin(path)?;
    io::Write::write_all(file.file(), bytes)?;
    file.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;

    use super::*;

    #[test]
    fn the_old_file_stays_until_the_new_one_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        write_whole(&path, b"old").unwrap();
        let mut new = AtomicFile::begin(&path).unwrap();
        new.file().write_all(b"half").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        drop(new);
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1, "nothing is left behind");
        write_whole(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert!(write_whole(&folder.path().join("none/a"), b"").is_err());
    }
}
