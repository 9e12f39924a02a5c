//! `xtask mpi`: the networks and training steps of the mesh tests once more with processes as ranks, which exchange by MPI.
//!
//! Builds the plugin `mpi`, which needs an MPI and libclang, and starts the test program under `mpirun` with two and with four
//! processes. Not here: the tests (`crates/ferroflux/tests/suite/mesh.rs`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::root::{cargo, root};

/// Says that this machine has an MPI, libclang and the crates of the plugin.
pub(crate) const VARIABLE: &str = "FERROFLUX_MPI";
/// What the tests read the engine's library from.
const ENGINE: &str = "FERROFLUX_TEST_ENGINE";
/// The tests that run in every process of a launcher.
const TESTS: [&str; 2] = ["mesh::forward", "mesh::training"];

/// Arguments of `xtask mpi`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Processes of a run; several runs.
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    ranks: Vec<usize>,
}

/// Runs the tests; `false` where some fail.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = root()?;
    let engine = plugin(&root)?;
    let tests = test_program(&root)?;
    let mut passed = true;
    for ranks in &args.ranks {
        let mut command = Command::new("mpirun");
        // Ranks may share cores and be root's: it is about results.
        command.args(["--oversubscribe", "--allow-run-as-root", "--tag-output", "-np", &ranks.to_string()]);
        command.arg(&tests).args(TESTS).arg("--test-threads=1");
        command.env(ENGINE, &engine).current_dir(root.join("crates").join("ferroflux"));
        passed &= command.status().context("cannot start `mpirun`")?.success();
    }
    Ok(passed)
}

/// The library of the plugin.
fn plugin(root: &Path) -> Result<PathBuf> {
    let target = root.join("target").join("mpi");
    let mut command = Command::new(cargo());
    command
        .args(["build", "--quiet", "--manifest-path", "plugins/mpi/Cargo.toml", "--target-dir"])
        .arg(&target);
    if !command.current_dir(root).status().context("cannot start cargo")?.success() {
        bail!("the plugin `mpi` does not build: it needs an MPI (`mpicc`) and libclang");
    }
    let name = format!("{}ferroflux_mpi{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    Ok(target.join("debug").join(name))
}

/// The test program of the facade.
fn test_program(root: &Path) -> Result<PathBuf> {
    let mut command = Command::new(cargo());
    command.args(["test", "--workspace", "--exclude", "sentence-embeddings", "--test", "suite", "--no-run"]);
    command.args(["--message-format", "json"]).current_dir(root).stderr(Stdio::inherit());
    let output = command.output().context("cannot start cargo")?;
    let lines = output.stdout.split(|b| *b == b'\n').filter_map(|l| serde_json::from_slice::<Value>(l).ok());
    let of_facade = |v: &Value| {
        let manifest = v["manifest_path"].as_str().unwrap_or_default();
        Path::new(manifest).parent().is_some_and(|p| p.ends_with("crates/ferroflux"))
    };
    let found =
        lines.filter(of_facade).filter_map(|v| v["executable"].as_str().map(PathBuf::from)).next_back();
    found.context("cargo has not built the facade's tests")
}
