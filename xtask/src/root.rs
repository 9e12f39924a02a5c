//! The project's root folder. Every command works from it, wherever it is called from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The folder of the workspace's `Cargo.toml`.
pub(crate) fn root() -> Result<PathBuf> {
    // Cargo reports at run time where this package is, so a checkout that was moved after the build is found too.
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map(Path::to_owned).with_context(|| format!("{} has no parent", package.display()))
}

/// The cargo that runs this program, else the one on the search path.
pub(crate) fn cargo() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}
