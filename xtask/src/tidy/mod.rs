//! `xtask tidy`: the conventions of the project that the compiler does not check.
//!
//! The layer table of ARCHITECTURE.md against `cargo metadata` (`layers`), what manifests promise of sources (`packages`), and
//! every source file by itself: how it opens, how long it and its functions are, what its unsafe blocks say (`source`); and
//! words that must not return to sources and documents (`words`). It builds nothing and takes well under a second. It does not repeat what rustfmt and clippy judge.

mod layers;
mod packages;
mod source;
mod words;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::root::root;

/// Folders that hold no source of the project.
const NOT_SOURCE: [&str; 2] = ["target", "node_modules"];

/// How many warnings are printed without `--verbose`.
const FEW: usize = 5;

/// Arguments of `xtask tidy`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Prints every warning, not the first few.
    #[arg(long, short)]
    verbose: bool,
}

/// Something that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// File and line, or crate.
    place: String,
    what: String,
    /// Whether it fails the run; otherwise it is a warning.
    fails: bool,
}

impl Finding {
    fn error(place: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding { place: place.into(), what: what.into(), fails: true }
    }
    fn warning(place: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding { place: place.into(), what: what.into(), fails: false }
    }
}

/// Checks the project; `false` where a rule is broken.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = root()?;
    let mut findings = layers::check(&root)?;
    let (documents, files): (Vec<_>, Vec<_>) =
        texts(&root)?.into_iter().partition(|file| file.extension().is_some_and(|end| end == "md"));
    findings.extend(packages::check(&root, &files)?);
    for file in files.iter().chain(&documents) {
        let text = std::fs::read_to_string(root.join(file)).with_context(|| file.display().to_string())?;
        let path = file.to_string_lossy().replace('\\', "/");
        if !path.ends_with(".md") {
            findings.extend(source::check(&path, &text));
        }
        findings.extend(words::check(&path, &text));
    }
    let (errors, warnings): (Vec<_>, Vec<_>) = findings.into_iter().partition(|f| f.fails);
    let shown = if args.verbose { warnings.len() } else { FEW.min(warnings.len()) };
    for warning in &warnings[..shown] {
        println!("warning: {}: {}", warning.place, warning.what);
    }
    if shown < warnings.len() {
        println!("warning: {} more with --verbose", warnings.len() - shown);
    }
    for error in &errors {
        println!("error: {}: {}", error.place, error.what);
    }
    println!("tidy: {} files, {} errors, {} warnings", files.len(), errors.len(), warnings.len());
    Ok(errors.is_empty())
}

/// Every Rust file and every document below `root`, relative to it, sorted.
fn texts(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let path = entry.path();
            // A link may lead out of the project or back into it.
            if entry.file_type()?.is_dir() {
                if !name.starts_with('.') && !NOT_SOURCE.contains(&&*name) {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") || name.ends_with(".md") {
                files.push(path.strip_prefix(root).unwrap_or(&path).to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}
