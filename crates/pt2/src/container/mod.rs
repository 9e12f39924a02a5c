//! The container: a zip file, mapped into memory, whose stored entries are borrowed from the mapping.
//!
//! It knows folders and entries; other modules read their contents (JSON, weights). Nothing is ever
//! unpacked to disk and nothing is unpickled.

mod directory;
mod foreign;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use self::directory::{Entry, Method, Zip, damaged, unsupported, zip_error};
use crate::bytes::SharedBytes;
use crate::error::{Foreign, Place, Pt2Error, Result, shorten};
use crate::limits::Limits;

/// An opened `torch.export` archive: its directory is read and checked, its programs are not read yet.
///
/// Cheap to clone; the bytes are shared.
#[derive(Clone, Debug)]
pub struct Archive {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bytes: SharedBytes,
    /// The directory as the `zip` crate has it, cloned for each entry that is read through it.
    zip: Zip,
    entries: Vec<Entry>,
    /// Number in `entries` by name below the root folder. A `HashMap` with random keys, because the names come from the file.
    by_name: HashMap<String, usize>,
    limits: Limits,
}

/// Where the bytes of an entry are.
#[derive(Clone, Debug)]
pub(crate) enum EntryBytes {
    /// A range of the archive's own bytes.
    Mapped(Range<usize>),
    /// Inflated into memory of its own.
    Inflated(Vec<u8>),
}

impl Archive {
    /// Maps the file at `path` and reads its directory.
    ///
    /// The file must not be changed while the archive or a tensor of it is alive.
    ///
    /// # Errors
    /// `Io` where the file cannot be opened; else as [`Archive::from_bytes`].
    pub fn open(path: impl AsRef<Path>) -> Result<Archive> {
        let path = path.as_ref();
        let bytes = SharedBytes::map(path)
            .map_err(|source| Pt2Error::Io { at: Place::entry(path.display().to_string()), source })?;
        Archive::with_limits(bytes, Limits::default())
    }

    /// Reads the directory of an archive in memory.
    ///
    /// # Errors
    /// `Foreign` for another file format, `Damaged` for a broken zip file, `Unsupported` for a big-endian or
    /// encrypted archive.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Archive> {
        Archive::with_limits(SharedBytes::owned(bytes), Limits::default())
    }

    /// As [`Archive::from_bytes`], with other bounds.
    ///
    /// # Errors
    /// As [`Archive::from_bytes`].
    pub fn with_limits(bytes: SharedBytes, limits: Limits) -> Result<Archive> {
        if let Some(kind) = foreign::by_magic(bytes.as_slice()) {
            return Err(Pt2Error::Foreign { at: Place::file(), kind });
        }
        let (zip, entries) = directory::read(bytes.clone(), &limits)?;
        let root = find_root(&entries)?;
        let by_name = below_root(&entries, &root);
        let archive = Archive { shared: Arc::new(Shared { bytes, zip, entries, by_name, limits }) };
        archive.check_records()?;
        Ok(archive)
    }

    /// The names of the exported programs (`models/<name>.json`), sorted.
    pub fn model_names(&self) -> Vec<String> {
        let name = |entry: &String| -> Option<String> {
            let name = entry.strip_prefix("models/")?.strip_suffix(".json")?;
            (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
        };
        let mut names: Vec<String> = self.shared.by_name.keys().filter_map(name).collect();
        names.sort();
        names
    }

    /// The model to read: `wanted`, or `model`, or the only one.
    ///
    /// # Errors
    /// `Model` with the list of names; `Foreign` where the package has only compiled code.
    pub fn choose_model(&self, wanted: Option<&str>) -> Result<String> {
        let mut names = self.model_names();
        if names.is_empty()
            && let Some(kind) = foreign::without_models(self.shared.by_name.keys().map(String::as_str))
        {
            return Err(Pt2Error::Foreign { at: Place::entry("models/"), kind });
        }
        let wanted_or_default = wanted.unwrap_or("model");
        if names.iter().any(|n| n == wanted_or_default) {
            return Ok(wanted_or_default.to_owned());
        }
        match (wanted, names.len()) {
            (None, 1) => Ok(names.remove(0)),
            _ => {
                let wanted = wanted.map(str::to_owned);
                Err(Pt2Error::Model { at: Place::entry("models/"), wanted, available: names })
            }
        }
    }

    /// Names of all entries below the root folder, in no order.
    pub fn entry_names(&self) -> impl Iterator<Item = &str> {
        self.shared.by_name.keys().map(String::as_str)
    }

    /// Whether there is an entry of this name below the root folder.
    pub fn has(&self, name: &str) -> bool {
        self.shared.by_name.contains_key(name)
    }

    /// The bounds that this archive is read with.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// The file's bytes, shared with every tensor that is mapped from them.
    pub fn bytes(&self) -> &SharedBytes {
        &self.shared.bytes
    }

    /// The text of a JSON entry, its check sum verified; `None` where there is no such entry.
    pub(crate) fn text(&self, name: &str) -> Result<Option<Cow<'_, [u8]>>> {
        let Some(entry) = self.entry(name) else { return Ok(None) };
        let limit = self.shared.limits.json_bytes(entry.packed as u64);
        if entry.size as u64 > limit {
            let found = entry.size as u64;
            return Err(Pt2Error::Limit {
                at: Place::entry(name),
                what: "inflated size in bytes",
                found,
                limit,
            });
        }
        Ok(Some(match entry.method {
            Method::Stored => {
                self.check_sum(entry, name)?;
                Cow::Borrowed(&self.shared.bytes.as_slice()[entry.start..entry.start + entry.packed])
            }
            Method::Deflated => Cow::Owned(self.inflate(entry, name)?),
        }))
    }

    /// The bytes of a weight: a range of the file where stored. `spent` counts inflated bytes over all weights.
    ///
    /// The check sum of a stored payload is not verified: that would read the whole file.
    pub(crate) fn payload(&self, name: &str, spent: &mut u64) -> Result<Option<EntryBytes>> {
        let Some(entry) = self.entry(name) else { return Ok(None) };
        if entry.method == Method::Stored {
            return Ok(Some(EntryBytes::Mapped(entry.start..entry.start + entry.packed)));
        }
        *spent = spent.saturating_add(entry.size as u64);
        let limit = self.shared.limits.payload_bytes(self.shared.bytes.as_slice().len() as u64);
        if *spent > limit {
            let what = "total size of the deflated weights in bytes";
            return Err(Pt2Error::Limit { at: Place::entry(name), what, found: *spent, limit });
        }
        Ok(Some(EntryBytes::Inflated(self.inflate(entry, name)?)))
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.shared.by_name.get(name).map(|&i| &self.shared.entries[i])
    }

    /// Inflates an entry into exactly its declared size; the zip reader verifies the check sum at the end.
    fn inflate(&self, entry: &Entry, name: &str) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        out.try_reserve_exact(entry.size).map_err(|_| damaged(name, "no memory for its declared size"))?;
        self.read_through(entry, name, |file| {
            file.take(entry.size as u64 + 1).read_to_end(&mut out).map(drop)
        })?;
        if out.len() != entry.size {
            return Err(damaged(name, "its inflated size is not the declared one"));
        }
        Ok(out)
    }

    fn check_sum(&self, entry: &Entry, name: &str) -> Result<()> {
        self.read_through(entry, name, |file| std::io::copy(file, &mut std::io::sink()).map(drop))
    }

    fn read_through(
        &self,
        entry: &Entry,
        name: &str,
        read: impl FnOnce(&mut dyn Read) -> std::io::Result<()>,
    ) -> Result<()> {
        let mut zip = self.shared.zip.clone();
        let mut file = zip.by_index(entry.number).map_err(|e| zip_error(name, &e))?;
        read(&mut file).map_err(|e| damaged(name, &e.to_string()))
    }

    /// The small records next to the programs: format, version, byte order.
    fn check_records(&self) -> Result<()> {
        let record = |name: &str| -> Result<Option<String>> {
            let text = self.text(name)?;
            Ok(text.map(|t| String::from_utf8_lossy(t.trim_ascii()).into_owned()))
        };
        if let Some(format) = record("archive_format")?.filter(|f| f != "pt2") {
            let what = format!("an archive of the format `{}`, not `pt2`", shorten(&format));
            return Err(unsupported("archive_format", what, Foreign::OtherZip.advice()));
        }
        // An archive without the record is older than version 0 and read the same way, as PyTorch does.
        if let Some(version) = record("archive_version")?.filter(|v| v != "0") {
            let what = format!("archive version `{}`; this reader knows version 0", shorten(&version));
            let advice = "load it with the PyTorch that wrote it and save it again with PyTorch 2.9 to 2.11";
            return Err(unsupported("archive_version", what, advice));
        }
        if let Some(order) = record("byteorder")?.filter(|o| o != "little") {
            let what =
                format!("weights in the byte order `{}` (written on a big-endian machine)", shorten(&order));
            let advice = "load it in PyTorch on a little-endian machine and save it again";
            return Err(unsupported("byteorder", what, advice));
        }
        Ok(())
    }
}

/// The folder that has the `archive_format` record, with its `/`; any name, or none at all.
fn find_root(entries: &[Entry]) -> Result<String> {
    const RECORD: &str = "archive_format";
    let mut roots = entries.iter().filter_map(|e| {
        let root = e.name.strip_suffix(RECORD)?;
        (root.is_empty() || root.find('/') == Some(root.len() - 1)).then_some(root)
    });
    match (roots.next(), roots.next()) {
        (Some(root), None) => Ok(root.to_owned()),
        (Some(_), Some(second)) => {
            Err(damaged(second, "a second root folder with an `archive_format` record"))
        }
        (None, _) => {
            let kind = foreign::by_names(entries.iter().map(|e| e.name.as_str()));
            Err(Pt2Error::Foreign { at: Place::file(), kind })
        }
    }
}

fn below_root(entries: &[Entry], root: &str) -> HashMap<String, usize> {
    let name = |(i, e): (usize, &Entry)| e.name.strip_prefix(root).map(|n| (n.to_owned(), i));
    entries.iter().enumerate().filter_map(name).collect()
}
