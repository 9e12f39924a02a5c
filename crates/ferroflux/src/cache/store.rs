//! The folder of entries. Several processes may use it at once: files are written under another name and renamed, so that a
//! reader sees a whole file or none; whoever finds a damaged one removes it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::entry::{self, EntryInfo, Header};
use super::folder::{self, Place};
use super::{Cache, Key};

/// How names of entries end.
const SUFFIX: &str = ".entry";
/// How names of files end that backends write into the folder: what they make of constants.
const OTHERS: &str = ".weights";
/// How names of files begin that are being written.
const UNFINISHED: &str = ".new-";
/// After this an unfinished file is a dead process'.
const STALE: Duration = Duration::from_secs(3600);

/// The part of the bound by which files may pass it before this process looks again.
const SHARE: u64 = 64;
/// Bytes that this process wrote since it last looked; at first as if there were many.
static WRITTEN: AtomicU64 = AtomicU64::new(u64::MAX);

/// A folder of entries.
#[derive(Clone, Debug)]
pub struct Store(Place);

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// How many.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

struct File {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
}

impl Store {
    /// The store of a setting. The folder need not be there.
    ///
    /// # Errors
    /// Why there is none: it is turned off, there is no home folder, or its files could be another user's.
    pub fn open(cache: &Cache) -> Result<Store, String> {
        let place = folder::place(cache)?;
        if place.folder.exists() {
            folder::check(&place.folder)?;
        }
        Ok(Store(place))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }
    /// Bytes that the files may have together.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// All entries, the last used first.
    pub fn entries(&self) -> Vec<EntryInfo> {
        let mut files = self.files();
        files.sort_by(|a, b| (b.used, &a.path).cmp(&(a.used, &b.path)));
        files.iter().filter_map(|f| entry::info(&f.path)).collect()
    }

    /// Bytes of all files, those of backends included.
    pub fn bytes(&self) -> u64 {
        self.files().iter().map(|f| f.bytes).sum()
    }

    /// Removes files that were not used for so long; all where no time is given, damaged and unfinished files too.
    ///
    /// # Errors
    /// The system's, with the file.
    pub fn clear(&self, unused: Option<Duration>) -> Result<Removed, std::io::Error> {
        let mut removed = Removed::default();
        let now = SystemTime::now();
        for file in self.files().into_iter().chain(self.unfinished()) {
            let since = now.duration_since(file.used).unwrap_or_default();
            if unused.is_some_and(|least| since < least) {
                continue;
            }
            match fs::remove_file(&file.path) {
                Ok(()) => {
                    removed.files += 1;
                    removed.bytes += file.bytes;
                }
                // Another process was faster.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(std::io::Error::new(e.kind(), format!("{}: {e}", file.path.display()))),
            }
        }
        Ok(removed)
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.0.folder.join(format!("{}{SUFFIX}", key.id()))
    }

    /// Whether there is an entry for the key; leaves it as it is.
    ///
    /// # Errors
    /// Why the file cannot be used.
    pub(super) fn look(&self, key: &Key) -> Result<bool, String> {
        let Ok(bytes) = fs::read(self.path(key)) else { return Ok(false) };
        match entry::decode(&bytes)?.0.key.same(key) {
            true => Ok(true),
            false => Err("it is the entry of another key".into()),
        }
    }

    /// The sections under a key, as far as `read` can make something of them. What cannot be read is removed.
    pub(super) fn get<T>(&self, key: &Key, read: impl FnOnce(&[&[u8]]) -> Result<T, String>) -> Option<T> {
        let path = self.path(key);
        let bytes = fs::read(&path).ok()?;
        let whole = entry::decode(&bytes).and_then(|(header, sections)| match header.key.same(key) {
            true => read(&sections),
            false => Err("it is the entry of another key".into()),
        });
        match whole {
            Ok(found) => {
                // The time says when it was last used; that it cannot be set is no harm.
                let file = fs::File::options().append(true).open(&path);
                let _ = file.and_then(|f| f.set_modified(SystemTime::now()));
                Some(found)
            }
            Err(why) => {
                tracing::warn!(target: "cache", file = %path.display(), "an entry cannot be used and is made anew: {why}");
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Keeps sections under a key, and removes what was unused the longest where the bound is passed.
    ///
    /// # Errors
    /// Why it is not kept, in words.
    pub(super) fn insert(
        &self,
        key: &Key,
        (program, backend, mode): (&str, &str, &str),
        sections: &[&[u8]],
    ) -> Result<u64, String> {
        let made = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let text = |t: &str| t.chars().take(200).collect::<String>();
        let header = Header {
            key: key.clone(),
            program: text(program),
            backend: text(backend),
            mode: text(mode),
            made,
        };
        let bytes = entry::encode(&header, sections)?;
        if bytes.len() as u64 > self.0.limit {
            return Err(format!("it has {} bytes, the bound is {}", bytes.len(), self.0.limit));
        }
        self.write(&self.path(key), &bytes)?;
        self.enforce_bound(bytes.len() as u64);
        Ok(bytes.len() as u64)
    }

    /// Looks at the folder's size now and then, after so many bytes were written: that takes as long as a small compilation where
    /// there are a thousand files.
    pub(super) fn enforce_bound(&self, bytes: u64) {
        let written = WRITTEN.load(Relaxed).saturating_add(bytes);
        let due = written > self.0.limit / SHARE;
        WRITTEN.store(if due { 0 } else { written }, Relaxed);
        if due {
            self.evict();
        }
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), String> {
        let folder = &self.0.folder;
        folder::make(folder)?;
        folder::check(folder)?;
        let failed = |e: std::io::Error| format!("{}: {e}", path.display());
        let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder).map_err(failed)?;
        file.write_all(bytes).map_err(failed)?;
        file.persist(path).map_err(|e| failed(e.error))?;
        Ok(())
    }

    /// Removes the files that were unused the longest until the rest is within the bound, and what dead processes left.
    fn evict(&self) {
        let now = SystemTime::now();
        let dead = |f: &File| now.duration_since(f.used).is_ok_and(|since| since > STALE);
        for file in self.unfinished().iter().filter(|f| dead(f)) {
            let _ = fs::remove_file(&file.path);
        }
        let mut files = self.files();
        let mut total: u64 = files.iter().map(|f| f.bytes).sum();
        files.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        for file in files {
            if total <= self.0.limit {
                break;
            }
            tracing::debug!(target: "cache", file = %file.path.display(), bytes = file.bytes, "removed: the bound is passed");
            // Gone is gone, whoever removed it.
            let _ = fs::remove_file(&file.path);
            total -= file.bytes;
        }
    }

    fn files(&self) -> Vec<File> {
        self.named(|name| (name.ends_with(SUFFIX) || name.ends_with(OTHERS)) && !name.starts_with(UNFINISHED))
    }

    fn unfinished(&self) -> Vec<File> {
        self.named(|name| name.starts_with(UNFINISHED))
    }

    fn named(&self, wanted: impl Fn(&str) -> bool) -> Vec<File> {
        let entries = fs::read_dir(&self.0.folder).into_iter().flatten().flatten();
        let file = |e: fs::DirEntry| {
            e.file_name().to_str().filter(|name| wanted(name))?;
            let about = e.metadata().ok().filter(fs::Metadata::is_file)?;
            Some(File { path: e.path(), used: about.modified().ok()?, bytes: about.len() })
        };
        entries.filter_map(file).collect()
    }
}
