//! Promises of manifests about sources: that packages can be packed (no source of a published crate includes a file from
//! outside of its folder), and that a library without unit tests (`test = false`) has none that would never run.

use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result};
use regex::Regex;

use super::Finding;

/// The parts of a source that name a file, relative to that source.
static INCLUDED: LazyLock<Result<Regex, regex::Error>> = LazyLock::new(|| {
    Regex::new(
        r#"(?:include_str!|include_bytes!|include!)\s*\(\s*(?:concat!\s*\(\s*)?"([^"]+)"|#\[path\s*=\s*"([^"]+)"\]"#,
    )
});

/// Checks the sources below `src` of each package among `files` (relative to `root`) against their manifests.
pub(crate) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for folder in folders(files) {
        let manifest = std::fs::read_to_string(root.join(&folder).join("Cargo.toml"));
        let Ok(manifest) = manifest else { continue };
        for file in files.iter().filter(|file| file.starts_with(folder.join("src"))) {
            let text =
                std::fs::read_to_string(root.join(file)).with_context(|| file.display().to_string())?;
            findings.extend(source(&folder, &manifest, file, &text)?);
        }
    }
    Ok(findings)
}

/// The folders that have a folder `src`.
fn folders(files: &[PathBuf]) -> Vec<PathBuf> {
    let of = |file: &PathBuf| file.ancestors().find(|a| a.ends_with("src"))?.parent().map(Path::to_owned);
    let mut folders: Vec<PathBuf> = files.iter().filter_map(of).collect();
    folders.sort();
    folders.dedup();
    folders
}

fn source(folder: &Path, manifest: &str, file: &Path, text: &str) -> Result<Vec<Finding>> {
    let place = file.to_string_lossy().replace('\\', "/");
    let setting = |line: &str| manifest.lines().any(|l| l.trim() == line);
    let mut findings = Vec::new();
    if setting("test = false") && text.lines().any(|line| line.trim() == "#[test]") {
        findings
            .push(Finding::error(&*place, "has a test, but its package says `test = false` of its library"));
    }
    if setting("publish = false") {
        return Ok(findings);
    }
    let pattern = INCLUDED.as_ref().map_err(Clone::clone)?;
    for found in pattern.captures_iter(text) {
        let Some(name) = found.get(1).or(found.get(2)) else { continue };
        let target = plain(&file.parent().unwrap_or(file).join(name.as_str()));
        if !target.starts_with(folder) {
            let what = format!("includes `{}`, which is not packed with {}", name.as_str(), folder.display());
            findings.push(Finding::error(&*place, what));
        }
    }
    Ok(findings)
}

/// A path without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            out.pop();
        } else {
            out.push(part);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failing test may panic

    use std::path::Path;

    use super::source;

    fn found(manifest: &str, text: &str) -> usize {
        source(Path::new("crates/a"), manifest, Path::new("crates/a/src/b/c.rs"), text).unwrap().len()
    }

    #[test]
    fn included_files_are_inside() {
        let inside = "const A: &str = include_str!(\"../../data/x.txt\");\n#[path = \"d.rs\"]\nmod d;";
        let outside = "const A: &str = include_str!(concat!(\"../../../b/\", \"x\"));\n#[path = \"../../../b/d.rs\"]\nmod d;";
        assert_eq!((found("", inside), found("", outside)), (0, 2));
        assert_eq!(found("publish = false\n", outside), 0);
    }

    #[test]
    fn no_test_is_left_out() {
        let text = "#[cfg(test)]\nmod tests {\n    #[test]\n    fn one() {}\n}\n";
        assert_eq!((found("[lib]\ntest = false\n", text), found("[lib]\n", text)), (1, 0));
    }
}
