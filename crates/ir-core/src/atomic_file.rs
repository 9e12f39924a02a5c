//! Files that are there whole or not at all, also after the machine lost its power: written under a temporary name beside
//! the wanted one, brought to the disk, renamed, and the folder brought to the disk too. Not for caches, whose files are
//! checked when they are read and made again where they are lost: they need no waiting for the disk.

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
    /// Begins a file that is to be `path`; until then `path` stays what it is.
    ///
    /// # Errors
    /// The file system's: the folder is not there or may not be written.
    pub fn begin(path: &Path) -> io::Result<AtomicFile> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".ferroflux-");
        #[cfg(unix)]
        // As for any new file: the process' umask takes away what it does not want.
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        Ok(AtomicFile { draft: builder.tempfile_in(folder_of(path))?, path: path.to_owned() })
    }
    /// What is written to.
    pub fn file(&mut self) -> &mut File {
        self.draft.as_file_mut()
    }
    /// Puts the file in its place and waits until the disk has it.
    ///
    /// # Errors
    /// The file system's. Where the file is in its place and only the folder cannot be brought to the disk, `path` is the
    /// whole new file nevertheless.
    pub fn finish(self) -> io::Result<()> {
        // Renamed before its bytes are on the disk, a file may be empty after a loss of power.
        self.draft.as_file().sync_all()?;
        self.draft.persist(&self.path).map_err(|e| e.error)?;
        sync_folder(folder_of(&self.path))
    }
}

/// Brings the names in a folder to the disk.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some network file systems know no such thing for folders.
        Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => Ok(()),
        done => done,
    }
}

/// Elsewhere a folder cannot be opened as a file.
#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

/// Writes `bytes` to `path`, whole or not at all.
///
/// # Errors
/// The file system's; `path` is then what it was.
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
