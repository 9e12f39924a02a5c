//! The report: a line per failure, reasons grouped and counted, and the last line that scripts read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};

use super::{CaseResult, Status};

/// Collects results.
pub(crate) struct Report {
    json: Option<BufWriter<File>>,
    total: usize,
    seen: usize,
    by_status: BTreeMap<&'static str, usize>,
    groups: BTreeMap<String, usize>,
    /// Milliseconds from archive to executable, of every case that got there.
    compile_ms: Vec<f64>,
}

impl Report {
    /// A report of `total` cases; `json` gets one object per line.
    pub(crate) fn new(json: Option<&Path>, total: usize) -> Result<Report> {
        let open = |path: &Path| File::create(path).with_context(|| path.display().to_string());
        let json = json.map(open).transpose()?.map(BufWriter::new);
        Ok(Report {
            json,
            total,
            seen: 0,
            by_status: BTreeMap::new(),
            groups: BTreeMap::new(),
            compile_ms: Vec::new(),
        })
    }

    /// Takes one result.
    pub(crate) fn add(&mut self, mut result: CaseResult) -> Result<()> {
        self.seen += 1;
        if result.compile_ms > 0.0 {
            self.compile_ms.push(result.compile_ms);
        }
        *self.by_status.entry(name(result.status)).or_default() += 1;
        for group in std::mem::take(&mut result.groups) {
            *self.groups.entry(normalised(&group)).or_default() += 1;
        }
        if result.status != Status::Pass {
            let line = result.reason.replace('\n', " ");
            println!("{} {} {}: {line}", name(result.status), result.case, result.kind.name());
        }
        if let Some(json) = &mut self.json {
            writeln!(json, "{}", serde_json::to_string(&result)?)?;
        }
        if std::io::stderr().is_terminal() {
            eprint!("\r{}/{}\x1b[K\r", self.seen, self.total);
        }
        Ok(())
    }

    /// Prints the summary; `false` where any case did not pass.
    pub(crate) fn finish(mut self) -> Result<bool> {
        if let Some(json) = &mut self.json {
            json.flush()?;
        }
        let mut groups: Vec<_> = self.groups.into_iter().collect();
        groups.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        if !groups.is_empty() {
            println!("\nreasons:");
        }
        for (reason, count) in groups {
            println!("{count:6}  {reason}");
        }
        if let Some(line) = distribution(&mut self.compile_ms) {
            println!("\n{line}");
        }
        let count = |status: Status| self.by_status.get(name(status)).copied().unwrap_or(0);
        let passed = count(Status::Pass);
        let [fail, unsupported, error] = [Status::Fail, Status::Unsupported, Status::Error].map(count);
        println!("\ncases: {passed} pass, {fail} fail, {unsupported} unsupported, {error} error");
        println!("corpus: {passed} passed, {} failed", self.seen - passed);
        Ok(self.seen == passed)
    }
}

/// Median and upper quantiles of compile times.
fn distribution(times: &mut [f64]) -> Option<String> {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times.get(((times.len() - 1) as f64 * part).round() as usize).copied();
    let max = times.last()?;
    let [half, ninety, ninety_nine] = [at(0.5)?, at(0.9)?, at(0.99)?];
    let within = times.iter().filter(|t| **t <= 10.0).count() as f64 / times.len() as f64 * 100.0;
    Some(format!(
        "compile, ms: median {half:.2}, 90% {ninety:.2}, 99% {ninety_nine:.2}, most {max:.2}; {within:.1}% within 10"
    ))
}

fn name(status: Status) -> &'static str {
    match status {
        Status::Pass => "pass",
        Status::Fail => "fail",
        Status::Unsupported => "unsupported",
        Status::Error => "error",
    }
}

/// The reason with numbers outside names replaced, so that equal causes count together.
fn normalised(reason: &str) -> String {
    let mut out = String::new();
    let (mut quoted, mut digits) = (false, false);
    for c in reason.chars().take(300) {
        quoted ^= c == '`';
        let inside_word = out.chars().last().is_some_and(|p| p.is_ascii_alphanumeric() || p == '_');
        if c.is_ascii_digit() && !quoted && (digits || !inside_word) {
            if !digits {
                out.push('N');
            }
            digits = true;
        } else {
            digits = false;
            out.push(if c == '\n' { ' ' } else { c });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{distribution, normalised};

    #[test]
    fn compile_times_are_summed_up() {
        assert_eq!(distribution(&mut []), None);
        let mut times: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let line = distribution(&mut times).unwrap();
        assert_eq!(line, "compile, ms: median 51.00, 90% 90.00, 99% 99.00, most 100.00; 10.0% within 10");
    }

    #[test]
    fn numbers_count_together_but_names_stay() {
        let text = "[2, 30] is not c64 of `conv2d_1`: 1.5e-3";
        assert_eq!(normalised(text), "[N, N] is not c64 of `conv2d_1`: N.Ne-N");
    }
}
