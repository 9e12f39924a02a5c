//! `ferroflux plugin check LIB`: the conformance suite. Each check runs in a process of its own: this program again, with
//! `--check` and `--journal`.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use conformance::{CHECKS, Effort, Error, Judge, Options};
use plugin_host::{Manifest, Registry, SearchPath, Source};

use crate::report::{advised, usage};

/// Arguments of `plugin check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The library, or the name of an installed plugin.
    #[arg(value_name = "LIB", required_unless_present = "list")]
    library: Option<PathBuf>,
    /// Only this check (and those that it rests on); may be given several times.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Few numbers and shapes for each check.
    #[arg(long)]
    quick: bool,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Writes the results as JUnit XML too.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Longest time for one check, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// Checks that run at once; one a core where not given.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    jobs: usize,
    /// Lists the checks, and what each judges.
    #[arg(long)]
    list: bool,
    /// This process runs the one check.
    #[arg(long, hide = true, requires = "journal")]
    check: Option<String>,
    /// What it writes.
    #[arg(long, hide = true)]
    journal: Option<PathBuf>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let effort = if args.quick { Effort::Quick } else { Effort::Full };
    let Some(library) = args.library.as_deref().filter(|_| !args.list) else {
        let rows: Vec<_> = CHECKS.iter().map(|c| vec![c.name.to_owned(), c.about.to_owned()]).collect();
        return super::columns(&rows, out);
    };
    if let (Some(check), Some(journal)) = (&args.check, &args.journal) {
        return conformance::checks::run_one(library, check, journal, effort).map_err(anyhow::Error::msg);
    }
    let program = std::env::current_exe().context("the path of this program")?;
    let judge = Judge { program, args: ["plugin", "check"].map(OsString::from).to_vec() };
    let options = Options {
        effort,
        timeout: Duration::from_secs(args.timeout),
        jobs: args.jobs,
        only: args.only.clone(),
        ..Options::new(judge)
    };
    let report = conformance::check(&library_of(library)?, &options).map_err(|error| match error {
        Error::UnknownCheck { .. } => {
            usage(error.to_string(), "`ferroflux plugin check --list` tells what each judges")
        }
        other => other.into(),
    })?;
    if let Some(file) = &args.junit {
        report.write_junit(file).with_context(|| file.display().to_string())?;
    }
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        write!(out, "{}", report.table())?;
    }
    let failed: Vec<&str> = report.failed().collect();
    if failed.is_empty() {
        return Ok(());
    }
    let hint = format!("`--only {}` runs one alone", failed[0]);
    Err(advised(
        format!("{} of {} checks failed: {}", failed.len(), report.outcomes.len(), failed.join(", ")),
        hint,
    ))
}

/// The library at a path, or that of the name of an installed plugin.
fn library_of(given: &Path) -> Result<PathBuf> {
    let name = given.to_string_lossy();
    let registry = Registry::new(&SearchPath::from_env());
    if registry.is_path(&name) {
        return Ok(given.to_owned());
    }
    match registry.source_of(&name) {
        Some(Source::Manifest(path)) => Ok(Manifest::read(path)?.library_path(path)),
        Some(Source::Library(path)) => Ok(path.clone()),
        Some(Source::BuiltIn) => {
            let hint = "build the backend as a library (`plugins/cpu`) and give its path";
            Err(advised(format!("`{name}` is linked into this program and has no library"), hint))
        }
        None => Err(match registry.load(&name) {
            Err(error) => error.into(),
            Ok(_) => advised(format!("`{name}` is not listed"), ""),
        }),
    }
}
