//! What an entry is found by: named parts, each a checksum and a line for the user.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// `graph`, `options`, `version`, `backend`, `plugin`, `device`; of training programs also `training`.
    pub name: String,
    /// SHA-256 of all of it, as hexadecimal digits.
    pub sum: String,
    /// What it is, in words.
    pub shown: String,
}

impl Part {
    /// A part that consists of some pieces.
    pub(crate) fn new(name: &str, pieces: &[&[u8]], shown: impl Into<String>) -> Part {
        Part { name: name.into(), sum: sum(pieces), shown: shown.into() }
    }
    /// A part that is what the user is shown.
    pub(crate) fn visible(name: &str, text: String) -> Part {
        Part { name: name.into(), sum: sum(&[text.as_bytes()]), shown: text }
    }
}

/// All parts, in a fixed order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key(pub Vec<Part>);

impl Key {
    /// The name of its file: SHA-256 of all parts.
    pub fn id(&self) -> String {
        let pieces: Vec<&[u8]> = self.0.iter().flat_map(|p| [p.name.as_bytes(), p.sum.as_bytes()]).collect();
        sum(&pieces)
    }
    /// The part of that name.
    pub fn part(&self, name: &str) -> Option<&Part> {
        self.0.iter().find(|p| p.name == name)
    }
    /// Whether another key finds the same entry.
    pub(crate) fn same(&self, other: &Key) -> bool {
        let sums = |key: &Key| key.0.iter().map(|p| (p.name.clone(), p.sum.clone())).collect::<Vec<_>>();
        sums(self) == sums(other)
    }
}

/// SHA-256 of pieces with their lengths, so that no two lists of pieces run into one text.
fn sum(pieces: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for piece in pieces {
        hash.update((piece.len() as u64).to_le_bytes());
        hash.update(piece);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}
