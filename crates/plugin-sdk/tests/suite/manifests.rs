//! Discovery: manifests are read and checked before anything is loaded, and one bad plugin never spoils the rest.
//!
//! The linked `fixture` of `common` would win the name, so the libraries here call themselves so only where they lose.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::common::{self, args, installed, library};
use plugin_host::{BackendInfo, HostError, Manifest, Registry, SearchPath, Source};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Changes one key of the manifest (`null` removes it).
fn edit(folder: &Path, key: &str, value: Value) {
    let path = folder.join("fixture.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    match value {
        Value::Null => drop(manifest.as_object_mut().unwrap().remove(key)),
        value => manifest[key] = value,
    }
    std::fs::write(path, manifest.to_string()).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// What verifying (without loading) the installed manifest says.
fn refusal(folder: &Path) -> HostError {
    let path = folder.join("fixture.json");
    match Manifest::read(&path).and_then(|m| m.verify(&path)) {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error,
    }
}

#[test]
fn a_written_manifest_is_accepted() {
    let folder = installed();
    let path = folder.path().join("fixture.json");
    let manifest = Manifest::read(&path).unwrap();
    assert_eq!((manifest.name.as_str(), manifest.library.to_str()), ("fixture", Some("libfixture.so")));
    assert_eq!(manifest.verify(&path).unwrap(), folder.path().join("libfixture.so"));
}

#[test]
fn a_template_is_completed_from_the_built_library() {
    let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/cpu/ferroflux-cpu.json");
    let template = plugin_host::manifest::Template::read(&template).unwrap();
    let folder = installed();
    let library = folder.path().join("libfixture.so");
    let (near, far) = (folder.path().join("cpu.json"), TempDir::new().unwrap());
    let manifest = template.complete(&library, "9.9.9", &near).unwrap();
    assert_eq!((manifest.name.as_str(), manifest.library.to_str()), ("cpu", Some("libfixture.so")));
    manifest.write(&near).unwrap();
    assert_eq!(Manifest::read(&near).unwrap(), manifest);
    assert_eq!(std::fs::metadata(&near).unwrap().permissions().mode() & 0o777, 0o644);
    // From another folder the library is named by its full path.
    let far = far.path().join("cpu.json");
    assert_eq!(template.complete(&library, "9.9.9", &far).unwrap().library, library);
    let missing = template.complete(Path::new("/nowhere/lib.so"), "1", &near).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/lib.so"), "{missing}");
}

#[test]
fn the_manifest_must_match_the_library_and_the_host() {
    let cases: [(&str, Value, &str); 12] = [
        ("sha256", json!("0".repeat(64)), "SHA-256"),
        ("sha256", json!("123"), "64 hexadecimal digits"),
        ("sha256", Value::Null, "sha256"),
        ("target", json!("riscv64gc-unknown-linux-gnu"), "this host is"),
        ("abi", json!({"major": 2}), "needs plugin ABI 2.0"),
        ("abi", json!({"major": 1, "min_minor": 900}), "update Ferroflux"),
        ("abi", json!({"major": 0}), "update the plugin"),
        ("schema", json!(2), "schema 2"),
        ("name", json!("../../etc"), "`name` must be"),
        ("name", json!(""), "`name` must be"),
        ("library", json!("missing.so"), "missing.so"),
        ("library", json!(7), "is not a manifest"),
    ];
    for (key, value, wanted) in cases {
        let folder = installed();
        edit(folder.path(), key, value.clone());
        let error = refusal(folder.path()).to_string();
        assert!(error.contains(wanted), "{key} = {value}: {error}");
    }
}

#[test]
fn unknown_keys_are_left_to_later_versions() {
    let folder = installed();
    edit(folder.path(), "homepage", json!("https://example.org"));
    assert!(Manifest::read(&folder.path().join("fixture.json")).is_ok());
}

#[test]
fn world_writable_files_and_folders_are_refused() {
    for (name, mode) in [("fixture.json", 0o666), ("libfixture.so", 0o757), ("", 0o777), ("", 0o1777)] {
        let folder = installed();
        let path = folder.path().join(name);
        chmod(&path, mode);
        let error = refusal(folder.path());
        chmod(folder.path(), 0o755);
        assert!(matches!(error, HostError::WorldWritable { .. }), "{name:?} {mode:o}: {error}");
    }
    // A folder further up counts too, unless its sticky bit protects what others own.
    let outer = TempDir::new().unwrap();
    let inner = outer.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::copy(library("fixture"), inner.join("libfixture.so")).unwrap();
    common::write_manifest(&inner, &inner.join("libfixture.so"));
    chmod(outer.path(), 0o777);
    assert!(matches!(refusal(&inner), HostError::WorldWritable { .. }));
    chmod(outer.path(), 0o1777);
    assert!(Manifest::read(&inner.join("fixture.json")).is_ok());
}

#[test]
fn hostile_manifests_are_errors() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("big.json");
    let oversized = format!("{{\"schema\": 1, \"name\": \"{}\"}}", "x".repeat(100_000));
    for (text, wanted) in [
        (oversized.as_str(), "larger than"),
        (&"[".repeat(60_000), "is not a manifest"),
        ("", "is not a manifest"),
        ("{\"schema\": 1}", "is not a manifest"),
        ("\u{0}\u{1}\u{2}", "is not a manifest"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = Manifest::read(&path).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(Manifest::read(&path).unwrap_err().to_string().contains("not a regular file"));
}

/// Names but those of the backends that another module registers for the whole program (`older`).
fn without_others(names: impl IntoIterator<Item = impl Into<String>>) -> Vec<String> {
    names.into_iter().map(Into::into).filter(|name| !name.starts_with("reads-")).collect()
}

fn find<'a>(list: &'a [BackendInfo], name: &str) -> &'a BackendInfo {
    list.iter().find(|b| b.name == name).unwrap_or_else(|| panic!("{name} is not listed"))
}

#[test]
fn a_listing_names_every_backend_and_every_reason() {
    let folder = installed();
    let path = folder.path();
    // The library calls itself `fixture`: under another name it is found, but refused.
    let rename = |file: &str, name: &str, lib: &Path| {
        plugin_host::manifest::write_for(lib, name, "1", &path.join(file)).unwrap();
    };
    rename("renamed.json", "alias", &path.join("libfixture.so"));
    std::fs::copy(library("bare"), path.join("libbare.so")).unwrap();
    rename("bare.json", "bare", &path.join("libbare.so"));
    std::fs::write(path.join("libtext.so"), "this is no library").unwrap();
    rename("text.json", "text", &path.join("libtext.so"));
    std::fs::write(path.join("torn.json"), "{\"schema\": 1, ").unwrap();
    std::fs::write(path.join("notes.txt"), "not a manifest").unwrap();

    let registry = Registry::new(&SearchPath::only(path));
    let list = registry.list_backends();
    let shown = without_others(list.iter().map(|b| b.name.as_str()));
    assert_eq!(shown, ["fixture", "bare", "alias", "text", "torn"]);
    let reason = |name: &str| find(&list, name).unavailable_because.clone().unwrap_or_default();
    assert_eq!(reason("fixture"), "");
    assert!(reason("bare").contains("ffx_plugin_entry_v1"), "{}", reason("bare"));
    assert!(reason("alias").contains("calls itself `fixture`"), "{}", reason("alias"));
    assert!(reason("text").contains("libtext.so"), "{}", reason("text"));
    assert!(reason("torn").contains("is not a manifest"), "{}", reason("torn"));

    // The built-in wins the name; the library of the same name is shadowed.
    assert_eq!(find(&list, "fixture").source, Source::BuiltIn);
    let source = Source::Manifest(path.join("fixture.json"));
    assert_eq!(registry.shadowed(), [("fixture".to_owned(), source)]);
    // A file that is not a manifest wins no name, but asking for it tells why it is none.
    assert_eq!(without_others(registry.names()), ["fixture", "bare", "alias", "text"]);
    assert!(matches!(registry.load("torn"), Err(HostError::Manifest { .. })));
}

#[test]
fn the_first_folder_wins_a_name() {
    let (first, second) = (installed(), installed());
    for (folder, version) in [(&first, "first"), (&second, "second")] {
        let lib = folder.path().join("libfixture.so");
        plugin_host::manifest::write_for(&lib, "twice", version, &folder.path().join("fixture.json"))
            .unwrap();
    }
    let mut search = SearchPath::only(first.path());
    search.folders.extend(SearchPath::only(second.path()).folders);
    let registry = Registry::new(&search);
    assert_eq!(without_others(registry.names()), ["fixture", "twice"]);
    let lost = Source::Manifest(second.path().join("fixture.json"));
    assert_eq!(registry.shadowed(), [("twice".to_owned(), lost)]);
}

#[test]
fn unknown_names_suggest_near_and_available_ones() {
    let registry = Registry::new(&SearchPath::default());
    let error = registry.load("fixtrue").unwrap_err().to_string();
    assert!(error.contains("did you mean fixture") && error.contains("available: fixture"), "{error}");
    let error = registry.load("tensorrt").unwrap_err().to_string();
    assert!(!error.contains("did you mean") && error.contains("available: fixture"), "{error}");
}

#[test]
fn a_library_is_loaded_by_its_path() {
    let registry = Registry::new(&SearchPath::default());
    let folder = installed();
    let path = folder.path().join("libfixture.so");
    let backend = registry.load(path.to_str().unwrap()).unwrap();
    assert_eq!((backend.name(), backend.info().source), ("fixture", Source::Library(path.clone())));
    assert!(backend.compile(&args("scale 2")).is_ok());

    chmod(&path, 0o666);
    let open = registry.load(path.to_str().unwrap()).unwrap_err();
    assert!(matches!(open, HostError::WorldWritable { .. }), "{open}");
    for missing in ["/nowhere/libx.so", "libx.dll"] {
        assert!(registry.load(missing).unwrap_err().to_string().contains(missing));
    }
    let bare = registry.load(library("bare").to_str().unwrap()).unwrap_err().to_string();
    assert!(bare.contains("exports no"), "{bare}");
}

#[test]
fn a_library_cut_short_is_an_error_and_not_the_end_of_the_process() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("libcut.so");
    let whole = std::fs::read(library("fixture")).unwrap();
    let registry = Registry::new(&SearchPath::default());
    // Debug information at the end is not mapped, so only early cuts are sure to hurt.
    for keep in [0, 3, 40, 64, 100, 4096, whole.len() / 32, whole.len() / 16] {
        std::fs::write(&path, &whole[..keep]).unwrap();
        let error = registry.load(path.to_str().unwrap()).unwrap_err();
        assert!(matches!(error, HostError::Library { .. }), "{keep} bytes: {error}");
    }
}
