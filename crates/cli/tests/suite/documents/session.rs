//! A shell in a scratch copy of the project's root, in which a page's commands run one after another.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use testing::cases::root;

/// What a command printed, standard output before standard error, and whether it succeeded.
pub(super) struct Answer {
    pub(super) success: bool,
    pub(super) text: String,
}

/// Stands for `cargo` in a session. The command is the one of this build; a plugin's project and the example libraries are
/// those that the tests build anyway, without optimisation, and are put where the release profile would have put them.
const CARGO: &str = r#"#!/bin/sh
set -e
case "$*" in
"run --release -- "*) shift 3; exec ferroflux "$@" ;;
"build --release")
    test -f Cargo.toml || { echo "no project is here" >&2; exit 1; }
    test -f Cargo.lock || cp "$ROOT/Cargo.lock" .
    "$REAL_CARGO" build --offline --quiet --target-dir "$ROOT/target/template"
    mkdir -p target/release
    cp "$ROOT/target/template/debug/"lib"$(basename "$PWD" | tr - _)"."$SUFFIX" target/release/ ;;
"build --release -p ferroflux-cpu") mkdir -p target/release; cp "$BUILT/"libferroflux_cpu."$SUFFIX" target/release/ ;;
"build -p ferroflux --example graph_plugin")
    mkdir -p target/debug/examples; cp "$BUILT/examples/"libgraph_plugin."$SUFFIX" target/debug/examples/ ;;
*) echo "the pages' cargo knows no \`$*\`" >&2; exit 1 ;;
esac
"#;

/// A session; its files are gone with it.
pub(super) struct Session {
    folder: TempDir,
    cwd: PathBuf,
}

impl Session {
    /// A root with links to what the project has, and copies of the folders in which a page builds something.
    pub(super) fn new() -> Session {
        let folder = tempfile::tempdir().unwrap();
        // Links in the temporary folder's own path would show in answers.
        let top = folder.path().canonicalize().unwrap();
        let (home, bin, cwd) = (top.join("home"), top.join("bin"), top.join("ferroflux"));
        for made in [&home, &bin, &cwd, &cwd.join("examples")] {
            std::fs::create_dir(made).unwrap();
        }
        let project = root().canonicalize().unwrap();
        for part in ["Cargo.toml", "crates", "docs", "tests"] {
            symlink(project.join(part), cwd.join(part)).unwrap();
        }
        for entry in project.join("examples").read_dir().unwrap() {
            let entry = entry.unwrap();
            let to = cwd.join("examples").join(entry.file_name());
            if entry.file_name() == "c-backend" {
                copy(&entry.path(), &to);
            } else {
                symlink(entry.path(), to).unwrap();
            }
        }
        symlink(env!("CARGO_BIN_EXE_ferroflux"), bin.join("ferroflux")).unwrap();
        let cargo = bin.join("cargo");
        std::fs::write(&cargo, CARGO).unwrap();
        std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
        Session { folder, cwd }
    }

    /// Runs a line as a shell does; where it changes the folder, so it is for the next one.
    pub(super) fn run(&mut self, typed: &str) -> Answer {
        let top = self.folder.path().canonicalize().unwrap();
        let (home, place) = (top.join("home"), top.join("place"));
        let path = std::env::var("PATH").unwrap();
        let built = Path::new(env!("CARGO_BIN_EXE_ferroflux")).parent().unwrap();
        let output = Command::new("sh")
            .arg("-c")
            .arg(format!("{typed}\nstatus=$?\npwd > '{}'\nexit $status", place.display()))
            .current_dir(&self.cwd)
            .env("PATH", format!("{}:{path}", top.join("bin").display()))
            .env("HOME", &home)
            .env("PWD", &self.cwd)
            .env("REAL_CARGO", std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .env("CARGO_HOME", own("CARGO_HOME", ".cargo"))
            .env("RUSTUP_HOME", own("RUSTUP_HOME", ".rustup"))
            .env("ROOT", root().canonicalize().unwrap())
            .env("BUILT", built)
            .env("SUFFIX", std::env::consts::DLL_EXTENSION)
            .env("FERROFLUX_CACHE", "off")
            .env_remove("FERROFLUX_LOG")
            .env_remove("FERROFLUX_PLUGIN_PATH")
            .env_remove("RUSTFLAGS")
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME")
            .env_remove("XDG_DATA_DIRS")
            .output()
            .unwrap();
        if let Ok(now) = std::fs::read_to_string(&place) {
            self.cwd = PathBuf::from(now.trim_end());
        }
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).replace(&home.display().to_string(), "/home/you");
            text.replace(&top.display().to_string(), "/home/you")
        };
        Answer { success: output.status.success(), text: text(&output.stdout) + &text(&output.stderr) }
    }
}

/// Where the toolchain has its files: as it is set, or in the home of whoever runs the tests.
fn own(variable: &str, folder: &str) -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(folder);
    std::env::var_os(variable).map_or_else(home, PathBuf::from)
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in from.read_dir().unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}
