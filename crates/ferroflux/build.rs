//! Gives the crate `FFX_BUILD`: a hash of all sources that decide what a graph is compiled to, those of the backends that are
//! linked in included. (`backend-cpu` has one of its own, for it is also built without this crate.)

/// Crates beside this one that are always linked in.
const CRATES: &[&str] = &[
    "aot-autograd",
    "ferroflux",
    "fx-ir",
    "inductor",
    "interp",
    "ir-core",
    "kernel-ir",
    "linalg",
    "plugin-abi",
    "plugin-host",
    "plugin-sdk",
    "prims",
    "pt2",
    "tensor",
];
/// Those of the CPU backend.
const CPU: &[&str] = &["backend-cpu", "host-routines"];
/// Those of the CUDA backend.
const CUDA: &[&str] = &["backend-cuda", "gpu-codegen", "gpu-runtime", "host-routines"];

fn main() {
    let feature = |name: &str| std::env::var_os(format!("CARGO_FEATURE_{name}")).is_some();
    let mut crates = CRATES.to_vec();
    crates.extend_from_slice(if feature("CPU") { CPU } else { &[] });
    crates.extend_from_slice(if feature("CUDA") { CUDA } else { &[] });
    source_hash::emit("FFX_BUILD", &crates);
}
