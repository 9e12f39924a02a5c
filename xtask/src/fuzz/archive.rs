//! A `.pt2` archive taken apart for the mutator: its program as JSON, all other entries as bytes. It reads only archives of
//! the corpus, which are valid; `pt2` handles untrusted ones.

use std::io::{Cursor, Read, Write};

use anyhow::{Context, Result};
use serde_json::Value;
use zip::write::SimpleFileOptions;

/// An archive whose parts can be changed.
#[derive(Clone)]
pub(crate) struct Parts {
    /// Name of the program's entry.
    program_name: String,
    /// The program: `models/….json`.
    pub(crate) program: Value,
    /// Everything else, by name.
    pub(crate) entries: Vec<(String, Vec<u8>)>,
}

impl Parts {
    /// Takes an archive apart.
    pub(crate) fn read(bytes: &[u8]) -> Result<Parts> {
        let mut archive = zip::ZipArchive::new(Cursor::new(bytes))?;
        let (mut program, mut entries) = (None, Vec::new());
        for n in 0..archive.len() {
            let mut entry = archive.by_index(n)?;
            let name = entry.name()?.into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content)?;
            if name.contains("/models/") && name.ends_with(".json") {
                program = Some((name, serde_json::from_slice(&content)?));
            } else {
                entries.push((name, content));
            }
        }
        let (program_name, program) = program.context("an archive without a program")?;
        Ok(Parts { program_name, program, entries })
    }

    /// Puts the archive together again.
    pub(crate) fn write(&self) -> Result<Vec<u8>> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let stored = SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
        for (name, content) in &self.entries {
            zip.start_file(name, stored)?;
            zip.write_all(content)?;
        }
        zip.start_file(&self.program_name, stored)?;
        zip.write_all(&serde_json::to_vec(&self.program)?)?;
        Ok(zip.finish()?.into_inner())
    }
}
