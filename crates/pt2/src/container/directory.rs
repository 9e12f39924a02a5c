//! The zip directory: every entry's name, place and size, checked before a byte of it is used.
//!
//! The `zip` crate parses the records; this module adds the checks that a reader of mapped memory needs: no entry outside
//! the file or over another, no name that leaves its folder, no compression ratio that deflate cannot reach.

use std::io::Cursor;

use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

use crate::bytes::SharedBytes;
use crate::error::{Place, Pt2Error, Result, shorten};
use crate::limits::Limits;

/// How an entry's bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// As they are: they can be borrowed from the mapping.
    Stored,
    /// Deflated: they are inflated on use.
    Deflated,
}

/// One entry, with its place in the file.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// Full name, with the root folder.
    pub(super) name: String,
    /// Number in the zip directory.
    pub(super) number: usize,
    /// How its bytes are kept.
    pub(super) method: Method,
    /// First byte of its data in the file.
    pub(super) start: usize,
    /// Bytes in the file.
    pub(super) packed: usize,
    /// Bytes when unpacked, as declared; equal to `packed` where stored.
    pub(super) size: usize,
}

/// The parsed directory with the bytes. Clones share both.
pub(super) type Zip = ZipArchive<Cursor<SharedBytes>>;

/// Deflate cannot do better than 1032 to 1 (258 bytes from 2 bits); a declared size beyond that is forged.
const DEFLATE_BEST: u64 = 1032;

/// Reads and checks the directory of a zip file.
///
/// # Errors
/// `Damaged` for a truncated, corrupt or forged file; `Unsupported` for encryption and for
/// compression other than deflate.
pub(super) fn read(bytes: SharedBytes, limits: &Limits) -> Result<(Zip, Vec<Entry>)> {
    // To detect bytes before the archive, the crate assumes that the directory ends where the last record begins. In
    // PyTorch's archives zip64 records are between, and if the first entry is as long as these records (a name of 30
    // bytes), its second entry would be taken for the first one. No archive of PyTorch has bytes before it.
    let config = Config { archive_offset: ArchiveOffset::Known(0) };
    let mut archive = ZipArchive::with_config(config, Cursor::new(bytes)).map_err(|e| zip_error("", &e))?;
    if archive.has_duplicate_names() {
        return Err(damaged("", "two entries have the same name"));
    }
    if archive.offset() != 0 {
        return Err(damaged("", "bytes stand before the first entry"));
    }
    let end = archive.central_directory_start();
    let mut entries = Vec::with_capacity(archive.len());
    let mut spans = Vec::with_capacity(archive.len());
    for number in 0..archive.len() {
        let file = archive.by_index_raw(number).map_err(|e| zip_error("", &e))?;
        let name = file.name().map_err(|e| zip_error("", &e))?.into_owned();
        check_name(&name, limits)?;
        let start = file.data_start().ok_or_else(|| damaged(&name, "no data offset"))?;
        let stop = start.checked_add(file.compressed_size()).filter(|&stop| stop <= end);
        let stop = stop.ok_or_else(|| damaged(&name, "its data reaches past the end of the file"))?;
        spans.push((file.header_start(), stop, number));
        if let Some(entry) = entry(&file, name, number, start)? {
            entries.push(entry);
        }
    }
    check_overlaps(&mut spans, &archive)?;
    Ok((archive, entries))
}

fn entry<R: std::io::Read + ?Sized>(
    file: &zip::read::ZipFile<'_, R>,
    name: String,
    number: usize,
    start: u64,
) -> Result<Option<Entry>> {
    let (packed, size) = (file.compressed_size(), file.size());
    if file.encrypted() {
        let what = "the entry is encrypted".to_owned();
        return Err(unsupported(&name, what, "write the archive again without a password"));
    }
    if file.is_dir() {
        return if size == 0 { Ok(None) } else { Err(damaged(&name, "a folder with content")) };
    }
    let method = match file.compression() {
        CompressionMethod::Stored if packed == size => Method::Stored,
        CompressionMethod::Stored => return Err(damaged(&name, "stored, but with two different sizes")),
        CompressionMethod::DEFLATE => Method::Deflated,
        other => {
            let what = format!("the entry is compressed with {other:?}");
            return Err(unsupported(&name, what, "write the archive again stored or deflated"));
        }
    };
    if method == Method::Deflated && size > packed.saturating_mul(DEFLATE_BEST) {
        return Err(damaged(&name, "it declares more bytes than deflate can pack into its data"));
    }
    let fit = |n: u64| usize::try_from(n).map_err(|_| damaged(&name, "its size does not fit this machine"));
    let (start, packed, size) = (fit(start)?, fit(packed)?, fit(size)?);
    Ok(Some(Entry { name, number, method, start, packed, size }))
}

/// Names are paths below one folder, with `/` between the parts.
fn check_name(name: &str, limits: &Limits) -> Result<()> {
    let problem = if name.is_empty() {
        "an entry without a name"
    } else if name.len() > limits.name_bytes {
        "an entry's name is too long"
    } else if name.contains(['\\', '\0', ':']) || name.chars().any(char::is_control) {
        "an entry's name has a character that no archive of PyTorch has"
    } else if name.starts_with('/') {
        "an entry's name is an absolute path"
    } else if name.trim_end_matches('/').split('/').any(|part| matches!(part, "" | "." | "..")) {
        "an entry's name leaves its folder"
    } else {
        return Ok(());
    };
    Err(damaged(&shorten(name), problem))
}

fn check_overlaps<R: std::io::Read + std::io::Seek>(
    spans: &mut [(u64, u64, usize)],
    archive: &ZipArchive<R>,
) -> Result<()> {
    spans.sort_unstable();
    for pair in spans.windows(2) {
        let ((_, stop, _), (start, _, number)) = (pair[0], pair[1]);
        if stop > start {
            let name = archive.name_for_index(number).and_then(|n| n.ok()).unwrap_or_default();
            return Err(damaged(&name, "it overlaps another entry"));
        }
    }
    Ok(())
}

pub(super) fn zip_error(entry: &str, error: &zip::result::ZipError) -> Pt2Error {
    use zip::result::ZipError;
    match error {
        ZipError::UnsupportedArchive(what) => {
            unsupported(entry, (*what).to_owned(), "write the archive again stored or deflated, in one part")
        }
        ZipError::CompressionMethodNotSupported(method) => unsupported(
            entry,
            format!("the entry is compressed with zip method {method}"),
            "write the archive again stored or deflated",
        ),
        other => damaged(entry, &other.to_string()),
    }
}

pub(super) fn damaged(entry: &str, problem: &str) -> Pt2Error {
    Pt2Error::Damaged { at: Place::entry(entry), problem: problem.to_owned() }
}

pub(super) fn unsupported(entry: &str, what: String, advice: &'static str) -> Pt2Error {
    Pt2Error::Unsupported { at: Place::entry(entry), what, advice }
}
