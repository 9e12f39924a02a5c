//! A worker process: reads one case per line, writes one result per line. What a case prints goes to the standard error.

use std::io::{BufRead, Write};

use anyhow::{Context, Result};

use super::backend::Failure;
use super::case::Loader;
use super::check::{Times, check};
use super::{Case, CaseResult, Status};

/// Arguments of the hidden command.
#[derive(clap::Args)]
pub(crate) struct WorkerArgs {
    /// What runs the cases.
    #[arg(long)]
    backend: String,
}

/// Runs cases until the input ends.
pub(crate) fn work(args: &WorkerArgs) -> Result<bool> {
    let mut loader = Loader::default();
    for line in std::io::stdin().lock().lines() {
        let case: Case = serde_json::from_str(&line?).context("a case on the standard input")?;
        let result = one(&mut loader, &case, &args.backend);
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&result)?)?;
        out.flush()?;
    }
    Ok(true)
}

fn one(loader: &mut Loader, case: &Case, backend: &str) -> CaseResult {
    let mut times = Times::default();
    // A panic is a failure of this case; the next one is run by the same process.
    let outcome =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| attempt(loader, case, backend, &mut times)));
    let outcome = outcome.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Failure::new(Status::Error, format!("panic: {text}")))
    });
    let (status, reason, groups) = match outcome {
        Ok(()) => (Status::Pass, String::new(), Vec::new()),
        Err(failure) => (failure.status, failure.reason, failure.groups),
    };
    let (compile_ms, run_ms) = (times.compile_ms, times.run_ms);
    CaseResult { case: case.case.clone(), kind: case.kind, status, reason, compile_ms, run_ms, groups }
}

fn attempt(loader: &mut Loader, case: &Case, backend: &str, times: &mut Times) -> Result<(), Failure> {
    let loaded = loader.load(case).map_err(|error| {
        let reason = format!("{error:#}");
        let unsupported = matches!(error.downcast_ref(), Some(pt2::Pt2Error::Unsupported { .. }));
        Failure::new(if unsupported { Status::Unsupported } else { Status::Error }, reason)
    })?;
    times.compile_ms += loaded.load_ms;
    check(case.kind, &loaded, backend, times)
}
