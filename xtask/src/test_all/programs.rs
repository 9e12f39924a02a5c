//! Runs the workspace's test programs, several at a time: most have a last test that leaves a processor idle, which cargo's own
//! runner, one program after another, waits for.
//!
//! Not here: doc tests, which cargo runs.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::root::cargo;

/// Programs that run at the same time.
const AT_ONCE: usize = 2;
/// The packages whose tests take longest, in this order: begun first, none of them is left alone at the end.
const LONGEST: [&str; 4] = ["gpu-emulator", "ferroflux", "sharding", "backend-cpu"];

/// What tests of emulated kernels read: whether each case is computed for all architectures.
const ARCHITECTURES: &str = "FERROFLUX_ARCHITECTURES";

/// A test program.
struct Program {
    executable: PathBuf,
    /// The folder of its package, in which it runs.
    package: PathBuf,
    /// What it was built from.
    source: String,
}

/// Builds the tests that these arguments of cargo name and runs them, with all output in the file; `false` where any failed or
/// did not build. `full` runs them with all that they may leave out.
pub(super) fn run(args: &[String], full: bool, root: &Path, log: &Path) -> Result<bool> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let build = Command::new(cargo())
        .args(args)
        .args(["--no-run", "--message-format", "json-render-diagnostics"])
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(file.try_clone()?)
        .output()
        .with_context(|| format!("cargo {}", args.join(" ")))?;
    let text = String::from_utf8_lossy(&build.stdout);
    let mut programs: Vec<Program> = text.lines().filter_map(program).collect();
    programs
        .sort_by_key(|p| LONGEST.iter().position(|name| p.package.ends_with(name)).unwrap_or(LONGEST.len()));
    ensure!(!build.status.success() || !programs.is_empty(), "cargo tells of no test programs");
    let libraries = libraries(root)?;
    let (queue, log) = (Mutex::new(VecDeque::from(programs)), Mutex::new(file));
    let work = || -> Result<bool> {
        let mut passed = true;
        while let Some(program) = lock(&queue).pop_front() {
            passed &= program.run(full, &libraries, &log)?;
        }
        Ok(passed)
    };
    let all: Vec<Result<bool>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Ok(false))).collect()
    });
    let mut passed = build.status.success();
    for one in all {
        passed &= one?;
    }
    Ok(passed)
}

/// The test program that a line of cargo's messages tells of.
fn program(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    (message["reason"] == "compiler-artifact" && message["profile"]["test"] == true).then_some(())?;
    let package = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let source = Path::new(message["target"]["src_path"].as_str()?);
    Some(Program {
        executable: message["executable"].as_str()?.into(),
        source: source.strip_prefix(&package).unwrap_or(source).display().to_string(),
        package,
    })
}

/// Where programs find shared libraries: the workspace's and those of the toolchain.
fn libraries(root: &Path) -> Result<OsString> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).current_dir(root).output();
    let sysroot = sysroot.context("rustc --print sysroot")?;
    let toolchain = Path::new(String::from_utf8_lossy(&sysroot.stdout).trim()).join("lib");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let own = [target.join("debug/deps"), target.join("debug"), toolchain];
    let before = std::env::var_os(VARIABLE).unwrap_or_default();
    Ok(std::env::join_paths(own.into_iter().chain(std::env::split_paths(&before)))?)
}

const VARIABLE: &str =
    if cfg!(target_os = "macos") { "DYLD_FALLBACK_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };

impl Program {
    /// Whether all tests pass. Their output is written behind that of the programs that ended before.
    fn run(&self, full: bool, libraries: &OsStr, log: &Mutex<File>) -> Result<bool> {
        let output = Command::new(&self.executable)
            .current_dir(&self.package)
            .env("CARGO_MANIFEST_DIR", &self.package)
            .env(VARIABLE, libraries)
            .envs(full.then_some((ARCHITECTURES, "all")))
            .stdin(Stdio::null())
            .output()
            .with_context(|| self.executable.display().to_string())?;
        let mut log = lock(log);
        writeln!(log, "     Running {} of {}", self.source, self.package.display())?;
        log.write_all(&output.stdout)?;
        log.write_all(&output.stderr)?;
        if !output.status.success() {
            writeln!(log, "{} of {}: {}", self.source, self.package.display(), output.status)?;
        }
        Ok(output.status.success())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::program;

    #[test]
    fn messages_about_test_programs_are_read() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/a/Cargo.toml","target":{"src_path":"/w/crates/a/tests/suite/main.rs"},"profile":{"test":true},"executable":"/w/target/debug/deps/suite-1"}"#;
        let found = program(line).expect("a test program");
        assert_eq!(
            (found.source.as_str(), found.package.to_str()),
            ("tests/suite/main.rs", Some("/w/crates/a"))
        );
        assert!(program(&line.replace("\"test\":true", "\"test\":false")).is_none());
        assert!(program("   Compiling a v0.1.0").is_none());
    }
}
