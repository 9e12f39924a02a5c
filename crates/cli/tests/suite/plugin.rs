//! `ferroflux plugin` as its users meet it: a new project that builds offline, passes the suite, is installed and listed; what
//! is said of plugins that cannot be used.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn text(output: Output) -> Ran {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// The command, which finds plugins in `plugins` alone.
fn ferroflux(plugins: &Path, args: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroflux"));
    command.args(args).env_remove("FERROFLUX_LOG").env("FERROFLUX_PLUGIN_PATH", plugins);
    let nowhere = plugins.join("nowhere");
    for name in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_DATA_DIRS"] {
        command.env(name, &nowhere);
    }
    text(command.output().unwrap())
}

fn shown(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Writes a project, tests and builds it as its README says, but without the network, so with the workspace's lock file, which
/// names versions that are there, and without optimisation.
fn built(folder: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let project = folder.join("project");
    let ran = ferroflux(folder, &["plugin", "new", "fast-npu", "--path", &shown(&project)]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("cargo build --release"), "{}", ran.out);
    std::fs::copy(root.join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    // Kept between runs, so that only the project itself is rebuilt.
    let target = root.join("target/template");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for step in ["test", "build"] {
        let args = [step, "--offline", "--quiet", "--target-dir", &shown(&target)];
        let mut run = Command::new(&cargo);
        run.args(args).current_dir(&project).env_remove("RUSTFLAGS").env_remove("RUSTC_WORKSPACE_WRAPPER");
        let ran = text(run.output().unwrap());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
    }
    let name = format!("{}ferroflux_fast_npu{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    target.join("debug").join(name)
}

#[test]
fn a_new_plugin_builds_passes_is_installed_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    let plugins = folder.path().join("plugins");
    std::fs::create_dir(&plugins).unwrap();
    let library = shown(&built(folder.path()));
    let junit = folder.path().join("report.xml");
    let ran = ferroflux(&plugins, &["plugin", "check", &library, "--quick", "--junit", &shown(&junit)]);
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.out, ran.err);
    assert!(ran.out.contains("0 failed, 0 skipped"), "{}", ran.out);
    let xml = std::fs::read_to_string(junit).unwrap();
    assert!(xml.contains("failures=\"0\"") && xml.contains("name=\"ops.f32\""), "{xml}");

    // A whole network as it stands, against PyTorch's results.
    let (model, data) =
        (shown(&testing::cases::digits("digits.pt2")), shown(&testing::cases::digits("digits.safetensors")));
    let expected = ["--expect", &data, "--expect-names", "logits", "--backend", &library];
    let ran = ferroflux(&plugins, &[&["run", &model, "--inputs", &data][..], &expected].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("out0 is as expected"), "{}", ran.out);

    let ran = ferroflux(&plugins, &["plugin", "install", &library, "--into", &shown(&plugins)]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let ran = ferroflux(&plugins, &["backends"]);
    assert!(ran.out.contains("fast-npu: ready\n  interprets fused kernels"), "{}", ran.out);
    let ran = ferroflux(&plugins, &["plugin", "list"]);
    let row = ran.out.lines().find(|l| l.starts_with("fast-npu")).unwrap();
    assert!(row.contains("0.1.0") && row.contains("ok") && row.contains("ready"), "{row}");
    let ran = ferroflux(&plugins, &["plugin", "why", "fast-npu"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.ends_with("available\n"), "{}", ran.out);

    // Another build is another library.
    let installed = plugins.join(Path::new(&library).file_name().unwrap());
    let mut bytes = std::fs::read(&installed).unwrap();
    bytes.push(0);
    std::fs::write(&installed, bytes).unwrap();
    let ran = ferroflux(&plugins, &["plugin", "why", "fast-npu"]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.out.contains("FAILS  the library's checksum is the manifest's"), "{}", ran.out);
    let ran = ferroflux(&plugins, &["plugin", "list", "--json"]);
    assert!(ran.out.contains("\"checksum\":\"wrong\"") && ran.out.contains("\"unavailable\""), "{}", ran.out);
}

#[test]
fn an_existing_folder_is_never_touched() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there");
    std::fs::create_dir(&there).unwrap();
    let ran = ferroflux(folder.path(), &["plugin", "new", "npu", "--path", &shown(&there)]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.err.contains("is there already"), "{}", ran.err);
    assert_eq!(there.read_dir().unwrap().count(), 0);
    assert_eq!(folder.path().read_dir().unwrap().count(), 1, "nothing is left beside it");
    let ran = ferroflux(folder.path(), &["plugin", "new", "No Name"]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
}

#[test]
fn names_of_other_backends_are_not_given_twice() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("found.json"), "[]").unwrap();
    let mut names = vec!["eager", "oracle", "found"];
    if cfg!(feature = "cpu") {
        names.push("cpu");
    }
    for name in names {
        let project = folder.path().join("project");
        let ran = ferroflux(folder.path(), &["plugin", "new", name, "--path", &shown(&project)]);
        assert_eq!(ran.code, Some(2), "{}", ran.out);
        assert!(ran.err.contains(&format!("there is a backend `{name}` already")), "{}", ran.err);
        assert!(!project.exists());
    }
}

#[test]
fn a_library_that_does_not_load_is_told_alike_by_check_and_install() {
    let folder = tempfile::tempdir().unwrap();
    // A version behind the suffix is part of a path, not of a backend's name.
    let library = folder.path().join("text.so.6");
    std::fs::write(&library, "this is no library at all").unwrap();
    let reason = |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_ferroflux"))
            .args(args)
            .current_dir(folder.path())
            .env("HOME", folder.path())
            .output();
        let ran = text(output.unwrap());
        assert_eq!(ran.code, Some(1), "{}", ran.err);
        let said = format!("{}{}", ran.out, ran.err);
        assert!(said.contains("text.so.6: ") && !said.contains("no backend is named"), "{said}");
        let at = said.find("text.so.6: ").unwrap();
        said[at..].lines().next().unwrap().to_owned()
    };
    let checked = reason(&["plugin", "check", "text.so.6", "--only", "table"]);
    let installed = reason(&["plugin", "install", "text.so.6"]);
    assert!(installed.len() > "text.so.6: dlopen failed".len(), "{installed}");
    assert!(checked.starts_with(&installed), "`{checked}` is not `{installed}`");
    // The facade tells paths by the same rule.
    let ran = reason(&["bench", &digits(), "--backend", "text.so.6"]);
    assert!(ran.starts_with(&installed), "{ran}");
}

fn digits() -> String {
    shown(&testing::cases::digits("digits.pt2"))
}

#[test]
fn manifests_that_fail_a_rule_are_told_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("lib.so");
    std::fs::write(&library, b"no library").unwrap();
    let manifest = |name: &str, target: &str, major: u16| {
        let sum = "0".repeat(64);
        let text = format!(
            r#"{{"schema":1,"name":"{name}","library":"lib.so","abi":{{"major":{major}}},"target":"{target}","sha256":"{sum}"}}"#
        );
        std::fs::write(folder.path().join(format!("{name}.json")), text).unwrap();
    };
    let host = plugin_host::target_triple();
    manifest("other-target", "z80-unknown-cpm", 1);
    manifest("other-abi", host, 7);
    manifest("other-sum", host, 1);
    std::fs::write(folder.path().join("no-manifest.json"), "[]").unwrap();
    for (name, rule) in [
        ("other-target", "FAILS  the library was built for this machine's target"),
        ("other-abi", "FAILS  the library works with this host's ABI"),
        ("other-sum", "FAILS  the library's checksum is the manifest's"),
        ("no-manifest", "FAILS  the manifest has the form of this version"),
    ] {
        let ran = ferroflux(folder.path(), &["plugin", "why", name]);
        assert_eq!(ran.code, Some(1), "{}", ran.out);
        assert!(ran.out.contains(rule), "{name}: {}", ran.out);
        assert!(ran.err.contains(&format!("error: `{name}` is not available")), "{}", ran.err);
    }
    let ran = ferroflux(folder.path(), &["plugin", "why", "other-sun"]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.err.contains("did you mean") && ran.err.contains("other-sum"), "{}", ran.err);
    assert!(ran.err.contains("FERROFLUX_PLUGIN_PATH"), "{}", ran.err);
    let ran = ferroflux(folder.path(), &["plugin", "list"]);
    assert!(ran.out.lines().filter(|l| l.contains("unavailable")).count() >= 4, "{}", ran.out);
}

#[test]
fn checks_that_make_no_sense_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let ran = ferroflux(folder.path(), &["plugin", "check", "missing.so"]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.err.contains("missing.so"), "{}", ran.err);
    let text = folder.path().join("text.so");
    std::fs::write(&text, "text").unwrap();
    let ran = ferroflux(folder.path(), &["plugin", "check", &shown(&text)]);
    assert_eq!(ran.code, Some(1), "{}", ran.out);
    assert!(ran.err.contains("failed: table"), "{}", ran.err);
    let ran = ferroflux(folder.path(), &["plugin", "check", &shown(&text), "--only", "ops.f23"]);
    assert_eq!(ran.code, Some(2), "{}", ran.out);
    assert!(ran.err.contains("ops.f32"), "{}", ran.err);
    let ran = ferroflux(folder.path(), &["plugin", "check", "--list"]);
    assert!(ran.out.lines().count() >= 40, "{}", ran.out);
}
