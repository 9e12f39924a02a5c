//! The text form of coefficients: one kind after another, a term or a tile a line.
//!
//! ```text
//! ferroflux costs 1
//! architecture sm_90
//! clock 1980
//! bandwidth 4917
//! kind wgmma
//! error 0.22
//! launch 3.1e-6
//! compute 5.6e-10
//! …
//! tile 128x256 0.97
//! ```
//!
//! Every kind has every term and its error; the speeds of the device that was measured may be missing. Not here: what they mean (`cost`).

use std::fmt;

use super::{CostError, Kind, Model, Speeds, TERMS};

/// The first line.
pub(super) const TITLE: &str = "ferroflux costs 1";

/// Reads a file.
pub(super) fn parse(text: &str) -> Result<Model, CostError> {
    let mut lines = text.lines().enumerate().map(|(n, line)| (n + 1, line.trim()));
    if lines.next().is_none_or(|(_, line)| line != TITLE) {
        return Err(CostError::Title);
    }
    let mut model = Model { architecture: String::new(), speeds: Speeds::default(), kinds: Vec::new() };
    for (line, words) in lines.filter(|(_, line)| !line.is_empty()) {
        let wrong = |what: String| CostError::Line { line, what };
        let words: Vec<&str> = words.split_whitespace().collect();
        match (&words[..], model.kinds.last_mut()) {
            (["architecture", name], None) => model.architecture = (*name).to_owned(),
            ([speed @ ("clock" | "bandwidth"), value], None) => {
                let value = value.parse().map_err(|_| wrong(format!("`{value}` is not a whole number")))?;
                match *speed {
                    "clock" => model.speeds.clock = value,
                    _ => model.speeds.bandwidth = value,
                }
            }
            (["kind", name], _) => {
                complete(&model).map_err(wrong)?;
                if model.knows(name) {
                    return Err(wrong(format!("there are two kinds `{name}`")));
                }
                let seconds = [f64::NAN; TERMS.len()];
                let name = (*name).to_owned();
                model.kinds.push(Kind { name, error: f64::NAN, seconds, tiles: Vec::new() });
            }
            (["error", value], Some(kind)) => {
                let error = number(value);
                kind.error = error.ok_or_else(|| wrong(format!("`{value}` is not a number, 0 or more")))?;
            }
            (["tile", shape, value], Some(kind)) => {
                let factor = number(value).filter(|f| *f > 0.0);
                let factor = factor.ok_or_else(|| wrong(format!("`{value}` is not a positive number")))?;
                kind.tiles.push(((*shape).to_owned(), factor));
            }
            ([term, value], Some(kind)) => {
                let place = TERMS.iter().position(|t| t == term);
                let place = place.ok_or_else(|| wrong(format!("there is no term `{term}`")))?;
                kind.seconds[place] = number(value)
                    .ok_or_else(|| wrong(format!("`{value}` is not a number of seconds, 0 or more")))?;
            }
            _ => return Err(wrong(format!("`{}` is not expected here", words.join(" ")))),
        }
    }
    complete(&model).map_err(|what| CostError::Line { line: text.lines().count(), what })?;
    match model.architecture.is_empty() {
        true => Err(CostError::Line { line: 2, what: "the architecture is missing".into() }),
        false => Ok(model),
    }
}

/// A finite number that is not negative.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0)
}

/// Whether the last kind has all terms.
fn complete(model: &Model) -> Result<(), String> {
    let Some(kind) = model.kinds.last() else { return Ok(()) };
    if kind.error.is_nan() {
        return Err(format!("the kind `{}` has no error", kind.name));
    }
    match kind.seconds.iter().position(|s| s.is_nan()) {
        Some(n) => Err(format!("the kind `{}` has no term `{}`", kind.name, TERMS[n])),
        None => Ok(()),
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{TITLE}\narchitecture {}", self.architecture)?;
        writeln!(f, "clock {}\nbandwidth {}", self.speeds.clock, self.speeds.bandwidth)?;
        for kind in &self.kinds {
            writeln!(f, "kind {}\nerror {}", kind.name, kind.error)?;
            for (term, seconds) in TERMS.iter().zip(kind.seconds) {
                writeln!(f, "{term} {seconds:e}")?;
            }
            for (tile, factor) in &kind.tiles {
                writeln!(f, "tile {tile} {factor}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn file(rest: &str) -> String {
        let terms: String = TERMS.iter().map(|t| format!("{t} 1e-9\n")).collect();
        format!("{TITLE}\narchitecture sm_90\nkind mma\nerror 0.1\n{terms}{rest}")
    }

    #[test]
    fn bad_files_say_the_line() {
        assert!(Model::parse(&file("tile 64x64 1.5\n\n")).is_ok());
        assert_eq!(Model::parse(""), Err(CostError::Title));
        assert_eq!(Model::parse("{}"), Err(CostError::Title));
        for (rest, what) in [
            ("launch nan", "`nan` is not a number"),
            ("launch -1", "`-1` is not a number"),
            ("launch inf", "`inf` is not a number"),
            ("lunch 1", "no term `lunch`"),
            ("tile 64x64 0", "not a positive"),
            ("kind mma", "two kinds"),
            ("what is this", "not expected"),
            ("architecture sm_80", "no term `architecture`"),
            ("kind wgmma\nerror 0.1\nlaunch 1", "no term `compute`"),
            ("kind wgmma\nlaunch 1", "has no error"),
            ("error -1", "`-1` is not a number"),
            ("clock 1980", "no term `clock`"),
        ] {
            let error = Model::parse(&file(rest)).unwrap_err();
            assert!(error.to_string().contains(what), "{rest}: {error}");
        }
        let text = file("").replace("architecture sm_90\n", "");
        assert!(Model::parse(&text).unwrap_err().to_string().contains("architecture is missing"));
    }

    #[test]
    fn cut_files_are_errors_or_shorter() {
        let text = file("tile 64x64 1.5\n");
        for end in 0..text.len() {
            // A cut within the last number reads another number; nothing panics.
            let _ = Model::parse(&text[..end]);
        }
    }
}
