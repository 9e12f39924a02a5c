//! The whole way of an installed plugin, manifest, checks, library, execution, in a program of its own: it links no backend,
//! where the other tests register some for their whole process.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use plugin_host::{CompileArgs, IrVersion, Registry, SearchPath, Source};
use tensor::Tensor;

fn library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let file = format!("{}fixture{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    tests.parent().unwrap().parent().unwrap().join("examples").join(file)
}

#[test]
fn an_installed_plugin_is_found_checked_loaded_and_run() {
    let folder = tempfile::TempDir::new().unwrap();
    let manifest = folder.path().join("fixture.json");
    plugin_host::manifest::write_for(&library(), "fixture", "0.3.1", &manifest).unwrap();
    let variable = folder.path().as_os_str().to_owned();
    let search =
        SearchPath::from_lookup(|name| (name == "FERROFLUX_PLUGIN_PATH").then(|| variable.clone()), None);
    let registry = Registry::new(&search);
    let list = registry.list_backends();
    assert_eq!(list[0].source, Source::Manifest(manifest));
    assert_eq!(list[0].unavailable_because, None);

    let backend = registry.load("fixture").unwrap();
    let mut program = backend.compile(&CompileArgs::new(IrVersion::fx_ir(1, 1), b"scale 4 bias")).unwrap();
    program.bind_constants(&[("bias", &Tensor::from_slice(&[1f32], &[]).unwrap())]).unwrap();
    let out = program.execute(&[&Tensor::from_slice(&[1f32, 2., 3.], &[3]).unwrap()]).unwrap();
    assert_eq!(out[0].to_vec::<f32>().unwrap(), [5., 9., 13.]);
}
