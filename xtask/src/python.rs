//! `xtask python`: tests of the Python package with an interpreter that has torch: the one that `--python` or
//! `FERROFLUX_PYTHON` names. Nothing is installed: the package is put together in `target/python`.
//!
//! Its own tests run by pytest, then a sample of PyTorch's operator tests (`python/tools/opinfo.py`). Not here: wheels, which
//! maturin builds (`pip install .` in `python/`).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::root::{cargo, root};

/// The variable that names an interpreter.
pub(crate) const VARIABLE: &str = "FERROFLUX_PYTHON";
/// The n-th of PyTorch's operators that are run, and the samples of each.
const SAMPLE: [&str; 4] = ["--every", "8", "--samples", "1"];
/// Percent of them that pass without torch's help.
const AT_LEAST: &str = "98";

/// Arguments of `xtask python`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The interpreter, with torch, numpy and pytest; else `FERROFLUX_PYTHON`.
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Only tests whose name matches this expression of pytest.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Puts the package together and runs nothing; prints the folder for `PYTHONPATH`.
    #[arg(long)]
    package: bool,
    /// Takes code of the release profile.
    #[arg(long)]
    release: bool,
}

/// Runs the tests; `false` where some fail.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = root()?;
    let site = package(&root, args.release)?;
    if args.package {
        println!("{}", site.display());
        return Ok(true);
    }
    let python = match args.python.clone().or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from)) {
        Some(python) => python,
        None => bail!("no interpreter: set {VARIABLE} to a Python with torch, numpy and pytest"),
    };
    usable(&python)?;
    let tests = root.join("python").join("tests");
    let mut pytest: Vec<&OsStr> =
        // The folder above the tests holds the package's sources, which must not come before the package itself.
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib"]
            .into_iter()
            .map(OsStr::new)
            .collect();
    pytest.push(tests.as_os_str());
    if let Some(only) = &args.only {
        pytest.extend([OsStr::new("-k"), OsStr::new(only)]);
    }
    let tested = python_run(&python, &site, &pytest)?;
    if args.only.is_some() {
        return Ok(tested);
    }
    let tool = root.join("python").join("tools").join("opinfo.py");
    let mut opinfo = vec![tool.as_os_str()];
    opinfo.extend(SAMPLE.iter().map(OsStr::new));
    let mut passed = tested;
    for direction in ["forward", "backward"] {
        let rest = ["--direction", direction, "--at-least", AT_LEAST].map(OsStr::new);
        passed &= python_run(&python, &site, &[&opinfo[..], &rest].concat())?;
    }
    Ok(passed)
}

/// Whether an interpreter has what the tests need.
///
/// # Errors
/// What it lacks.
pub(crate) fn usable(python: &Path) -> Result<()> {
    let script = "import numpy, pytest, torch; assert torch.__version__ >= '2.8', torch.__version__";
    let done = Command::new(python).args(["-c", script]).stdin(Stdio::null()).output();
    let done = done.with_context(|| python.display().to_string())?;
    if done.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&done.stderr);
    bail!("{} cannot run the tests: {}", python.display(), text.lines().last().unwrap_or("it fails"))
}

fn python_run(python: &Path, site: &Path, args: &[&OsStr]) -> Result<bool> {
    let status = Command::new(python)
        .args(args)
        .env("PYTHONPATH", site)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .status()
        .with_context(|| python.display().to_string())?;
    Ok(status.success())
}

/// Builds the native module and puts the package together as pip would install it; returns the folder for `PYTHONPATH`.
fn package(root: &Path, release: bool) -> Result<PathBuf> {
    let profile = if release { "release" } else { "dev" };
    let status = Command::new(cargo())
        // The features are those of the whole project's build, which tests have made already.
        .args(["build", "--quiet", "--workspace", "--exclude", "sentence-embeddings", "--lib"])
        .args(["--profile", profile])
        .current_dir(root)
        .status()
        .context("cargo build")?;
    if !status.success() {
        bail!("the native module does not build");
    }
    let (source, site) = (root.join("python").join("ferroflux"), root.join("target").join("python"));
    let target = site.join("ferroflux");
    std::fs::create_dir_all(&target).with_context(|| target.display().to_string())?;
    for entry in std::fs::read_dir(&source).with_context(|| source.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.extension().is_some_and(|e| e == "py" || e == "pyi" || e == "typed") || name == "py.typed" {
            std::fs::copy(&path, target.join(name)).with_context(|| path.display().to_string())?;
        }
    }
    let built = root.join("target").join(if release { "release" } else { "debug" });
    let (prefix, suffix) = (std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library = built.join(format!("{prefix}ferroflux_native{suffix}"));
    let module = target.join(if cfg!(windows) { "_native.pyd" } else { "_native.abi3.so" });
    // A process may have the old one mapped: it must not change under it.
    let fresh = target.join("_native.fresh");
    std::fs::copy(&library, &fresh).with_context(|| library.display().to_string())?;
    std::fs::rename(&fresh, &module).with_context(|| module.display().to_string())?;
    metadata(root, &site)?;
    Ok(site)
}

/// The files by which torch finds the backend, from `pyproject.toml`.
fn metadata(root: &Path, site: &Path) -> Result<()> {
    let project = root.join("python").join("pyproject.toml");
    let text = std::fs::read_to_string(&project).with_context(|| project.display().to_string())?;
    const GROUP: &str = "[project.entry-points.";
    let mut points = String::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some(group) = line.strip_prefix(GROUP).and_then(|rest| rest.strip_suffix(']')) {
            points.push_str(&format!("[{group}]\n"));
            inside = true;
        } else if line.starts_with('[') {
            inside = false;
        } else if inside {
            points.push_str(&line.replace('"', ""));
            points.push('\n');
        }
    }
    let info = site.join(concat!("ferroflux-", env!("CARGO_PKG_VERSION"), ".dist-info"));
    std::fs::create_dir_all(&info).with_context(|| info.display().to_string())?;
    let about = concat!("Metadata-Version: 2.1\nName: ferroflux\nVersion: ", env!("CARGO_PKG_VERSION"), "\n");
    std::fs::write(info.join("METADATA"), about).context("METADATA")?;
    std::fs::write(info.join("entry_points.txt"), points).context("entry_points.txt")
}
