//! The byte form of a program: an 8-byte header (`FFXK`, major, minor as little-endian u16) and MessagePack with named
//! fields, so that other languages read it with any MessagePack library; docs/program-bytes.md describes it. A reader takes
//! its own minor and older ones, and skips keys that it does not know: a writer may declare an older minor than its own
//! where the program uses nothing newer (`wire_older`).

use serde::{Deserialize, Deserializer};
use smallvec::SmallVec;
use thiserror::Error;

use crate::Program;

/// Readers refuse another major.
pub const IR_MAJOR: u16 = 1;
/// Grows with every addition.
pub const IR_MINOR: u16 = 12;
/// The minor version that introduced index checks.
pub(crate) const CHECKS: u16 = 6;
/// The minor version that introduced integer products.
pub(crate) const INTEGER_PRODUCTS: u16 = 8;
/// The minor version that introduced products with quantized weights.
pub(crate) const QUANTIZED_WEIGHTS: u16 = 9;
/// The minor version that introduced groups of a product's rows.
pub(crate) const GROUPS: u16 = 10;
/// The minor version that introduced dropout of an attention's weights.
pub const DROPOUT: u16 = 11;
/// The minor version that introduced Fourier transforms.
pub const FOURIER: u16 = 12;
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

/// Reads a sequence without trusting its announced length: `smallvec` reserves it at once, and nine hostile bytes
/// announce 4 G elements. `Vec` bounds that itself.
pub(crate) fn bounded<'de, D, A>(deserializer: D) -> Result<SmallVec<A>, D::Error>
where
    D: Deserializer<'de>,
    A: smallvec::Array,
    A::Item: Deserialize<'de>,
{
    Vec::deserialize(deserializer).map(SmallVec::from_vec)
}

/// The first eight bytes of a program of this major.
pub(crate) fn header(minor: u16) -> [u8; 8] {
    let ([m0, m1, m2, m3], [a0, a1], [i0, i1]) = (*MAGIC, IR_MAJOR.to_le_bytes(), minor.to_le_bytes());
    [m0, m1, m2, m3, a0, a1, i0, i1]
}

impl Program {
    /// The byte form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = header(IR_MINOR).to_vec();
        // Writing to a Vec cannot fail, and the types hold nothing that MessagePack lacks.
        rmp_serde::encode::write_named(&mut bytes, self).expect("a program always serializes");
        bytes
    }

    /// Which inputs the serialized program writes in place, without reading the rest of it.
    ///
    /// # Errors
    /// Bytes that are no program.
    pub fn written_inputs(bytes: &[u8]) -> Result<Vec<bool>, WireError> {
        #[derive(Deserialize)]
        struct Inputs {
            inputs: Vec<Input>,
        }
        #[derive(Deserialize)]
        struct Input {
            #[serde(default)]
            written: bool,
        }
        let all: Inputs =
            rmp_serde::from_slice(body(bytes)?).map_err(|e| WireError::Damaged(e.to_string()))?;
        Ok(all.inputs.iter().map(|i| i.written).collect())
    }

    /// The ranges that the constants of the serialized program declare, without reading the rest of it.
    ///
    /// # Errors
    /// Bytes that are no program.
    pub fn constant_ranges_of(bytes: &[u8]) -> Result<Vec<crate::ConstantRange>, WireError> {
        #[derive(Deserialize)]
        struct DeclaredRanges {
            constants: Vec<crate::Const>,
            #[serde(default)]
            sites: Vec<crate::Site>,
        }
        let all: DeclaredRanges =
            rmp_serde::from_slice(body(bytes)?).map_err(|e| WireError::Damaged(e.to_string()))?;
        Ok(crate::indices::ranges(&all.constants, &all.sites))
    }

    /// Reads the byte form.
    ///
    /// Programs of a minor version without index checks get them here, against their buffers.
    pub fn from_bytes(bytes: &[u8]) -> Result<Program, WireError> {
        let mut program: Program =
            rmp_serde::from_slice(body(bytes)?).map_err(|e| WireError::Damaged(e.to_string()))?;
        if u16::from_le_bytes([bytes[6], bytes[7]]) < CHECKS {
            program.unchecked_indices = false;
            crate::guard_indices(&mut program);
        }
        Ok(program)
    }
}

/// What follows the header of a program that this version reads.
fn body(bytes: &[u8]) -> Result<&[u8], WireError> {
    let (header, body) = bytes.split_at_checked(8).ok_or(WireError::Magic)?;
    if &header[..4] != MAGIC {
        return Err(WireError::Magic);
    }
    let word = |i: usize| u16::from_le_bytes([header[i], header[i + 1]]);
    let (major, minor) = (word(4), word(6));
    // A newer minor may express in keys that are skipped here what must not be skipped.
    if major != IR_MAJOR || minor > IR_MINOR {
        return Err(WireError::Version { major, minor });
    }
    Ok(body)
}
