//! Compiled code and choices of the search on disk, for later processes. Files are written atomically and contain a
//! checksum; damaged ones are ignored.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// The magic bytes of every file.
const MAGIC: &[u8; 8] = b"ffxcode1";
/// Bytes of a checksum.
const SUM: usize = 32;
/// Maximum total bytes of the files; beyond it the least recently used are removed.
const LIMIT: u64 = 1 << 30;

/// A folder of files by key.
#[derive(Clone, Debug)]
pub struct Cache {
    /// None: nothing is kept.
    folder: Option<PathBuf>,
    limit: u64,
}

impl Cache {
    /// Of a backend, in the user's cache folder.
    pub fn usual(backend: &str) -> Cache {
        Cache { folder: ir_core::cache_folder().map(|f| f.join(backend)), limit: LIMIT }
    }

    /// A folder of the user's choice; `off` keeps nothing, the empty text is the backend's usual place.
    pub fn named(backend: &str, text: &str) -> Cache {
        match text {
            "" => Cache::usual(backend),
            "off" => Cache { folder: None, limit: LIMIT },
            path => Cache { folder: Some(PathBuf::from(path)), limit: LIMIT },
        }
    }

    fn path(&self, key: &[&[u8]]) -> Option<PathBuf> {
        let mut hash = Sha256::new();
        for part in key {
            // Lengths are hashed too, so that different lists of parts have different hashes.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let name: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        Some(self.folder.as_ref()?.join(name))
    }

    /// What was kept under a key.
    pub fn get(&self, key: &[&[u8]]) -> Option<Vec<u8>> {
        let path = self.path(key)?;
        let mut bytes = fs::read(&path).ok()?;
        let head = MAGIC.len() + SUM;
        let whole = bytes.len() >= head
            && bytes.starts_with(MAGIC)
            && Sha256::digest(&bytes[head..])[..] == bytes[MAGIC.len()..head];
        if !whole {
            tracing::warn!(target: "kernel", file = %path.display(), "a damaged file of the code cache is replaced");
            let _ = fs::remove_file(&path);
            return None;
        }
        bytes.drain(..head);
        // The modification time records the last use; failing to set it is harmless.
        let file = fs::File::options().append(true).open(&path);
        let _ = file.and_then(|f| f.set_modified(SystemTime::now()));
        Some(bytes)
    }

    /// Keeps bytes under a key. What cannot be written is logged: it is compiled again next time.
    pub fn put(&self, key: &[&[u8]], bytes: &[u8]) {
        let Some(path) = self.path(key) else { return };
        if let Err(e) = self.write(&path, bytes) {
            tracing::debug!(target: "kernel", file = %path.display(), "not kept: {e}");
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
        let Some(folder) = path.parent() else { return Ok(()) };
        private(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(MAGIC)?;
        file.write_all(&Sha256::digest(bytes))?;
        file.write_all(bytes)?;
        file.persist(path)?;
        Ok(())
    }

    /// Removes the files that were used longest ago until a quarter of the limit is free, where it is passed.
    pub fn tidy(&self) {
        let Some(folder) = &self.folder else { return };
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|e| {
                let about = e.metadata().ok().filter(fs::Metadata::is_file)?;
                Some((about.modified().ok()?, about.len(), e.path()))
            })
            .collect();
        let mut total: u64 = files.iter().map(|f| f.1).sum();
        if total <= self.limit {
            return;
        }
        files.sort();
        for (_, bytes, path) in files {
            if total <= self.limit / 4 * 3 {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= bytes;
            }
        }
    }
}

/// Makes a folder that only its owner may write, since its files are executed.
fn private(folder: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(folder)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn cache(folder: &Path, limit: u64) -> Cache {
        Cache { folder: Some(folder.join("deep").join("er")), limit }
    }

    #[test]
    fn entries_are_found_by_their_whole_key() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), LIMIT);
        cache.put(&[b"ab", b"c"], b"code");
        assert_eq!(cache.get(&[b"ab", b"c"]).unwrap(), b"code");
        assert!(cache.get(&[b"a", b"bc"]).is_none() && cache.get(&[b"abc"]).is_none());
        cache.put(&[b"ab", b"c"], b"newer");
        assert_eq!(cache.get(&[b"ab", b"c"]).unwrap(), b"newer");
        assert!(Cache::named("any", "off").path(&[b"x"]).is_none());
    }

    #[test]
    fn damaged_files_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), LIMIT);
        for damage in [0usize, 9, 41] {
            cache.put(&[b"k"], b"code");
            let path = cache.path(&[b"k"]).unwrap();
            let mut bytes = fs::read(&path).unwrap();
            bytes[damage] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert!(cache.get(&[b"k"]).is_none(), "byte {damage}");
            assert!(!path.exists());
        }
        cache.put(&[b"k"], b"code");
        fs::write(cache.path(&[b"k"]).unwrap(), b"ffx").unwrap();
        assert!(cache.get(&[b"k"]).is_none(), "cut off");
    }

    #[test]
    fn the_oldest_files_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), 1000);
        for n in 0..8u8 {
            cache.put(&[&[n]], &[n; 200]);
            let file = fs::File::options().append(true).open(cache.path(&[&[n]]).unwrap()).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(n));
            file.set_modified(time).unwrap();
        }
        // Used just now.
        assert!(cache.get(&[&[0]]).is_some());
        cache.tidy();
        let left: Vec<bool> = (0..8u8).map(|n| cache.get(&[&[n]]).is_some()).collect();
        assert_eq!(left, [true, false, false, false, false, false, true, true]);
    }
}
