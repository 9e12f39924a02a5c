//! Passes the target triple to the crate: manifests name the triple of their library, and `std` does not expose it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if let Ok(target) = std::env::var("TARGET") {
        println!("cargo::rustc-env=FFX_TARGET={target}");
    }
}
