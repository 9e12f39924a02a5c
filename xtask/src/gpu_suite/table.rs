//! The table of `xtask gpu-suite compare`: a row for each program with the best mode of either side, their ratio, first calls
//! and memory, and geometric means below.
//!
//! A ratio below 1 says that this project takes less. Times are milliseconds, memory 10⁶ bytes, first calls seconds: of the
//! best mode, with an empty cache and from it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use crate::compare::geometric_mean;

/// What one side reached in its best mode.
struct Best<'a> {
    mode: &'a str,
    median_ms: f64,
    memory_mb: Option<f64>,
}

/// `ferroflux bench` counts memory in 2²⁰ bytes, PyTorch's script in 10⁹; the table in 10⁶.
const MIB: f64 = 1.048576;

/// The figure of a program's line.
fn figure<'a>(lines: &'a [Value], program: &str, side: &str, mode: &str) -> Option<&'a Value> {
    let is = |line: &&Value| line["program"] == program && line["side"] == side && line["mode"] == mode;
    lines.iter().find(is).map(|line| &line["figures"])
}

/// The quickest mode of a side; its own cold run where PyTorch did not come to run alone.
fn best<'a>(lines: &'a [Value], program: &str, sides: &[&str]) -> Option<Best<'a>> {
    let of_side = |side: &str| {
        let lines = lines.iter().filter(|l| l["program"] == program && l["side"] == side);
        let made = lines.filter_map(|l| {
            let figures = &l["figures"];
            let ours = figures["device_peak_mb"].as_f64().map(|mib| MIB * mib);
            let memory_mb = ours.or(figures["peak_gb"].as_f64().map(|gb| 1e3 * gb));
            Some(Best { mode: l["mode"].as_str()?, median_ms: figures["median_ms"].as_f64()?, memory_mb })
        });
        made.min_by(|a, b| a.median_ms.total_cmp(&b.median_ms))
    };
    sides.iter().find_map(|side| of_side(side))
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "–".into(), |v| format!("{v:.digits$}"))
}

/// The table as markdown.
pub(super) fn markdown(lines: &[Value]) -> String {
    let mut text = String::from(
        "| program | ms | mode | PyTorch | mode | ratio | memory | PyTorch | ratio | first call s | from cache | PyTorch |\n\
         |---|--:|---|--:|---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let (mut times, mut memory) = (Vec::new(), Vec::new());
    let programs: BTreeSet<&str> = lines.iter().filter_map(|l| l["program"].as_str()).collect();
    for program in programs {
        let ours = best(lines, program, &["ferroflux"]);
        let theirs = best(lines, program, &["pytorch", "pytorch cold"]);
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            let _ = writeln!(text, "| `{program}` | not measured on both sides | | | | | | | | | | |");
            continue;
        };
        let ratio = ours.median_ms / theirs.median_ms;
        let of_memory = ours.memory_mb.zip(theirs.memory_mb).map(|(a, b)| a / b);
        times.push(ratio);
        memory.extend(of_memory);
        let first =
            |side, mode: &str| figure(lines, program, side, mode).and_then(|f| f["first_call_s"].as_f64());
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| `{program}` | {:.3} | {} | {:.3} | {} | {ratio:.2} | {} | {} | {} | {} | {} | {} |",
            ours.median_ms,
            ours.mode,
            theirs.median_ms,
            theirs.mode,
            number(ours.memory_mb, 0),
            number(theirs.memory_mb, 0),
            number(of_memory, 2),
            number(first("ferroflux", ours.mode), 2),
            number(first("ferroflux from cache", ours.mode), 2),
            number(first("pytorch cold", theirs.mode), 1),
        );
    }
    let mean = |values: &[f64]| number(geometric_mean(values), 2);
    let _ = writeln!(
        text,
        "| geometric mean of {} | | | | | {} | | | {} | | | |",
        times.len(),
        mean(&times),
        mean(&memory)
    );
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::markdown;

    #[test]
    fn the_best_mode_of_either_side_counts() {
        let line = |side: &str, mode: &str, ms: f64, figures: (&str, f64)| {
            let mut line = json!({ "program": "p", "side": side, "mode": mode,
                "figures": { "median_ms": ms, "first_call_s": 2.0 * ms } });
            line["figures"][figures.0] = figures.1.into();
            line
        };
        let lines = [
            line("ferroflux", "default", 3.0, ("device_peak_mb", 90.0)),
            line("ferroflux", "reduce-overhead", 2.0, ("device_peak_mb", 100.0)),
            line("ferroflux from cache", "reduce-overhead", 0.25, ("device_peak_mb", 100.0)),
            line("pytorch cold", "default", 1.0, ("peak_gb", 0.2)),
            line("pytorch", "default", 4.0, ("peak_gb", 0.2)),
        ];
        let table = markdown(&lines);
        let row = "| `p` | 2.000 | reduce-overhead | 4.000 | default | 0.50 | 105 | 200 | 0.52 | 4.00 | 0.50 | 2.0 |";
        assert!(table.contains(row), "{table}");
        assert!(table.contains("| geometric mean of 1 | | | | | 0.50 | | | 0.52 | | | |"), "{table}");
    }

    #[test]
    fn a_side_that_is_missing_is_told() {
        let lines =
            [json!({ "program": "p", "side": "ferroflux", "mode": "default", "figures": { "error": "x" } })];
        assert!(markdown(&lines).contains("`p` | not measured on both sides"));
    }
}
