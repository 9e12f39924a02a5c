//! The comparison as a markdown table, and as JSON for programs.
//!
//! A model's time is the median over the rounds of each round's median; its first call is that of the first round, when
//! PyTorch's compiler has nothing cached; its memory is the maximum over the rounds. Ratios below one say that this project
//! is faster. Besides the ratios of the medians, to each peer and to the quickest of them, the table has that of the fastest
//! runs of all rounds, which other work on the machine disturbs least. A dash stands where a peer could not be measured.

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
pub(super) fn markdown(rows: &[Row], peers: &[Side]) -> String {
    let mut head = vec!["model".to_owned(), "ferroflux ms".to_owned()];
    head.extend(peers.iter().map(|side| format!("{} ms", side.name())));
    head.extend(peers.iter().map(|side| format!("÷ {}", side.name())));
    head.extend(["÷ quickest", "fastest ÷ fastest", "first call s"].map(str::to_owned));
    head.extend(peers.iter().map(|side| format!("{}'s", side.name())));
    head.push("peak MB".to_owned());
    head.extend(peers.iter().map(|side| format!("{}'s", side.name())));
    let mut text = line(&head);
    text.push_str(&format!("|---|{}\n", "--:|".repeat(head.len() - 1)));
    let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); peers.len() + 1];
    for row in rows {
        let Some(ours) = summary(row, Side::Ferroflux) else { continue };
        let theirs: Vec<Option<Summary>> = peers.iter().map(|side| summary(row, *side)).collect();
        text.push_str(&line(&cells(&row.model, ours, &theirs, &mut ratios)));
    }
    let means: Vec<Option<f64>> = ratios.iter().map(|all| geometric_mean(all)).collect();
    if means.iter().any(Option::is_some) {
        let mut cells = vec!["geometric mean".to_owned()];
        cells.extend(vec![String::new(); peers.len() + 1]);
        cells.extend(means.into_iter().map(ratio));
        cells.resize(head.len(), String::new());
        text.push_str(&line(&cells));
    }
    for row in rows {
        if let Some(bytes) = row.figures.iter().find_map(|(_, figures)| figures.saved_bytes) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "\n{}: {bytes} bytes are kept for the backward.", row.model);
        }
        for (side, problem) in &row.problems {
            let _ = writeln!(text, "\n{} was not measured by {}: {problem}", row.model, side.name());
        }
    }
    text
}

/// A row of the table.
fn line(cells: &[String]) -> String {
    let mut text = String::from("|");
    for cell in cells {
        let _ = write!(text, " {cell}{}|", if cell.is_empty() { "" } else { " " });
    }
    text.push('\n');
    text
}

fn ratio(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |v| format!("{v:.2}"))
}

/// The cells of a model; its ratios of medians, to each peer and to the quickest, are added to `ratios`.
fn cells(model: &str, ours: Summary, theirs: &[Option<Summary>], ratios: &mut [Vec<f64>]) -> Vec<String> {
    let least = |value: fn(&Summary) -> f64| theirs.iter().flatten().map(value).reduce(f64::min);
    let mut all: Vec<Option<f64>> =
        theirs.iter().map(|s| Some(ours.median_ms / s.as_ref()?.median_ms)).collect();
    all.push(least(|s| s.median_ms).map(|quickest| ours.median_ms / quickest));
    for (ratios, value) in ratios.iter_mut().zip(&all) {
        ratios.extend(value);
    }
    let own = std::iter::once(Some(ours)).chain(theirs.iter().copied());
    let mut cells = vec![model.to_owned()];
    cells.extend(own.clone().map(|s| ratio(s.map(|s| s.median_ms))));
    cells.extend(all.into_iter().map(ratio));
    cells.push(ratio(least(|s| s.min_ms).map(|fastest| ours.min_ms / fastest)));
    cells.extend(own.clone().map(|s| ratio(s.map(|s| s.first_call_s))));
    let whole = |mb: f64| if mb.is_nan() { "–".to_owned() } else { format!("{mb:.0}") };
    cells.extend(own.map(|s| s.map_or_else(|| "–".to_owned(), |s| whole(s.peak_mb))));
    cells
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
        for (side, problem) in &row.problems {
            let line = json!({ "model": row.model, "side": side, "problem": problem });
            let _ = writeln!(text, "{line}");
        }
    }
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::{Figures, Row, Side, geometric_mean, markdown, summary};

    const SIDES: [Side; 3] = [Side::Ferroflux, Side::Eager, Side::OpenVino];
    const PEERS: &[Side] = &[Side::Eager, Side::OpenVino];

    fn row(times: [f64; 6]) -> Row {
        let figures = |(i, median_ms): (usize, f64)| {
            let (first_call_s, peak_mb) = ((i + 1) as f64, Some(10.0 * i as f64));
            let min_ms = median_ms / 2.0;
            (SIDES[i % 3], Figures { median_ms, min_ms, runs: 5, first_call_s, peak_mb, saved_bytes: None })
        };
        Row {
            model: "m".into(),
            figures: times.into_iter().enumerate().map(figures).collect(),
            problems: Vec::new(),
        }
    }

    #[test]
    fn rounds_are_put_together() {
        let row = row([1.0, 4.0, 2.0, 3.0, 8.0, 6.0]);
        let ours = summary(&row, Side::Ferroflux).unwrap();
        assert_eq!((ours.median_ms, ours.min_ms, ours.first_call_s, ours.peak_mb), (2.0, 0.5, 1.0, 30.0));
        let text = markdown(&[row], PEERS);
        assert!(text.starts_with(
            "| model | ferroflux ms | eager ms | openvino ms | ÷ eager | ÷ openvino | ÷ quickest |"
        ));
        let line =
            "| m | 2.00 | 6.00 | 4.00 | 0.33 | 0.50 | 0.50 | 0.50 | 1.00 | 2.00 | 3.00 | 30 | 40 | 50 |";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn means_are_geometric_and_problems_are_told() {
        let half_and_double = [row([1.0, 2.0, 2.0, 1.0, 2.0, 2.0]), row([2.0, 1.0, 1.0, 2.0, 1.0, 1.0])];
        assert!(
            markdown(&half_and_double, PEERS).contains("| geometric mean | | | | 1.00 | 1.00 | 1.00 | | |")
        );
        assert_eq!(geometric_mean(&[]), None);
        let mut broken = row([1.0, 2.0, 4.0, 1.0, 2.0, 4.0]);
        broken.figures.retain(|(side, _)| *side != Side::OpenVino);
        broken.problems.push((Side::OpenVino, "no".into()));
        let text = markdown(&[broken], PEERS);
        assert!(text.contains("| m | 1.00 | 2.00 | – | 0.50 | – | 0.50 | 0.50 |"), "{text}");
        assert!(text.contains("m was not measured by openvino: no"));
    }
}
