//! Plugin manifests: a small JSON file beside a library that says what the library is, read and checked before it is
//! loaded.
//!
//! ```json
//! {
//!   "schema": 1,
//!   "name": "cpu",
//!   "version": "0.1.0",
//!   "library": "libcpu.so",
//!   "abi": { "major": 1, "min_minor": 0 },
//!   "target": "x86_64-unknown-linux-gnu",
//!   "sha256": "9f86d081…"
//! }
//! ```
//!
//! `library` is absolute or relative to the manifest's folder. `abi` is the range of hosts that the library works with:
//! from `major.min_minor` to the last minor of that major. Unknown keys are ignored, so that later manifests stay readable.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use ir_core::AtomicFile;
use plugin_abi::{ABI_MAJOR, ABI_MINOR};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{HostError, permissions};

/// Version of the manifest's own form.
pub const SCHEMA: u32 = 1;
/// Largest manifest that is read, in bytes.
pub const MAX_BYTES: u64 = 64 * 1024;
/// Longest name of a backend, in bytes.
const MAX_NAME: usize = 64;

/// A manifest as it stands in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this form: [`SCHEMA`].
    pub schema: u32,
    /// Name of the backend: letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// Version of the plugin.
    #[serde(default)]
    pub version: String,
    /// Path of the library.
    pub library: PathBuf,
    /// ABI that the library needs.
    pub abi: AbiRange,
    /// Target triple that the library was built for.
    pub target: String,
    /// SHA-256 of the library, 64 hexadecimal digits.
    pub sha256: String,
}

/// Hosts that a library works with: `major.min_minor` and every later minor of that major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbiRange {
    /// ABI major.
    pub major: u16,
    /// Lowest minor of the host.
    #[serde(default)]
    pub min_minor: u16,
}

/// The target triple of this host.
pub const fn target_triple() -> &'static str {
    env!("FFX_TARGET")
}

impl Manifest {
    /// Reads a manifest and checks its form. Nothing about the library is looked at; see [`Manifest::verify`].
    ///
    /// # Errors
    /// The file is missing, world-writable, larger than [`MAX_BYTES`], not JSON, or not of this form.
    pub fn read(path: &Path) -> Result<Self, HostError> {
        permissions::check(path)?;
        let bytes = read_bounded(path)?;
        let manifest: Self =
            serde_json::from_slice(&bytes).map_err(|e| malformed(path, format!("is not a manifest: {e}")))?;
        manifest.check_form(path)?;
        Ok(manifest)
    }

    fn check_form(&self, path: &Path) -> Result<(), HostError> {
        if self.schema != SCHEMA {
            return Err(malformed(path, format!("has schema {}, this host reads {SCHEMA}", self.schema)));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if self.name.is_empty() || self.name.len() > MAX_NAME || !self.name.chars().all(plain) {
            let rule = format!("`name` must be 1 to {MAX_NAME} letters, digits, `-`, `_` or `.`");
            return Err(malformed(path, rule));
        }
        if self.sha256.len() != 64 || !self.sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(malformed(path, "`sha256` must be 64 hexadecimal digits"));
        }
        if self.library.as_os_str().is_empty() {
            return Err(malformed(path, "`library` is empty"));
        }
        Ok(())
    }

    /// Checks everything that can be known without loading the library: target, ABI, permissions, checksum. Returns the
    /// library's path. `path` is the manifest's own.
    pub fn verify(&self, path: &Path) -> Result<PathBuf, HostError> {
        if self.target != target_triple() {
            let found = self.target.clone();
            return Err(HostError::Target { manifest: path.to_owned(), found, host: target_triple() });
        }
        if self.abi.major != ABI_MAJOR || self.abi.min_minor > ABI_MINOR {
            return Err(HostError::Abi {
                place: path.display().to_string(),
                wanted: format!("{}.{}", self.abi.major, self.abi.min_minor),
                host: format!("{ABI_MAJOR}.{ABI_MINOR}"),
            });
        }
        let library = self.library_path(path);
        permissions::check(&library)?;
        let found = sha256_of(&library)?;
        if !found.eq_ignore_ascii_case(&self.sha256) {
            let expected = self.sha256.clone();
            return Err(HostError::Checksum { library, expected, found });
        }
        Ok(library)
    }

    /// Path of the library, for a manifest at `path`.
    pub fn library_path(&self, path: &Path) -> PathBuf {
        path.parent().unwrap_or(Path::new("")).join(&self.library)
    }
}

/// What an author writes down of a plugin; the rest of a manifest is taken from the built library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Version of this form: [`SCHEMA`].
    pub schema: u32,
    /// Name of the backend.
    pub name: String,
    /// ABI that the library needs.
    pub abi: AbiRange,
}

impl Template {
    /// A template for a library that works with every host of this ABI major.
    pub fn new(name: impl Into<String>) -> Self {
        Self { schema: SCHEMA, name: name.into(), abi: AbiRange { major: ABI_MAJOR, min_minor: 0 } }
    }

    /// Reads a template file.
    pub fn read(path: &Path) -> Result<Self, HostError> {
        let bytes = read_bounded(path)?;
        serde_json::from_slice(&bytes).map_err(|e| malformed(path, format!("is not a template: {e}")))
    }

    /// The manifest of a library built for this host's target, for a file that will stand at `manifest`: the library's
    /// path is written relative where it lies in the manifest's folder or below.
    pub fn complete(&self, library: &Path, version: &str, manifest: &Path) -> Result<Manifest, HostError> {
        let absolute = std::path::absolute(library).map_err(|e| HostError::io(library, e))?;
        let at = std::path::absolute(manifest).map_err(|e| HostError::io(manifest, e))?;
        let folder = at.parent().unwrap_or(Path::new("/"));
        let complete = Manifest {
            schema: self.schema,
            name: self.name.clone(),
            version: version.to_owned(),
            library: absolute.strip_prefix(folder).map(Path::to_owned).unwrap_or_else(|_| absolute.clone()),
            abi: self.abi,
            target: target_triple().to_owned(),
            sha256: sha256_of(&absolute)?,
        };
        complete.check_form(manifest)?;
        Ok(complete)
    }
}

/// Writes the manifest of a library of this host's target to `manifest`, with its checksum.
pub fn write_for(library: &Path, name: &str, version: &str, manifest: &Path) -> Result<Manifest, HostError> {
    let complete = Template::new(name).complete(library, version, manifest)?;
    complete.write(manifest)?;
    Ok(complete)
}

impl Manifest {
    /// Writes the file, whole or not at all.
    pub fn write(&self, path: &Path) -> Result<(), HostError> {
        let io = |e| HostError::io(path, e);
        let text = serde_json::to_string_pretty(self).map_err(|e| io(e.into()))?;
        let mut whole = AtomicFile::begin(path).map_err(io)?;
        let file = whole.file();
        file.write_all(text.as_bytes()).and_then(|()| file.write_all(b"\n")).map_err(io)?;
        set_public(file).map_err(io)?;
        whole.finish().map_err(io)
    }
}

/// An installed manifest is readable by all and written by its user alone, whatever the umask says: the host refuses others.
#[cfg(unix)]
fn set_public(file: &File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn set_public(_file: &File) -> std::io::Result<()> {
    Ok(())
}

/// SHA-256 of a file, as hexadecimal digits.
pub fn sha256_of(path: &Path) -> Result<String, HostError> {
    let io = |e| HostError::io(path, e);
    let mut file = open_regular(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer).map_err(io)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

/// Opens a regular file: a pipe or device would block or never end.
fn open_regular(path: &Path) -> Result<File, HostError> {
    let meta = path.metadata().map_err(|e| HostError::io(path, e))?;
    if !meta.is_file() {
        let reason = std::io::Error::new(std::io::ErrorKind::InvalidInput, "is not a regular file");
        return Err(HostError::io(path, reason));
    }
    File::open(path).map_err(|e| HostError::io(path, e))
}

fn read_bounded(path: &Path) -> Result<Vec<u8>, HostError> {
    let mut bytes = Vec::new();
    let file = open_regular(path)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| HostError::io(path, e))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(malformed(path, format!("is larger than {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

fn malformed(path: &Path, reason: impl Into<String>) -> HostError {
    HostError::Manifest { path: path.to_owned(), reason: reason.into() }
}
