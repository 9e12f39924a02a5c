//! `xtask gpu-suite`: operators, models, training and benchmarks on a machine with a GPU and without a Rust
//! toolchain. `pack` puts the built programs and the cases into one folder; `run`, there, goes through the steps
//! (`steps`) within a time limit, keeps a log of each and prints a table of how they ended; `compare` makes the table of all
//! programs on both sides.
//!
//! The measurements and comparisons are those of the programs that it calls: `xtask corpus`, `ferroflux bench`, and
//! PyTorch's own script beside the corpus.

mod compare;
mod decode;
mod faults;
mod fit;
mod indices;
mod losses;
mod masks;
mod rows;
mod small;
mod steps;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::steps::{Step, steps};

/// Arguments of `xtask gpu-suite`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Collects built programs and cases in a folder.
    Pack {
        /// The folder, which must not exist yet.
        folder: PathBuf,
        /// The folder with the built programs `ferroflux` and `xtask`.
        #[arg(long, default_value = "target/release")]
        programs: PathBuf,
        /// The golden cases, with PyTorch's scripts in `../peers`.
        #[arg(long, default_value = "../shared/corpus")]
        corpus: PathBuf,
    },
    /// Runs out of memory and loses the first device, deliberately, and continues.
    Faults,
    /// Runs programs with out-of-bounds indices, and times the checks.
    Indices(indices::Args),
    /// Times attention with the masks of models beside the causal kernel.
    Masks(masks::Args),
    /// Times attention over caches of keys and values.
    Decode(decode::Args),
    /// Times cross entropy with its gradient.
    Losses(losses::Args),
    /// Times candidates of products and convolutions, and fits the cost model to them.
    Fit(fit::Args),
    /// Times kernels over rows of any length.
    Rows(rows::Args),
    /// Compares every program of a packed folder with PyTorch and prints one table.
    Compare(compare::Args),
    /// Runs the steps in a packed folder.
    Run {
        /// The packed folder.
        folder: PathBuf,
        /// Total time in minutes; steps that no longer fit are skipped.
        #[arg(long, default_value_t = 9.0)]
        minutes: f64,
        /// The folder for the logs.
        #[arg(long, default_value = "gpu-suite-logs")]
        logs: PathBuf,
        /// Only steps whose name contains one of these.
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// The Python with PyTorch.
        #[arg(long, default_value = "python3")]
        python: String,
        /// The backend of the machine's GPU: `cuda` or `rocm`.
        #[arg(long, default_value = "cuda")]
        backend: String,
    },
}

/// Packs or runs; `false` where a step failed.
pub(crate) fn run(args: &Args) -> Result<bool> {
    match &args.what {
        What::Faults => faults::run().map(|()| true),
        What::Compare(args) => compare::run(args).map(|()| true),
        What::Indices(args) => indices::run(args).map(|()| true),
        What::Masks(args) => masks::run(args).map(|()| true),
        What::Decode(args) => decode::run(args).map(|()| true),
        What::Fit(args) => fit::run(args).map(|()| true),
        What::Losses(args) => losses::run(args).map(|()| true),
        What::Rows(args) => rows::run(args).map(|()| true),
        What::Pack { folder, programs, corpus } => pack(folder, programs, corpus).map(|()| true),
        What::Run { folder, minutes, logs, only, python, backend } => {
            let folder = folder.canonicalize().with_context(|| format!("{}", folder.display()))?;
            fs::create_dir_all(logs).with_context(|| format!("{}", logs.display()))?;
            let mut list = steps(&folder, python, backend);
            list.retain(|s| only.is_empty() || only.iter().any(|o| s.name.contains(o.as_str())));
            let limit = Duration::try_from_secs_f64(60.0 * minutes).context("--minutes")?;
            all(&list, &folder, logs, limit)
        }
    }
}

/// The parts of the corpus that are packed, by their paths in it.
const CASES: [&str; 7] = ["ops.zip", "tv", "hf", "timm", "train", "dynamic", "gpu"];

fn pack(folder: &Path, programs: &Path, corpus: &Path) -> Result<()> {
    if folder.exists() {
        bail!("{} is there already: name another folder or remove it", folder.display());
    }
    let bin = folder.join("bin");
    fs::create_dir_all(&bin)?;
    for name in ["ferroflux", "xtask", "ferroflux-hiprtc"] {
        let built = programs.join(name);
        let to = bin.join(name);
        fs::copy(&built, &to).with_context(|| {
            format!(
                "{}: build it with `cargo build --release -p ferroflux-cli -p xtask -p ferroflux-rocm`",
                built.display()
            )
        })?;
        // Symbol names are most of a program's bytes; without `strip` the program is only larger.
        let _ = Command::new("strip").arg(&to).status();
    }
    for part in CASES {
        copy(&corpus.join(part), &folder.join("corpus").join(part))?;
    }
    copy(&corpus.join("../peers"), &folder.join("peers"))?;
    println!("{}: run `bin/xtask gpu-suite run .` in it on the machine with the GPU", folder.display());
    Ok(())
}

/// Copies a file or a folder.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let context = || format!("{}", from.display());
    if !from.is_dir() {
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::copy(from, to).with_context(context)?;
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(context)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Runs the steps one after another and prints their results.
fn all(list: &[Step], folder: &Path, logs: &Path, limit: Duration) -> Result<bool> {
    let started = Instant::now();
    let mut good = true;
    for step in list {
        let left = limit.saturating_sub(started.elapsed());
        if left < Duration::from_secs(5) {
            println!("{:<20} left out: no time", step.name);
            good = false;
            continue;
        }
        let log = logs.join(format!("{}.log", step.name));
        let (ended, took) = one(step, folder, &log, left.min(step.limit))?;
        println!("{:<20} {ended} after {:.1} s", step.name, took.as_secs_f64());
        for line in last_lines(&log, step.lines) {
            println!("    {line}");
        }
        good &= ended == "ended";
    }
    Ok(good)
}

fn one(step: &Step, folder: &Path, log: &Path, limit: Duration) -> Result<(&'static str, Duration)> {
    let out = fs::File::create(log).with_context(|| format!("{}", log.display()))?;
    let started = Instant::now();
    let child = Command::new(&step.program)
        .args(&step.args)
        .envs(step.env.iter().map(|(k, v)| (*k, v)))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            fs::write(log, format!("{}: {error}\n", step.program.display()))?;
            return Ok(("not started", started.elapsed()));
        }
    };
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((if status.success() { "ended" } else { "failed" }, started.elapsed()));
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(("stopped", started.elapsed()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn last_lines(log: &Path, count: usize) -> Vec<String> {
    let text = fs::read(log).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines.iter().skip(lines.len().saturating_sub(count)).map(|l| l.chars().take(200).collect()).collect()
}
