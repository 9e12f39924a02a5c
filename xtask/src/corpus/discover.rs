//! Finds cases: in zip files with one archive (a model) or many (operators), and in folders of such.

use std::path::Path;

use anyhow::{Context, Result};
use tensor::safetensors::SafetensorsFile;
use testing::cases::Cases;

use super::{Case, Kind};

/// The cases of a file or folder, sorted by name.
pub(crate) fn find(path: &Path) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(|| path.display().to_string())?;
        let mut entries = entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>()?;
        entries.sort();
        for entry in entries {
            if entry.is_dir() || matches!(extension(&entry), "zip" | "pt2") {
                cases.extend(find(&entry)?);
            }
        }
        return Ok(cases);
    }
    match extension(path) {
        "pt2" => cases.extend(plain(path)?),
        _ => cases.extend(zipped(path).with_context(|| path.display().to_string())?),
    }
    Ok(cases)
}

fn extension(path: &Path) -> &str {
    path.extension().and_then(|e| e.to_str()).unwrap_or("")
}

/// `folder/name` of a file, without its suffix.
fn name_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let part = |p: Option<&std::ffi::OsStr>| p.and_then(|s| s.to_str()).unwrap_or("").to_owned();
    let folder = part(path.parent().and_then(|p| p.file_name()));
    let stem = part(path.file_stem());
    if folder.is_empty() { stem } else { format!("{folder}/{stem}") }
}

/// An archive with its goldens next to it.
fn plain(path: &Path) -> Result<Option<Case>> {
    let golden = path.with_extension("safetensors");
    if !golden.exists() {
        return Ok(None);
    }
    let golden = SafetensorsFile::open(&golden).with_context(|| golden.display().to_string())?;
    let case = |kind| Case { case: name_of(path), kind, file: path.to_owned(), stem: None };
    Ok(kind_of(&golden).map(case))
}

fn zipped(path: &Path) -> Result<Vec<Case>> {
    let mut zip = Cases::open(path)?;
    let stems = zip.names();
    if let [stem] = &stems[..] {
        let golden = zip.golden(stem)?;
        let case = |kind| Case { case: name_of(path), kind, file: path.to_owned(), stem: Some(stem.clone()) };
        return Ok(kind_of(&golden).map(case).into_iter().collect());
    }
    let mut cases = Vec::new();
    for stem in stems {
        let golden = zip.golden(&stem)?;
        let case = |kind| Case { case: stem.clone(), kind, file: path.to_owned(), stem: Some(stem.clone()) };
        cases.push(case(Kind::Forward));
        if golden.tensors.keys().any(|k| k.starts_with("grad")) {
            cases.push(case(Kind::Gradient));
        }
    }
    Ok(cases)
}

/// What the goldens of a single program are for; `None` where there is nothing to compare with.
fn kind_of(golden: &SafetensorsFile) -> Option<Kind> {
    let has = |name: &str| golden.tensors.contains_key(name);
    if has("loss") || golden.metadata.contains_key("curves") {
        Some(Kind::Train)
    } else if has("s0.out0") {
        Some(Kind::Dynamic)
    } else if golden.metadata.contains_key("outs") {
        Some(Kind::Model)
    } else if has("out0") {
        Some(Kind::Forward)
    } else {
        None
    }
}
