//! `xtask corpus`: runs golden cases through a backend and reports which pass.
//!
//! The command finds the cases (`discover`), passes them one by one to worker processes (`pool`) so that a case that
//! crashes, hangs or eats memory costs itself only, and reports (`report`). A worker loads a case (`case`), runs it
//! (`backend`; gradients and training steps by `gradient`) and compares (`check`). The format of the cases is described in
//! the corpus' own README.

mod backend;
mod case;
mod check;
mod discover;
mod gradient;
mod pool;
mod report;
mod wide;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

pub(crate) use self::case::{Loaded, Loader, inputs};
pub(crate) use self::wide::{Wide, returning};
pub(crate) use self::worker::{WorkerArgs, work};

/// Seconds that a case may take where nothing else is asked for.
const TIME_LIMIT: u64 = 300;
/// MiB that a worker may use where nothing else is asked for.
const MEMORY_LIMIT: u64 = 8192;

/// What is checked of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// An operator's results.
    Forward,
    /// An operator's gradients.
    Gradient,
    /// A loss graph: loss, gradients, buffers, loss curves.
    Train,
    /// A program with symbolic sizes, at several sizes through one compilation.
    Dynamic,
    /// A whole network.
    Model,
}

impl Kind {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Forward => "forward",
            Kind::Gradient => "gradient",
            Kind::Train => "train",
            Kind::Dynamic => "dynamic",
            Kind::Model => "model",
        }
    }
}

/// One case and what is checked of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Case {
    /// Name in reports: `add/float32_0`, `tv/resnet18`.
    pub(crate) case: String,
    /// What is checked.
    pub(crate) kind: Kind,
    /// The zip file that holds it, or the `.pt2` file itself.
    pub(crate) file: PathBuf,
    /// Path within the zip file without the suffix.
    pub(crate) stem: Option<String>,
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// Within tolerance.
    Pass,
    /// It ran, and something differs.
    Fail,
    /// Refused because something is not supported.
    Unsupported,
    /// Anything else: a refusal, a crash, a hang.
    Error,
}

/// The report of one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CaseResult {
    pub(crate) case: String,
    pub(crate) kind: Kind,
    pub(crate) status: Status,
    /// Why it did not pass; empty where it did.
    pub(crate) reason: String,
    /// Archive read to ready to run.
    pub(crate) compile_ms: f64,
    /// All calls together.
    pub(crate) run_ms: f64,
    /// What the report counts it under; not part of the file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) groups: Vec<String>,
}

/// Arguments of `xtask corpus`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Zip files, archives or folders with cases; the corpus next to the project where none is given.
    paths: Vec<PathBuf>,
    /// What runs the cases: a backend, and after a colon its options (`gpu-emulator:wave=64`).
    #[arg(long, default_value = "eager")]
    backend: String,
    /// Writes one JSON object a case.
    #[arg(long, value_name = "OUT")]
    json: Option<PathBuf>,
    /// Only cases whose name this regular expression finds.
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Only these kinds.
    #[arg(long, value_delimiter = ',', value_enum)]
    kind: Vec<Kind>,
    /// Worker processes; the number of cores where not given.
    #[arg(long)]
    jobs: Option<usize>,
    /// Seconds that a case may take.
    #[arg(long, default_value_t = TIME_LIMIT)]
    time_limit: u64,
    /// Memory that a worker may use, in MiB.
    #[arg(long, default_value_t = MEMORY_LIMIT)]
    memory_limit: u64,
}

/// Runs the cases; `false` where any did not pass.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let only = args.only.as_deref().map(regex::Regex::new).transpose().context("--only")?;
    let wanted = |case: &Case| {
        (args.kind.is_empty() || args.kind.contains(&case.kind))
            && only.as_ref().is_none_or(|only| only.is_match(&case.case))
    };
    let default = [PathBuf::from("../shared/corpus")];
    let paths = if args.paths.is_empty() { &default[..] } else { &args.paths };
    let mut cases = found(paths)?;
    cases.retain(wanted);
    let options = pool::Options {
        backend: args.backend.clone(),
        jobs: args.jobs.unwrap_or_else(cores).max(1),
        time_limit: Duration::from_secs(args.time_limit),
        memory_limit: args.memory_limit << 20,
    };
    let mut report = report::Report::new(args.json.as_deref(), cases.len())?;
    pool::run(cases, &options, &mut |result| report.add(result))?;
    report.finish()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Every case of these files and folders; those that are not there are reported and skipped.
fn found(paths: &[PathBuf]) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for path in paths {
        if !path.exists() {
            println!("corpus: {} is not there; its cases are left out", path.display());
            continue;
        }
        cases.extend(discover::find(path)?);
    }
    Ok(cases)
}

/// The cases of these kinds.
pub(crate) fn find(paths: &[PathBuf], kinds: &[Kind]) -> Result<Vec<Case>> {
    let mut cases = found(paths)?;
    cases.retain(|case| kinds.contains(&case.kind));
    Ok(cases)
}

/// Runs cases with the default limits and prints nothing.
pub(crate) fn results(cases: Vec<Case>, backend: &str) -> Result<Vec<CaseResult>> {
    let options = pool::Options {
        backend: backend.to_owned(),
        jobs: cores(),
        time_limit: Duration::from_secs(TIME_LIMIT),
        memory_limit: MEMORY_LIMIT << 20,
    };
    let mut results = Vec::new();
    pool::run(cases, &options, &mut |result| {
        results.push(result);
        Ok(())
    })?;
    Ok(results)
}
