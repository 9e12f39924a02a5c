//! `xtask fuzz`: mutates archives of the corpus so that they still look like archives (`mutate`), reads, compiles and calls
//! them, and looks for forbidden outcomes: a signal, a panic, a hang, or a result that differs from `eager`'s.
//!
//! Each seed is one mutated archive. Worker processes (`worker`) run them with every larger allocation between inaccessible
//! pages (`allocator`); this process starts workers, observes how they end, and keeps the failing archives in
//! `target/fuzz`. A typed error is never a finding. Random graphs are tested elsewhere:
//! `crates/ferroflux/tests/differential`.

pub(crate) mod allocator;
mod archive;
mod inputs;
mod mutate;
mod rng;
mod worker;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

pub(crate) use self::worker::{WorkerArgs, work};
use crate::corpus::{self, Kind, Loader};
use crate::root::root;

/// Seeds that a worker runs before a new one takes over: its reserved addresses are used once.
const SEEDS_OF_A_WORKER: u64 = 500;
/// A case that takes longer hangs.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Arguments of `xtask fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Zip files or folders with cases; those in the project where none is given.
    paths: Vec<PathBuf>,
    /// Changed archives to run.
    #[arg(long, default_value_t = 2000)]
    cases: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Stops after this many seconds.
    #[arg(long)]
    seconds: Option<u64>,
    /// What is compared with `eager`.
    #[arg(long, default_value = "cpu")]
    backend: String,
    /// Worker processes; the number of cores where not given.
    #[arg(long)]
    jobs: Option<usize>,
}

/// How a changed archive ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Outcome {
    /// Too large, or larger inputs than a case may have.
    LeftOut,
    /// The reader refused it.
    NotRead,
    /// Both backends refused it, when compiling or when called.
    Refused,
    /// Both gave the same answer.
    Equal,
    /// One of the two refused, the other answered.
    OneSided,
    /// Two answers.
    Differs,
    /// A panic, caught or not.
    Panicked,
    /// The process ended, or took too long.
    Died,
}

impl Outcome {
    /// Whether this is a forbidden outcome.
    fn is_finding(self) -> bool {
        matches!(self, Outcome::OneSided | Outcome::Differs | Outcome::Panicked | Outcome::Died)
    }
}

/// A line of a worker: the begin of a seed, or its end.
#[derive(Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) detail: String,
}

/// What was seen so far.
#[derive(Default)]
struct Seen {
    counts: BTreeMap<Outcome, u64>,
    findings: Vec<(u64, Outcome, String)>,
}

/// Runs the seeds; `false` where anything was found.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let paths = match args.paths.is_empty() {
        true => vec![root()?.join("tests/data/corpus")],
        false => args.paths.clone(),
    };
    let seen = Mutex::new(Seen::default());
    let next = Mutex::new(args.seed);
    let end = args.seed.saturating_add(args.cases);
    let deadline = args.seconds.map(|s| Instant::now() + Duration::from_secs(s));
    let jobs = args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1))
            .map(|_| scope.spawn(|| serve(&next, end, deadline, &args.backend, &paths, &seen)))
            .collect();
        workers.into_iter().try_for_each(|w| w.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked")))
    })?;
    let seen = seen.into_inner().unwrap_or_else(PoisonError::into_inner);
    keep(&seen.findings, &paths)?;
    report(&seen)
}

/// Takes ranges of seeds until there are none.
fn serve(
    next: &Mutex<u64>,
    end: u64,
    deadline: Option<Instant>,
    backend: &str,
    paths: &[PathBuf],
    seen: &Mutex<Seen>,
) -> Result<()> {
    loop {
        let range = {
            let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
            let first = *next;
            *next = (first + SEEDS_OF_A_WORKER).min(end);
            first..*next
        };
        if range.is_empty() || deadline.is_some_and(|d| Instant::now() > d) {
            return Ok(());
        }
        let mut first = range.start;
        // A worker that dies is followed by one that begins after the seed that killed it.
        while first < range.end && deadline.is_none_or(|d| Instant::now() <= d) {
            first = watch(first, range.end, deadline, backend, paths, seen)?;
        }
    }
}

/// Runs one worker; the first seed that it did not finish.
fn watch(
    first: u64,
    end: u64,
    deadline: Option<Instant>,
    backend: &str,
    paths: &[PathBuf],
    seen: &Mutex<Seen>,
) -> Result<u64> {
    let mut child = start(first, end - first, backend, paths)?;
    let output = child.stdout.take().context("a worker without an output")?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let (mut at, mut running) = (first, false);
    let add = |seed, outcome: Outcome, detail| {
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        *seen.counts.entry(outcome).or_default() += 1;
        if outcome.is_finding() {
            eprintln!("seed {seed}: {outcome:?}: {detail}");
            seen.findings.push((seed, outcome, detail));
        }
    };
    loop {
        match lines.recv_timeout(TIME_LIMIT) {
            Ok(line) => {
                let report: Report =
                    serde_json::from_str(&line).with_context(|| format!("a worker wrote `{line}`"))?;
                at = report.seed;
                running = report.outcome.is_none();
                if let Some(outcome) = report.outcome {
                    add(at, outcome, report.detail);
                    at += 1;
                    if deadline.is_some_and(|d| Instant::now() > d) {
                        end_of(&mut child);
                        return Ok(at);
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                end_of(&mut child);
                add(at, Outcome::Died, format!("took longer than {} s", TIME_LIMIT.as_secs()));
                return Ok(at + 1);
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = child.wait().context("waiting for a worker")?;
                if running {
                    add(at, Outcome::Died, status.to_string());
                    return Ok(at + 1);
                }
                anyhow::ensure!(at > first, "a worker ended before its first case: {status}");
                return Ok(at);
            }
        }
    }
}

fn start(first: u64, count: u64, backend: &str, paths: &[PathBuf]) -> Result<Child> {
    let program = std::env::current_exe().context("where this program is")?;
    Command::new(program)
        .args(["fuzz-worker", "--backend", backend])
        .args(["--first", &first.to_string(), "--count", &count.to_string()])
        .args(paths)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("starting a worker")
}

fn end_of(child: &mut Child) {
    // It may have ended already; either way it is waited for, so that no zombie stays.
    let _ = child.kill();
    let _ = child.wait();
}

/// Stores the failing archives for inspection.
fn keep(findings: &[(u64, Outcome, String)], paths: &[PathBuf]) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    let folder = root()?.join("target/fuzz");
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let cases = corpus::find(paths, &[Kind::Forward, Kind::Dynamic])?;
    let mut loader = Loader::default();
    for (seed, ..) in findings {
        let mut rng = rng::Rng::new(*seed);
        if let Some(changed) = worker::changed(&mut loader, &cases, *seed, &mut rng)? {
            write(&folder.join(format!("{seed}.pt2")), &changed.bytes)?;
        }
    }
    println!("the archives are in {}", folder.display());
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).with_context(|| path.display().to_string())
}

fn report(seen: &Seen) -> Result<bool> {
    let total: u64 = seen.counts.values().sum();
    for (outcome, count) in &seen.counts {
        println!("{count:>8} {outcome:?}");
    }
    println!("{total} changed archives, {} findings", seen.findings.len());
    Ok(seen.findings.is_empty())
}
