//! Gives the crate `FFX_BUILD`: a hash of all sources that decide what a graph is compiled to. Programs on disk are only
//! found where it is equal: versions of releases differ, but so do two builds between them. Versions of dependencies are in
//! it by way of the lock file. (`backend-cpu` has such a hash of its own, for it is also built without this crate.)

use std::path::{Path, PathBuf};

/// Crates beside this one that are always linked in.
const CRATES: &[&str] = &[
    "aot-autograd",
    "ferroflux",
    "fx-ir",
    "inductor",
    "ir-core",
    "kernel-ir",
    "linalg",
    "plugin-abi",
    "plugin-host",
    "prims",
    "pt2",
    "tensor",
];
/// Those of the CPU backend.
const CPU: &[&str] = &["backend-cpu", "host-routines", "plugin-sdk"];
/// Those of the CUDA backend.
const CUDA: &[&str] = &["backend-cuda", "gpu-codegen", "gpu-runtime", "host-routines", "plugin-sdk"];

fn main() {
    let variable = |name: &str| std::env::var_os(name);
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR").unwrap_or_default());
    let beside = here.parent().unwrap_or(Path::new("."));
    let mut crates = CRATES.to_vec();
    crates.extend_from_slice(if variable("CARGO_FEATURE_CPU").is_some() { CPU } else { &[] });
    crates.extend_from_slice(if variable("CARGO_FEATURE_CUDA").is_some() { CUDA } else { &[] });
    let mut files = vec![beside.join("../Cargo.lock")];
    for name in crates {
        let folder = beside.join(name).join("src");
        println!("cargo:rerun-if-changed={}", folder.display());
        collect(&folder, &mut files);
    }
    println!("cargo:rerun-if-changed={}", files[0].display());
    files.sort();
    files.dedup();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in files.iter().flat_map(|f| std::fs::read(f).unwrap_or_default()) {
        // FNV-1a: stable from build to build, which the standard library's hashers do not promise.
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    println!("cargo:rustc-env=FFX_BUILD={hash:016x}");
}

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
