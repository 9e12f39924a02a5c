//! Passes the path of the crate `plugin-sdk` in this checkout to the command, which `plugin new` depends on. A command that
//! is built from a published package has none.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let here = std::path::PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let sdk = here.join("../plugin-sdk").canonicalize().ok().filter(|sdk| sdk.join("Cargo.toml").is_file());
    println!("cargo::rustc-env=FFX_SDK={}", sdk.unwrap_or_default().display());
}
