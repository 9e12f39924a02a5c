//! Choices that timing has found, which the driver keeps on disk for each device and class of shapes: a later compilation takes
//! them without asking, compiling or timing anything else.
//!
//! Not here: the timing and its tables by exact texts (`autotune`), and what is timed at all (`choice`).

use gpu_codegen::{BUILD, Target};

use crate::{Candidate, Driver, Mode};

/// A candidate by what it is and its name in tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    is_library: bool,
    name: String,
}

/// How many candidates a choice was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// Of all that can win.
    All,
    /// Of the few that the cost model cannot tell apart.
    Few,
}

impl Among {
    /// What a mode chooses of.
    pub(crate) fn of(mode: Mode) -> Among {
        if mode.searches() { Among::All } else { Among::Few }
    }
}

impl Found {
    pub(crate) fn of(name: &str, is_library: bool) -> Found {
        Found { is_library, name: name.to_owned() }
    }

    /// Whether it is a library's, which then has to be asked.
    pub(crate) fn is_library(&self) -> bool {
        self.is_library
    }

    /// The candidate among others.
    pub(crate) fn take(&self, candidates: Vec<Candidate>) -> Option<Candidate> {
        candidates.into_iter().find(|c| c.is_library() == self.is_library && c.name == self.name)
    }

    fn text(&self) -> String {
        format!("{} {}", if self.is_library { "library" } else { "generated" }, self.name)
    }

    fn parse(text: &str) -> Option<Found> {
        let (kind, name) = text.split_once(' ')?;
        let is_library = match kind {
            "library" => true,
            "generated" => false,
            _ => return None,
        };
        (!name.is_empty()).then(|| Found::of(name, is_library))
    }
}

/// The key of a step's choice. Libraries' versions are a part of the driver's identity.
fn key<D: Driver>(driver: &D, class: &str, target: &Target, among: Among) -> String {
    let Target { tf32, deterministic, multiprocessors, .. } = target;
    format!(
        "class {BUILD} {among:?}\n{}\n{multiprocessors} {tf32} {deterministic}\n{class}",
        driver.identity()
    )
}

/// The choice that a mode takes instead of its own: that of a search, and where nothing is timed also one of few. What a mode finds
/// itself it keeps by the exact texts of the candidates (`autotune`): without those that lost, a program's modules would be other
/// texts at its next compilation, and the code cache would know none of them.
pub(crate) fn load<D: Driver>(driver: &D, class: &str, target: &Target, mode: Mode) -> Option<Found> {
    let among: &[Among] = match mode {
        Mode::Default => &[Among::All, Among::Few],
        Mode::ReduceOverhead => &[Among::All],
        Mode::MaxAutotune | Mode::MaxAutotuneNoCudagraphs => &[],
    };
    let text = among.iter().find_map(|among| driver.load_cached(&key(driver, class, target, *among)))?;
    Found::parse(&text)
}

/// Keeps a choice.
pub(crate) fn store<D: Driver>(driver: &D, class: &str, target: &Target, among: Among, found: &Found) {
    driver.store_cached(&key(driver, class, target, among), &found.text());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn texts_are_read_as_they_were_written_and_others_are_none() {
        for found in [Found::of("mma_64x64x64_4", false), Found::of("cublaslt+epilogue_0", true)] {
            assert_eq!(Found::parse(&found.text()), Some(found));
        }
        for text in ["", "library", "library ", "mma_64x64x64_4", "other name"] {
            assert_eq!(Found::parse(text), None, "{text}");
        }
    }
}
