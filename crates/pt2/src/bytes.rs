//! The bytes of an archive: a mapped file or a vector, shared by everything that borrows from them.

use std::fmt;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use tensor::{Storage, TensorError};

/// Immutable bytes with shared ownership.
#[derive(Clone)]
pub struct SharedBytes(Owner);

#[derive(Clone)]
enum Owner {
    Mapped(Arc<Mmap>),
    Owned(Arc<Vec<u8>>),
}

impl SharedBytes {
    /// Bytes in memory.
    pub fn owned(bytes: Vec<u8>) -> SharedBytes {
        SharedBytes(Owner::Owned(Arc::new(bytes)))
    }

    /// A file, mapped read-only. Its pages are loaded when they are touched. The file must not be changed while the
    /// bytes are alive.
    ///
    /// # Errors
    /// The errors of opening and mapping the file.
    pub fn map(path: &Path) -> Result<SharedBytes> {
        let file = File::open(path)?;
        let about = file.metadata()?;
        if about.is_dir() {
            return Err(Error::new(ErrorKind::IsADirectory, "a folder, not an archive"));
        }
        // An empty file cannot be mapped.
        if about.len() == 0 {
            return Ok(SharedBytes::owned(Vec::new()));
        }
        // SAFETY: the mapping is private and only read. The documentation requires that nobody truncates or rewrites the
        // file meanwhile, as every program that maps weights does.
        let map = unsafe { Mmap::map(&file)? };
        Ok(SharedBytes(Owner::Mapped(Arc::new(map))))
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Owner::Mapped(map) => map,
            Owner::Owned(bytes) => bytes,
        }
    }

    /// Storage of the bytes in `range`: the mapping itself, or a copy where the archive is in memory.
    pub(crate) fn storage(&self, range: Range<usize>) -> std::result::Result<Storage, TensorError> {
        match &self.0 {
            Owner::Mapped(map) => Storage::mapped(Arc::clone(map), range),
            Owner::Owned(bytes) => {
                let (start, end, len) = (range.start, range.end, bytes.len());
                let part = bytes.get(range).ok_or(TensorError::Range { start, end, len })?;
                Storage::from_bytes(part)
            }
        }
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({} bytes)", self.as_slice().len())
    }
}
