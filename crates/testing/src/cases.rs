//! Golden cases: archives with the values that PyTorch computed for them, in zip files (one case or many) inside the
//! project and in the larger corpus beside it. Where that corpus is absent, tests that need it say so and pass.
//!
//! What a case's safetensors file says in its metadata (inputs and weights by formula, samples of outputs) is read by
//! `cli::golden`, since the command opens such files too.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tensor::safetensors::SafetensorsFile;
use zip::ZipArchive;

/// An entry larger than this is none of a golden case.
const MAX_ENTRY: u64 = 1 << 30;

/// The project's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of `tests/data`.
pub fn data(file: &str) -> PathBuf {
    root().join("tests/data").join(file)
}

/// A file of the digits example.
pub fn digits(file: &str) -> PathBuf {
    root().join("examples/digits").join(file)
}

/// The folder beside the project that holds `corpus` and `models`; `None`, with a printed line, where it is absent.
pub fn shared() -> Option<PathBuf> {
    let shared = root().join("../shared");
    if shared.join("corpus/README.md").exists() {
        return Some(shared);
    }
    eprintln!("skipped: no corpus at {}", shared.display());
    None
}

/// The larger corpus, in the folder [`shared`].
pub fn corpus() -> Option<PathBuf> {
    shared().map(|shared| shared.join("corpus"))
}

/// The zip files of a folder, sorted by name.
///
/// # Panics
/// The folder cannot be read.
pub fn zips(folder: &Path) -> Vec<PathBuf> {
    crate::files::list(folder, "zip", 0)
}

/// An open zip file of cases.
pub struct Cases {
    zip: ZipArchive<File>,
    path: PathBuf,
}

impl Cases {
    /// Opens a zip file.
    ///
    /// # Errors
    /// It cannot be read or is no zip file.
    pub fn open(path: &Path) -> io::Result<Cases> {
        let with_path = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let file = File::open(path).map_err(with_path)?;
        let zip = ZipArchive::new(file).map_err(|e| with_path(io::Error::other(e)))?;
        Ok(Cases { zip, path: path.to_owned() })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the cases, sorted.
    pub fn names(&self) -> Vec<String> {
        let names = self.zip.file_names().filter_map(|name| name.ok());
        let mut stems: Vec<String> =
            names.filter_map(|name| name.strip_suffix(".pt2").map(str::to_owned)).collect();
        stems.sort();
        stems
    }

    /// The archive of a case.
    ///
    /// # Errors
    /// It is absent or damaged.
    pub fn archive(&mut self, name: &str) -> io::Result<Vec<u8>> {
        self.entry(&format!("{name}.pt2"))
    }

    /// The goldens of a case.
    ///
    /// # Errors
    /// They are absent or damaged.
    pub fn golden(&mut self, name: &str) -> io::Result<SafetensorsFile> {
        let bytes = self.entry(&format!("{name}.safetensors"))?;
        SafetensorsFile::from_bytes(&bytes).map_err(|e| self.with_path(name, e))
    }

    fn entry(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let path = self.path.display().to_string();
        let with_path = |e: &dyn std::fmt::Display| io::Error::other(format!("{path}: {name}: {e}"));
        let entry = self.zip.by_name(name).map_err(|e| with_path(&e))?;
        let mut bytes = Vec::new();
        entry.take(MAX_ENTRY).read_to_end(&mut bytes).map_err(|e| with_path(&e))?;
        Ok(bytes)
    }

    fn with_path(&self, name: &str, why: impl std::fmt::Display) -> io::Error {
        io::Error::other(format!("{}: {name}: {why}", self.path.display()))
    }
}
