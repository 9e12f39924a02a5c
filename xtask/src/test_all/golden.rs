//! The judgement of golden cases.
//!
//! Inside the project every case must pass unless the list of known failures names it. The corpus next to it covers more
//! than the project: there a case that is refused as unsupported counts as skipped; a wrong result, a crash or a hang that
//! is not on the list fails the step. Lines of the list that pass now are reported, so that the list gets shorter.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use super::Counts;
use crate::corpus::{CaseResult, Status};

/// The list of known failures: lines of `KIND CASE, BACKEND`, `#` for comments.
pub(super) const KNOWN: &str = "tests/data/known-failures.txt";

/// Which cases of the corpus are run without `--full`: the first sample of each operator in the main dtypes with its
/// gradient, programs with symbolic sizes, and a few networks and training steps that are small.
pub(super) const SAMPLE: [&str; 2] = [
    "--only",
    "/(float32|complex64|int64|bool)_0$|^dynamic/|^tv/(resnet18|mobilenet_v2|squeezenet1_1)$|^train/(mlp|gcn|lstm|gpt2_tiny|unet)$",
];

/// Counts the results at `path`, one JSON object per line, of the cases run on `backend`; `known` is the list, and
/// `refusals` says whether a case may be unsupported.
pub(super) fn counts(path: &Path, backend: &str, known: &Path, refusals: bool) -> Result<Counts> {
    // Where the command failed before it wrote anything, that is one failure.
    let Ok(text) = std::fs::read_to_string(path) else {
        return Ok(Counts { failed: 1, ..Counts::default() });
    };
    let results = text.lines().map(serde_json::from_str::<CaseResult>).collect::<Result<Vec<_>, _>>();
    let results = results.with_context(|| path.display().to_string())?;
    let listed = std::fs::read_to_string(known).with_context(|| known.display().to_string())?;
    let (counts, stale) = judge(&results, backend, &lines(&listed), refusals);
    for name in stale {
        println!("{name} passes: take it off {KNOWN}");
    }
    Ok(counts)
}

/// The entries of a list.
fn lines(text: &str) -> BTreeSet<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

/// Counts, and the lines of the list that pass.
fn judge(
    results: &[CaseResult],
    backend: &str,
    listed: &BTreeSet<&str>,
    refusals: bool,
) -> (Counts, Vec<String>) {
    let (mut counts, mut stale) = (Counts::default(), Vec::new());
    for result in results {
        let name = format!("{} {}, {backend}", result.kind.name(), result.case);
        let known = listed.contains(name.as_str());
        match result.status {
            Status::Pass => {
                counts.passed += 1;
                if known {
                    stale.push(name);
                }
            }
            Status::Unsupported if refusals => counts.skipped += 1,
            _ if known => counts.skipped += 1,
            _ => counts.failed += 1,
        }
    }
    // A run without any case proves nothing.
    if results.is_empty() {
        counts.failed = 1;
    }
    (counts, stale)
}

#[cfg(test)]
mod tests {
    use super::{Counts, judge, lines};
    use crate::corpus::{CaseResult, Kind, Status};

    fn result(case: &str, status: Status) -> CaseResult {
        let (reason, groups) = (String::new(), Vec::new());
        CaseResult {
            case: case.into(),
            kind: Kind::Forward,
            status,
            reason,
            compile_ms: 0.0,
            run_ms: 0.0,
            groups,
        }
    }

    #[test]
    fn the_list_excuses_what_it_names_and_no_more() {
        let results = [
            result("a/float32_0", Status::Pass),
            result("b/float32_0", Status::Fail),
            result("c/float32_0", Status::Error),
            result("d/float32_0", Status::Unsupported),
        ];
        let text =
            "# known\nforward a/float32_0, cpu\nforward b/float32_0, cpu\nforward c/float32_0, eager\n";
        let (counts, stale) = judge(&results, "cpu", &lines(text), true);
        assert_eq!(counts, Counts { passed: 1, failed: 1, skipped: 2 });
        assert_eq!(stale, ["forward a/float32_0, cpu"]);
        let (strict, _) = judge(&results, "cpu", &lines(text), false);
        assert_eq!(strict, Counts { passed: 1, failed: 2, skipped: 1 });
        assert_eq!(judge(&[], "cpu", &lines(text), true).0.failed, 1);
    }
}
