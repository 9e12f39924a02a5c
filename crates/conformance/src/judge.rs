//! Runs the checks, each in a process of its own, and gathers what they found.
//!
//! A check writes what it does into a journal, line by line, so that it is known where it was when it died.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::checks::{CHECKS, Check, Effort, Event};
use crate::report::{CaseNote, Outcome, Report, Status};

/// The program that runs one check: called with `args`, the library, `--check NAME --journal FILE`, and `--quick` where
/// the effort says so. It calls [`checks::run_one`](crate::checks::run_one).
#[derive(Clone, Debug)]
pub struct Judge {
    /// Path of the program.
    pub program: PathBuf,
    /// What stands before the library.
    pub args: Vec<OsString>,
}

/// How a library is judged.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who runs a single check.
    pub judge: Judge,
    /// How much is tried.
    pub effort: Effort,
    /// Longest time for one check.
    pub timeout: Duration,
    /// How many checks run at once; 0 is one a core.
    pub jobs: usize,
    /// Only these checks, and those that they rest on; empty is all.
    pub only: Vec<String>,
    /// Environment variables for the checks.
    pub environment: Vec<(OsString, OsString)>,
}

impl Options {
    /// Everything, with a generous time for each check.
    pub fn new(judge: Judge) -> Options {
        let timeout = Duration::from_secs(300);
        Options { judge, effort: Effort::Full, timeout, jobs: 0, only: vec![], environment: vec![] }
    }
}

/// Why a library could not be judged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No check has this name.
    #[error("no check is named `{name}`{}; there are: {}", did_you_mean(.near), .available.join(", "))]
    UnknownCheck {
        /// The name asked for.
        name: String,
        /// Names like it.
        near: Vec<String>,
        /// All names.
        available: Vec<&'static str>,
    },
    /// The library is no file that can be read.
    #[error("{}: {source}", path.display())]
    Library {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The processes could not be started.
    #[error("cannot run a check with {}: {source}", program.display())]
    Process {
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) }
}

/// Judges a library.
///
/// # Errors
/// An unknown check, a library that is no readable file, or processes that cannot be started. What the plugin does
/// wrong is in the report.
pub fn check(library: &Path, options: &Options) -> Result<Report, Error> {
    let wanted = selected(&options.only)?;
    let unreadable = |source| Error::Library { path: library.to_owned(), source };
    let library = library.canonicalize().map_err(unreadable)?;
    File::open(&library).map_err(unreadable)?;
    let (gates, rest): (Vec<&Check>, Vec<&Check>) = wanted.into_iter().partition(|c| c.gate);
    let mut outcomes: Vec<Outcome> = Vec::new();
    for check in gates {
        let barred = outcomes.iter().find(|o| o.status == Status::Failed).map(|o| o.name);
        outcomes.push(match barred {
            Some(gate) => skipped(check, gate),
            None => one(&library, check, options)?,
        });
    }
    if let Some(gate) = outcomes.iter().find(|o| o.status == Status::Failed).map(|o| o.name) {
        outcomes.extend(rest.into_iter().map(|c| skipped(c, gate)));
    } else {
        outcomes.extend(at_once(&library, &rest, options)?);
    }
    let place = |o: &Outcome| CHECKS.iter().position(|c| c.name == o.name);
    outcomes.sort_by_key(place);
    Ok(Report { library, outcomes })
}

/// The checks asked for and the gates; all where none is named.
fn selected(only: &[String]) -> Result<Vec<&'static Check>, Error> {
    for name in only {
        if !CHECKS.iter().any(|c| c.name == name) {
            let available: Vec<&str> = CHECKS.iter().map(|c| c.name).collect();
            let near = plugin_host::nearest(name, available.iter().copied());
            return Err(Error::UnknownCheck { name: name.clone(), near, available });
        }
    }
    Ok(CHECKS.iter().filter(|c| only.is_empty() || c.gate || only.iter().any(|n| n == c.name)).collect())
}

fn skipped(check: &Check, gate: &str) -> Outcome {
    let end = Some(format!("not run, because `{gate}` failed"));
    Outcome {
        name: check.name,
        about: check.about,
        status: Status::Skipped,
        passed: 0,
        failures: vec![],
        declined: vec![],
        end,
        seconds: 0.0,
    }
}

/// Runs checks side by side; the results are in no particular order.
fn at_once(library: &Path, checks: &[&Check], options: &Options) -> Result<Vec<Outcome>, Error> {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = if options.jobs == 0 { cores() } else { options.jobs };
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.min(checks.len()) {
            scope.spawn(|| {
                while let Some(check) = checks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = one(library, check, options);
                    // Pushing cannot leave the list half-changed.
                    results.lock().unwrap_or_else(|e| e.into_inner()).push(result);
                }
            });
        }
    });
    results.into_inner().unwrap_or_else(|e| e.into_inner()).into_iter().collect()
}

/// Runs one check in a process.
fn one(library: &Path, check: &Check, options: &Options) -> Result<Outcome, Error> {
    let failed = |source| Error::Process { program: options.judge.program.clone(), source };
    let journal = tempfile::NamedTempFile::new().map_err(failed)?;
    let mut said = tempfile::tempfile().map_err(failed)?;
    let mut command = Command::new(&options.judge.program);
    command
        .args(&options.judge.args)
        .arg(library)
        .args(["--check", check.name, "--journal"])
        .arg(journal.path());
    if options.effort == Effort::Quick {
        command.arg("--quick");
    }
    watch_memory(&mut command, check);
    command.envs(options.environment.iter().map(|(k, v)| (k, v)));
    command.stdin(Stdio::null());
    command.stdout(said.try_clone().map_err(failed)?).stderr(said.try_clone().map_err(failed)?);
    let started = Instant::now();
    let child = command.spawn().map_err(failed)?;
    let status = wait(child, options.timeout).map_err(failed)?;
    let seconds = started.elapsed().as_secs_f64();
    let journal = std::fs::read_to_string(journal.path()).map_err(failed)?;
    let mut text = Vec::new();
    // What the child wrote is only told, so what cannot be read is not missed.
    let _ = said.rewind().and_then(|()| said.read_to_end(&mut text));
    Ok(outcome(check, &journal, status, &String::from_utf8_lossy(&text), seconds))
}

/// Has glibc's allocator fill what is freed, and, where the check looks for it, notice what is written beyond an
/// allocation when that is freed. Elsewhere these variables mean nothing.
fn watch_memory(command: &mut Command, check: &Check) {
    const FILL: &str = "glibc.malloc.perturb=165";
    if check.guarded {
        command.env("LD_PRELOAD", "libc_malloc_debug.so.0");
        command.env("GLIBC_TUNABLES", format!("{FILL}:glibc.malloc.check=3"));
    } else {
        command.env("GLIBC_TUNABLES", FILL);
    }
}

/// Waits for the end; `None` where the time ran out and the process was killed.
fn wait(mut child: Child, timeout: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + timeout;
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// What a journal and the end of its process amount to.
fn outcome(check: &Check, journal: &str, status: Option<ExitStatus>, said: &str, seconds: f64) -> Outcome {
    let (mut passed, mut failures, mut declined) = (0, Vec::new(), Vec::new());
    let (mut running, mut ended) = (None, false);
    for event in journal.lines().filter_map(|line| serde_json::from_str::<Event>(line).ok()) {
        match event {
            Event::Start { case } => running = Some(case),
            Event::Passed { .. } => passed += 1,
            Event::Failed { case, message } => failures.push(CaseNote { case, message }),
            Event::Declined { case, message } => declined.push(CaseNote { case, message }),
            Event::End => ended = true,
        }
    }
    let case = running.unwrap_or_else(|| "loading".to_owned());
    let last = said.lines().rev().find(|l| !l.trim().is_empty());
    let last = last.map_or(String::new(), |line| format!("; its last words: {line}"));
    let end = match status {
        Some(status) if ended && status.success() => None,
        Some(status) => Some(format!("the process ended with {} in `{case}`{last}", in_words(status))),
        None => Some(format!("the time ran out in `{case}`, so the process was killed{last}")),
    };
    let status = match (&end, failures.len(), passed) {
        (None, 0, 0) if !declined.is_empty() => Status::Declined,
        (None, 0, 1..) => Status::Passed,
        _ => Status::Failed,
    };
    let end = match status {
        Status::Failed if end.is_none() && failures.is_empty() => Some("it had nothing to say".to_owned()),
        _ => end,
    };
    Outcome { name: check.name, about: check.about, status, passed, failures, declined, end, seconds }
}

#[cfg(unix)]
fn in_words(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    // Numbers of signal(7) that are the same on every architecture.
    let name = |n| match n {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        _ => "",
    };
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("signal {signal}{}", name(signal)),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(not(unix))]
fn in_words(status: ExitStatus) -> String {
    status.to_string()
}
