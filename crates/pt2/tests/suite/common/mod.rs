//! What the tests of this crate share: a check of a read program, the golden archives, and zip files taken apart.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each test binary uses its part")]

use std::io::{Cursor, Read, Write};
use std::path::PathBuf;

use pt2::ExportedProgram;

/// A golden archive of `tests/data` at the repository's root.
pub fn golden(name: &str) -> PathBuf {
    testing::cases::data("pt2").join(name)
}

/// What is wrong with a program that was read: what the verifier says, and weights without a graph input.
pub fn problems_of(program: &ExportedProgram) -> Vec<String> {
    let well_formed = fx_ir::well_formed(&program.graph).err().unwrap_or_default();
    let mut problems: Vec<String> = well_formed.iter().map(ToString::to_string).collect();
    for input in &program.inputs {
        if input.value.is_none() == input.constant.is_none() {
            problems.push(format!("input {} is neither a value nor a constant", input.path));
        }
    }
    let weights = program.graph.inputs().filter(|(_, kind, _)| *kind != fx_ir::InputKind::User).count();
    if weights != program.weights.len() {
        problems.push(format!("{weights} weight inputs, {} weights", program.weights.len()));
    }
    problems
}

/// The archive with every entry passed through `change` (`None` drops it), stored.
pub fn rezip(archive: &[u8], mut change: impl FnMut(&str, Vec<u8>) -> Option<Vec<u8>>) -> Vec<u8> {
    let entries =
        entries(archive).into_iter().filter_map(|(name, bytes)| Some((name.clone(), change(&name, bytes)?)));
    write_zip(entries, zip::CompressionMethod::Stored)
}

/// All entries of a zip file.
pub fn entries(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut zip = zip::ZipArchive::new(Cursor::new(archive)).unwrap();
    (0..zip.len())
        .map(|i| {
            let mut file = zip.by_index(i).unwrap();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            (file.name().unwrap().into_owned(), bytes)
        })
        .collect()
}

/// A zip file of these entries.
pub fn write_zip(
    entries: impl IntoIterator<Item = (String, Vec<u8>)>,
    method: zip::CompressionMethod,
) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        zip.start_file(name, options).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}
