//! The comparison as a markdown table, and as JSON for programs.
//!
//! A model's time is the median over the rounds of each round's median; its first call is that of the first round, when
//! PyTorch's compiler has nothing cached; its memory is the maximum over the rounds. Ratios below one say that this project
//! is faster. Besides the ratio of the medians the table has that of the fastest runs, which other work on the machine
//! disturbs least.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::json;

use super::measure::{Figures, Row, Side};

/// A model's figures on one side.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Summary {
    median_ms: f64,
    /// The fastest run of all rounds.
    min_ms: f64,
    first_call_s: f64,
    peak_mb: f64,
}

fn summary(row: &Row, side: Side) -> Option<Summary> {
    let figures: Vec<&Figures> = row.figures.iter().filter(|(s, _)| *s == side).map(|(_, f)| f).collect();
    let first = figures.first()?;
    let mut medians: Vec<f64> = figures.iter().map(|f| f.median_ms).collect();
    medians.sort_by(f64::total_cmp);
    let (low, high) = (medians[(medians.len() - 1) / 2], medians[medians.len() / 2]);
    let peak_mb = figures.iter().filter_map(|f| f.peak_mb).fold(f64::NAN, f64::max);
    let min_ms = figures.iter().map(|f| f.min_ms).fold(f64::INFINITY, f64::min);
    Some(Summary { median_ms: (low + high) / 2.0, min_ms, first_call_s: first.first_call_s, peak_mb })
}

/// The table, its geometric means, and what could not be measured.
pub(super) fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "| model | ferroflux ms | eager ms | inductor ms | ÷ eager | ÷ inductor | fastest ÷ its fastest | \
         first call s | inductor's | sooner | peak MB | eager's | inductor's |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut ratios = (Vec::new(), Vec::new());
    for row in rows {
        let [Some(ours), Some(eager), Some(inductor)] = Side::ALL.map(|side| summary(row, side)) else {
            continue;
        };
        let (by_eager, by_inductor) = (ours.median_ms / eager.median_ms, ours.median_ms / inductor.median_ms);
        ratios.0.push(by_eager);
        ratios.1.push(by_inductor);
        let (model, ms) = (&row.model, |s: Summary| format!("{:.2}", s.median_ms));
        let mb = |s: Summary| if s.peak_mb.is_nan() { "–".to_owned() } else { format!("{:.0}", s.peak_mb) };
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {model} | {} | {} | {} | {by_eager:.2} | {by_inductor:.2} | {:.2} | {:.2} | {:.2} | {:.0} × | {} | {} | {} |",
            ms(ours),
            ms(eager),
            ms(inductor),
            ours.min_ms / inductor.min_ms,
            ours.first_call_s,
            inductor.first_call_s,
            inductor.first_call_s / ours.first_call_s,
            mb(ours),
            mb(eager),
            mb(inductor),
        );
    }
    if let (Some(eager), Some(inductor)) = (geometric_mean(&ratios.0), geometric_mean(&ratios.1)) {
        let _ = writeln!(text, "| geometric mean | | | | {eager:.2} | {inductor:.2} | | | | | | | |");
    }
    for row in rows {
        if let Some(bytes) = row.figures.iter().find_map(|(_, figures)| figures.saved_bytes) {
            let _ = writeln!(text, "\n{}: {bytes} bytes are kept for the backward.", row.model);
        }
        if let Some(problem) = &row.problem {
            let _ = writeln!(text, "\n{} was not compared: {problem}", row.model);
        }
    }
    text
}

/// `None` of no values.
pub(crate) fn geometric_mean(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().map(|v| v.ln()).sum();
    (!values.is_empty()).then(|| (sum / values.len() as f64).exp())
}

/// Writes the machine and every measurement, one JSON object per line.
pub(super) fn write_json(path: &Path, rows: &[Row], machine: &str) -> Result<()> {
    let mut text = format!("{}\n", json!({ "machine": machine }));
    for row in rows {
        for (side, figures) in &row.figures {
            let _ = writeln!(text, "{}", json!({ "model": row.model, "side": side, "figures": figures }));
        }
        if let Some(problem) = &row.problem {
            let _ = writeln!(text, "{}", json!({ "model": row.model, "problem": problem }));
        }
    }
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::{Figures, Row, Side, geometric_mean, markdown, summary};

    fn row(times: [f64; 6]) -> Row {
        let figures = |(i, median_ms): (usize, f64)| {
            let (first_call_s, peak_mb) = ((i + 1) as f64, Some(10.0 * i as f64));
            (
                Side::ALL[i % 3],
                Figures {
                    median_ms,
                    min_ms: median_ms / 2.0,
                    runs: 5,
                    first_call_s,
                    peak_mb,
                    saved_bytes: None,
                },
            )
        };
        Row {
            model: "m".into(),
            figures: times.into_iter().enumerate().map(figures).collect(),
            problem: None,
        }
    }

    #[test]
    fn rounds_are_put_together() {
        let row = row([1.0, 4.0, 2.0, 3.0, 8.0, 6.0]);
        let ours = summary(&row, Side::Ferroflux).unwrap();
        assert_eq!((ours.median_ms, ours.min_ms, ours.first_call_s, ours.peak_mb), (2.0, 0.5, 1.0, 30.0));
        assert!(
            markdown(&[row]).contains(
                "| m | 2.00 | 6.00 | 4.00 | 0.33 | 0.50 | 0.50 | 1.00 | 3.00 | 3 × | 30 | 40 | 50 |"
            )
        );
    }

    #[test]
    fn means_are_geometric_and_problems_are_told() {
        let half_and_double = [row([1.0, 2.0, 2.0, 1.0, 2.0, 2.0]), row([2.0, 1.0, 1.0, 2.0, 1.0, 1.0])];
        assert!(markdown(&half_and_double).contains("| geometric mean | | | | 1.00 | 1.00 |"));
        assert_eq!(geometric_mean(&[]), None);
        let broken = Row { model: "x".into(), figures: Vec::new(), problem: Some("no".into()) };
        assert!(markdown(&[broken]).contains("x was not compared: no"));
    }
}
