//! The command line of `ferroflux-conformance`, and what `ferroflux plugin check` shares with it. It has no argument
//! parser: authors use `ferroflux plugin check`; the suite's tests and other build systems call this program.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::checks::{self, CHECKS, Effort};
use crate::judge::{self, Judge, Options};
use crate::stress;

/// The usage text.
pub const USAGE: &str = "\
usage: ferroflux-conformance LIBRARY [--only NAME]... [--quick] [--json] [--junit FILE] [--timeout SECONDS] [--jobs N]
       ferroflux-conformance stress LIBRARY LIBRARY [--seconds N]
       ferroflux-conformance list
exit codes: 0 nothing failed, 1 something failed, 2 wrong usage";

/// Runs a command line (without the program's name); the result is the exit code.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    match parsed(args) {
        Ok(request) => request.run().unwrap_or_else(|error| {
            eprintln!("error: {error}");
            2
        }),
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            2
        }
    }
}

#[derive(Default)]
struct Request {
    paths: Vec<PathBuf>,
    only: Vec<String>,
    quick: bool,
    json: bool,
    junit: Option<PathBuf>,
    timeout: Option<u64>,
    jobs: usize,
    seconds: Option<u64>,
    /// Set if this process is the child for one check.
    check: Option<String>,
    journal: Option<PathBuf>,
}

fn parsed(args: impl IntoIterator<Item = OsString>) -> Result<Request, String> {
    let mut request = Request::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{} wants a value", arg.to_string_lossy()));
        match arg.to_str() {
            Some("--only") => request.only.push(text(value()?)?),
            Some("--quick") => request.quick = true,
            Some("--json") => request.json = true,
            Some("--junit") => request.junit = Some(value()?.into()),
            Some("--timeout") => request.timeout = Some(number(value()?)?),
            Some("--jobs") => request.jobs = number(value()?)? as usize,
            Some("--seconds") => request.seconds = Some(number(value()?)?),
            Some("--check") => request.check = Some(text(value()?)?),
            Some("--journal") => request.journal = Some(value()?.into()),
            Some(option) if option.starts_with('-') => return Err(format!("unknown option `{option}`")),
            _ => request.paths.push(arg.into()),
        }
    }
    Ok(request)
}

fn text(value: OsString) -> Result<String, String> {
    value.into_string().map_err(|v| format!("{} is not UTF-8", v.display()))
}

fn number(value: OsString) -> Result<u64, String> {
    let text = text(value)?;
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

impl Request {
    fn effort(&self) -> Effort {
        if self.quick { Effort::Quick } else { Effort::Full }
    }

    fn run(&self) -> Result<u8, Box<dyn std::error::Error>> {
        let first = self.paths.first().ok_or("no library is given")?;
        if let (Some(check), Some(journal)) = (&self.check, &self.journal) {
            checks::run_one(first, check, journal, self.effort())?;
            return Ok(0);
        }
        if first.as_os_str() == "list" {
            CHECKS.iter().for_each(|c| println!("{:<16} {}", c.name, c.about));
            return Ok(0);
        }
        if first.as_os_str() == "stress" {
            let time = Duration::from_secs(self.seconds.unwrap_or(60));
            println!("{}", stress::run(&self.paths[1..], stress::THREADS, time)?);
            return Ok(0);
        }
        self.judge(first)
    }

    fn judge(&self, library: &std::path::Path) -> Result<u8, Box<dyn std::error::Error>> {
        let judge = Judge { program: std::env::current_exe()?, args: Vec::new() };
        let mut options = Options {
            effort: self.effort(),
            jobs: self.jobs,
            only: self.only.clone(),
            ..Options::new(judge)
        };
        if let Some(seconds) = self.timeout {
            options.timeout = Duration::from_secs(seconds);
        }
        let report = judge::check(library, &options)?;
        if let Some(file) = &self.junit {
            report.write_junit(file)?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&report)?);
        } else {
            print!("{}", report.table());
        }
        Ok(u8::from(!report.is_ok()))
    }
}
