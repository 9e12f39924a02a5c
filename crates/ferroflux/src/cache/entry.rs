//! One file of the store: a header that identifies it, and sections of bytes. Both have checksums; listings read only the
//! header.
//!
//! Layout, integers little-endian: `FFXCACHE`, u32 version, u32 bytes of the header, u64 bytes of the rest, SHA-256 of the
//! header, SHA-256 of the rest; then the header (JSON), then each section as u64 and its bytes.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Key;

const MAGIC: &[u8; 8] = b"FFXCACHE";
/// Incremented with every change of the file's contents; files of another version are rebuilt.
const VERSION: u32 = 2;
const FIXED: usize = 8 + 4 + 4 + 8 + 32 + 32;
/// Longest header that is read, in bytes.
const MAX_HEADER: usize = 1 << 20;

/// The contents of the header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) key: Key,
    /// The user's name of the program.
    pub(super) program: String,
    pub(super) backend: String,
    pub(super) mode: String,
    /// Seconds since 1970.
    pub(super) made: u64,
}

/// An entry, as a listing shows it.
#[derive(Clone, Debug, Serialize)]
pub struct EntryInfo {
    /// Its key.
    pub key: Key,
    /// The name of its program.
    pub program: String,
    /// The backend.
    pub backend: String,
    /// The mode.
    pub mode: String,
    /// Bytes of its file.
    pub bytes: u64,
    /// Time since it was created.
    pub age: Duration,
    /// Time since it was last used.
    pub unused: Duration,
}

/// The bytes of an entry.
pub(super) fn encode(header: &Header, sections: &[&[u8]]) -> Result<Vec<u8>, String> {
    let header = serde_json::to_vec(header).map_err(|e| e.to_string())?;
    let mut rest = Vec::with_capacity(sections.iter().map(|s| s.len() + 8).sum());
    for section in sections {
        rest.extend_from_slice(&(section.len() as u64).to_le_bytes());
        rest.extend_from_slice(section);
    }
    let mut bytes = Vec::with_capacity(FIXED + header.len() + rest.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(header.len()).map_err(|e| e.to_string())?.to_le_bytes());
    bytes.extend_from_slice(&(rest.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&Sha256::digest(&header));
    bytes.extend_from_slice(&Sha256::digest(&rest));
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(&rest);
    Ok(bytes)
}

/// The contents of the fixed part: bytes of the header and of the rest, and their checksums.
type Fixed<'a> = (usize, u64, &'a [u8], &'a [u8]);

fn fixed(bytes: &[u8]) -> Result<Fixed<'_>, String> {
    let fixed = bytes.get(..FIXED).ok_or("it is cut short")?;
    if !fixed.starts_with(MAGIC) {
        return Err("it is no entry of the cache".into());
    }
    let number = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
    if number(8) != VERSION {
        return Err(format!("it has version {}, this is {VERSION}", number(8)));
    }
    let rest = u64::from(number(16)) | u64::from(number(20)) << 32;
    Ok((number(12) as usize, rest, &fixed[24..56], &fixed[56..88]))
}

fn header(bytes: &[u8], sum: &[u8]) -> Result<Header, String> {
    if Sha256::digest(bytes)[..] != *sum {
        return Err("its header's checksum is wrong".into());
    }
    serde_json::from_slice(bytes).map_err(|e| format!("its header cannot be read: {e}"))
}

/// The header and the sections.
///
/// # Errors
/// The defect of the bytes.
pub(super) fn decode(bytes: &[u8]) -> Result<(Header, Vec<&[u8]>), String> {
    let (header_bytes, rest_bytes, header_sum, rest_sum) = fixed(bytes)?;
    let short = || "it is cut short".to_owned();
    let (head, mut rest) = bytes[FIXED..].split_at_checked(header_bytes).ok_or_else(short)?;
    let header = header(head, header_sum)?;
    if rest.len() as u64 != rest_bytes {
        return Err("it is cut short or has bytes too many".into());
    }
    if Sha256::digest(rest)[..] != *rest_sum {
        return Err("its checksum is wrong".into());
    }
    let mut sections = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<8>() {
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|e| e.to_string())?;
        let (section, behind) = behind.split_at_checked(length).ok_or_else(short)?;
        sections.push(section);
        rest = behind;
    }
    if rest.is_empty() { Ok((header, sections)) } else { Err(short()) }
}

/// The listing of a file; `None` where it is not an entry.
pub(super) fn info(path: &Path) -> Option<EntryInfo> {
    let mut file = std::fs::File::open(path).ok()?;
    let about = file.metadata().ok()?;
    let mut start = vec![0; FIXED];
    file.read_exact(&mut start).ok()?;
    let (length, _, sum, _) = fixed(&start).ok()?;
    let mut text = Vec::new();
    file.take(length.min(MAX_HEADER) as u64).read_to_end(&mut text).ok()?;
    let header = header(&text, sum).ok()?;
    let now = SystemTime::now();
    let since = |time: SystemTime| now.duration_since(time).unwrap_or_default();
    Some(EntryInfo {
        key: header.key,
        program: header.program,
        backend: header.backend,
        mode: header.mode,
        bytes: about.len(),
        age: since(SystemTime::UNIX_EPOCH + Duration::from_secs(header.made)),
        unused: since(about.modified().ok()?),
    })
}
