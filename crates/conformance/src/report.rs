//! What the checks found: as a value, as a table for people, as JSON. JUnit XML is in `junit`.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// At least one case passed and none failed.
    Passed,
    /// The plugin declined every case, with reasons.
    Declined,
    /// The plugin is wrong, died or did not answer.
    Failed,
    /// Not run, because an earlier check failed that this one rests on.
    Skipped,
}

impl Status {
    /// The word in the table.
    pub const fn word(self) -> &'static str {
        match self {
            Status::Passed => "passed",
            Status::Declined => "declined",
            Status::Failed => "FAILED",
            Status::Skipped => "skipped",
        }
    }
}

/// What one case had to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaseNote {
    /// The case.
    pub case: String,
    /// Why it failed or was declined.
    pub message: String,
}

/// One check's result.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the check.
    pub name: &'static str,
    /// What it judges.
    pub about: &'static str,
    /// How it ended.
    pub status: Status,
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failures: Vec<CaseNote>,
    /// Cases that the plugin declined.
    pub declined: Vec<CaseNote>,
    /// How the process ended, where that is a failure of its own: a signal, a time-out. Or why it was skipped.
    pub end: Option<String>,
    /// Wall time.
    pub seconds: f64,
}

impl Outcome {
    /// The most telling line: how the process ended, else the first failure, else the first refusal.
    pub fn detail(&self) -> String {
        let first = |list: &[CaseNote]| list.first().map(|r| format!("{}: {}", r.case, r.message));
        let more = match self.failures.len() {
            0 | 1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        match (&self.end, first(&self.failures)) {
            (Some(end), _) => end.clone(),
            (None, Some(failure)) => failure + &more,
            (None, None) if self.passed == 0 => first(&self.declined).unwrap_or_default(),
            (None, None) => String::new(),
        }
    }
}

/// All results for one library.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The library.
    pub library: PathBuf,
    /// In the order of the checks.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// Whether no check failed.
    pub fn is_ok(&self) -> bool {
        self.failed().next().is_none()
    }

    /// The names of the checks that failed.
    pub fn failed(&self) -> impl Iterator<Item = &'static str> {
        self.outcomes.iter().filter(|o| o.status == Status::Failed).map(|o| o.name)
    }

    /// How many ended so.
    pub fn count(&self, status: Status) -> usize {
        self.outcomes.iter().filter(|o| o.status == status).count()
    }

    /// A table for people, with what went wrong under it.
    pub fn table(&self) -> String {
        let mut out = format!("{}\n", self.library.display());
        let width = self.outcomes.iter().map(|o| o.name.len()).max().unwrap_or(0);
        for o in &self.outcomes {
            let cases = match (o.passed, o.declined.len()) {
                (passed, 0) => format!("{passed}"),
                (passed, declined) => format!("{passed}, {declined} declined"),
            };
            let row =
                format!("  {:<width$}  {:<8}  {:>6.2} s  {cases:<18}", o.name, o.status.word(), o.seconds);
            let detail = match o.status {
                Status::Passed => String::new(),
                _ => one_line(&o.detail(), 160),
            };
            // Writing to a `String` cannot fail.
            let _ = writeln!(out, "{}", format!("{row}  {detail}").trim_end());
        }
        let count = |status| self.count(status);
        let _ = writeln!(
            out,
            "{} checks: {} passed, {} declined, {} failed, {} skipped",
            self.outcomes.len(),
            count(Status::Passed),
            count(Status::Declined),
            count(Status::Failed),
            count(Status::Skipped)
        );
        for o in self.outcomes.iter().filter(|o| o.status == Status::Failed) {
            let _ = writeln!(out, "\n{}: {}", o.name, o.about);
            let lines =
                o.end.iter().cloned().chain(o.failures.iter().map(|r| format!("{}: {}", r.case, r.message)));
            for line in lines.take(20) {
                let _ = writeln!(out, "  {}", line.replace('\n', "\n  "));
            }
        }
        out
    }
}

/// Cut to a line of at most `most` characters.
fn one_line(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or("");
    if line.chars().count() <= most {
        return line.to_owned();
    }
    line.chars().take(most - 1).chain(['…']).collect()
}
