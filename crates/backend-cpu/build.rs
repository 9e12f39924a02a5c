//! Gives the crate `FFX_CPU_BUILD`: a hash of all sources that decide what machine code a program becomes. Saved code is
//! only loaded where it is equal. The versions of dependencies are in it by way of the lock file.

use std::path::{Path, PathBuf};

/// Crates beside this one whose sources count; those that are not there (a copy of this crate alone) do not.
const CRATES: [&str; 5] = ["backend-cpu", "kernel-ir", "ir-core", "host-routines", "linalg"];

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let beside = here.parent().unwrap_or(Path::new("."));
    let mut files = vec![beside.join("../Cargo.lock")];
    for name in CRATES {
        let folder = beside.join(name).join("src");
        println!("cargo:rerun-if-changed={}", folder.display());
        collect(&folder, &mut files);
    }
    println!("cargo:rerun-if-changed={}", files[0].display());
    files.sort();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in files.iter().flat_map(|f| std::fs::read(f).unwrap_or_default()) {
        // FNV-1a: stable from build to build, which the standard library's hashers do not promise.
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    println!("cargo:rustc-env=FFX_CPU_BUILD={hash:016x}");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = folder.read_dir() else { return };
    for path in entries.filter_map(Result::ok).map(|e| e.path()) {
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}
