//! For build scripts: computes a hash of the sources that determine the code a crate generates. Data saved by another build
//! is used only if the hash is equal: release versions differ, but so do two builds of one version.
//!
//! Which sources these are is read from the manifests, so that no crate can be forgotten: the crate itself and all crates next to
//! it that it depends on, recursively. Versions of other dependencies enter the hash through the lock file. It is not a checksum
//! against attackers, and not part of a running program: only build scripts call [`emit`].

use std::path::{Path, PathBuf};

/// Sets the variable `variable` of the crate that is built to the hash of the sources (`src` and the manifest) of that crate and
/// of all crates next to it that it is made of, and of the workspace's lock file; has the script run again where one of them
/// changes. What is not there (a copy of the crate alone) does not count.
pub fn emit(variable: &str) {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let beside = here.parent().unwrap_or(Path::new("."));
    let mut files = vec![beside.join("../Cargo.lock")];
    println!("cargo::rerun-if-changed={}", files[0].display());
    for folder in closure(&here) {
        let (manifest, sources) = (folder.join("Cargo.toml"), folder.join("src"));
        println!("cargo::rerun-if-changed={}", manifest.display());
        println!("cargo::rerun-if-changed={}", sources.display());
        files.push(manifest);
        collect(&sources, &mut files);
    }
    println!("cargo::rustc-env={variable}={:016x}", hash(beside, files));
}

/// The folders of a crate and of the crates next to it that it is made of: its dependencies, optional ones too, in turn.
fn closure(own: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = vec![own.to_owned()];
    let mut next = 0;
    while let Some(folder) = found.get(next) {
        let beside = folder.parent().unwrap_or(Path::new(".")).to_owned();
        let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        for name in dependencies(&manifest) {
            // Packages may have a longer name than their folders.
            let folders = [name, name.trim_start_matches("ferroflux-")].map(|name| beside.join(name));
            let folder = folders.into_iter().find(|f| f.join("Cargo.toml").is_file());
            if let Some(folder) = folder.filter(|f| !found.contains(f)) {
                found.push(folder);
            }
        }
        next += 1;
    }
    found
}

/// The names in the section `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    manifest.lines().filter_map(move |line| {
        if line.starts_with('[') {
            inside = line.trim_end() == "[dependencies]";
            return None;
        }
        let name = line.split(['.', '=', ' ']).next()?;
        (inside && !name.is_empty() && !name.starts_with('#')).then_some(name)
    })
}

/// The files of a folder and of all folders in it.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = folder.read_dir() else { return };
    for path in entries.filter_map(Result::ok).map(|e| e.path()) {
        if path.is_dir() {
            collect(&path, files);
        } else {
            files.push(path);
        }
    }
}

/// The hash covers file names relative to `root` and contents, in a fixed order. It is FNV-1a, which is stable between
/// builds; the hashers of the standard library do not promise that.
fn hash(root: &Path, mut files: Vec<PathBuf>) -> u64 {
    files.sort();
    files.dedup();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file);
        add(name.to_string_lossy().as_bytes());
        add(&std::fs::read(&file).unwrap_or_default());
    }
    hash
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failing test may panic

    use std::fs;

    use super::*;

    fn of(root: &Path) -> u64 {
        let mut files = Vec::new();
        collect(root, &mut files);
        hash(root, files)
    }

    #[test]
    fn a_crate_is_made_of_its_dependencies_in_turn() {
        let root = tempfile::tempdir().unwrap();
        for (name, manifest) in [
            ("top", "[package]\nname = \"top\"\n[dependencies]\nmiddle.workspace = true\nserde = \"1\"\n"),
            (
                "middle",
                "[dependencies]\n# A remark.\nferroflux-low = { path = \"../low\", optional = true }\n[dev-dependencies]\nother.workspace = true\n",
            ),
            ("low", "[dependencies]\ntop.workspace = true\n"),
            ("other", ""),
        ] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("Cargo.toml"), manifest).unwrap();
        }
        let names = ["top", "middle", "low"].map(|name| root.path().join(name));
        assert_eq!(closure(&names[0]), names);
    }

    #[test]
    fn names_and_contents_decide_and_the_place_does_not() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for root in [&a, &b] {
            fs::create_dir(root.path().join("deep")).unwrap();
            fs::write(root.path().join("one.rs"), "1").unwrap();
            fs::write(root.path().join("deep/two.cuh"), "2").unwrap();
        }
        let first = of(a.path());
        assert_eq!(first, of(b.path()));
        fs::write(b.path().join("deep/two.cuh"), "3").unwrap();
        assert_ne!(first, of(b.path()));
        fs::write(b.path().join("deep/two.cuh"), "2").unwrap();
        assert_eq!(first, of(b.path()));
        fs::rename(b.path().join("one.rs"), b.path().join("three.rs")).unwrap();
        assert_ne!(first, of(b.path()));
        // What is at the end of one file is not the beginning of another.
        fs::write(a.path().join("one.rs"), "").unwrap();
        fs::write(a.path().join("deep/two.cuh"), "21").unwrap();
        let moved = of(a.path());
        fs::write(a.path().join("one.rs"), "1").unwrap();
        fs::write(a.path().join("deep/two.cuh"), "2").unwrap();
        assert_ne!(moved, of(a.path()));
    }
}
