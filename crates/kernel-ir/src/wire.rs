//! The byte form of a program: an 8-byte header (`FFXK`, major, minor as little-endian u16) and MessagePack with named
//! fields, so that other languages read it with any MessagePack library. Unknown fields are skipped (a newer minor).

use serde::{Deserialize, Deserializer};
use smallvec::SmallVec;
use thiserror::Error;

use crate::Program;

/// Readers refuse another major.
pub const IR_MAJOR: u16 = 1;
/// Grows with every addition.
pub const IR_MINOR: u16 = 3;
const MAGIC: &[u8; 4] = b"FFXK";

/// Why bytes are not a program.
#[derive(Debug, Error)]
pub enum WireError {
    /// Not our format.
    #[error("not a kernel-ir program: it does not begin with `FFXK`")]
    Magic,
    /// Written by an incompatible version.
    #[error(
        "kernel-ir {major}.{minor} cannot be read by this reader of {IR_MAJOR}.{IR_MINOR}: compile the model again"
    )]
    Version {
        /// Major of the bytes.
        major: u16,
        /// Minor of the bytes.
        minor: u16,
    },
    /// Damaged.
    #[error("damaged kernel-ir program: {0}")]
    Damaged(String),
}

/// Reads a sequence without believing its announced length: `smallvec` reserves it at once, and nine hostile bytes
/// announce 4 G elements. `Vec` bounds that itself.
pub(crate) fn bounded<'de, D, A>(deserializer: D) -> Result<SmallVec<A>, D::Error>
where
    D: Deserializer<'de>,
    A: smallvec::Array,
    A::Item: Deserialize<'de>,
{
    Vec::deserialize(deserializer).map(SmallVec::from_vec)
}

impl Program {
    /// The byte form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&IR_MAJOR.to_le_bytes());
        bytes.extend_from_slice(&IR_MINOR.to_le_bytes());
        // Writing to a Vec cannot fail, and the types hold nothing that MessagePack lacks.
        rmp_serde::encode::write_named(&mut bytes, self).expect("a program always serializes");
        bytes
    }

    /// Reads the byte form.
    pub fn from_bytes(bytes: &[u8]) -> Result<Program, WireError> {
        let (header, body) = bytes.split_at_checked(8).ok_or(WireError::Magic)?;
        if &header[..4] != MAGIC {
            return Err(WireError::Magic);
        }
        let word = |i: usize| u16::from_le_bytes([header[i], header[i + 1]]);
        let (major, minor) = (word(4), word(6));
        if major != IR_MAJOR {
            return Err(WireError::Version { major, minor });
        }
        rmp_serde::from_slice(body).map_err(|e| WireError::Damaged(e.to_string()))
    }
}
