//! The bytes of an archive: a mapped file or a vector, shared by everything that borrows from them.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Immutable bytes with shared ownership.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
}

impl SharedBytes {
    /// Bytes in memory.
    pub fn owned(bytes: Vec<u8>) -> SharedBytes {
        SharedBytes { owner: Arc::new(bytes) }
    }

    /// A file, mapped read-only. Its pages are loaded when they are touched.
    ///
    /// # Errors
    /// Those of opening and mapping the file.
    pub fn map(path: &Path) -> std::io::Result<SharedBytes> {
        let file = File::open(path)?;
        if file.metadata()?.is_dir() {
            return Err(std::io::Error::new(std::io::ErrorKind::IsADirectory, "a folder, not an archive"));
        }
        // An empty file cannot be mapped.
        if file.metadata()?.len() == 0 {
            return Ok(SharedBytes::owned(Vec::new()));
        }
        // SAFETY: the mapping is private and read-only. That nobody truncates or rewrites the file while it is mapped
        // is asked of the caller in `Archive::open`, as every reader of mapped weights does.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(SharedBytes { owner: Arc::new(map) })
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        (*self.owner).as_ref()
    }

    /// The owner, for those who keep a range alive.
    pub fn owner(&self) -> Arc<dyn AsRef<[u8]> + Send + Sync> {
        Arc::clone(&self.owner)
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.as_slice().len())
    }
}
