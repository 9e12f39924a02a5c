//! Places of the fixture libraries, and the two ways to the same backend. Each test file uses its part of this.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use plugin_host::{
    BuiltinPlugin, CompileArgs, IrVersion, LoadedBackend, LoadedExecutable, Registry, SearchPath,
};
use tempfile::TempDir;

#[path = "../../../examples/fixture/backend.rs"]
pub(crate) mod backend;

plugin_host::inventory::submit! {
    BuiltinPlugin { name: "fixture", entry: plugin_sdk::entry::<backend::Fixture> }
}

/// A library of `examples/`, which `cargo test -p ferroflux-plugin-sdk` builds beside the tests.
pub fn library(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let folder = tests.parent().unwrap().parent().unwrap().join("examples");
    let file = format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let path = folder.join(file);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build -p ferroflux-plugin-sdk --examples`",
        path.display()
    );
    path
}

/// A folder with a copy of the fixture library and its manifest, `fixture.json`.
pub fn installed() -> TempDir {
    let folder = TempDir::new().unwrap();
    let copy = folder.path().join("libfixture.so");
    std::fs::copy(library("fixture"), &copy).unwrap();
    write_manifest(folder.path(), &copy);
    folder
}

/// Writes `fixture.json` for a library.
pub fn write_manifest(folder: &Path, library: &Path) {
    plugin_host::manifest::write_for(library, "fixture", "0.3.1", &folder.join("fixture.json")).unwrap();
}

/// The backend as a library loaded by its path.
pub fn dynamic() -> LoadedBackend {
    Registry::new(&SearchPath::default()).load(library("fixture").to_str().unwrap()).unwrap()
}

/// The backend linked into this test.
pub fn embedded() -> LoadedBackend {
    Registry::new(&SearchPath::default()).load("fixture").unwrap()
}

/// Runs a test against both.
pub fn with_each_backend(test: impl Fn(&LoadedBackend)) {
    test(&embedded());
    test(&dynamic());
}

/// A program of the fixture.
pub fn args(text: &str) -> CompileArgs<'_> {
    CompileArgs::new(IrVersion::fx_ir(1, 0), text.as_bytes())
}

/// Compiles a program that must compile.
pub fn compile(backend: &LoadedBackend, text: &str) -> LoadedExecutable {
    backend.compile(&args(text)).unwrap()
}
