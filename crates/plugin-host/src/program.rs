//! A program in the form that a plugin reads: as it is, or written again at an older minor. Knows kernel-ir alone; fx-ir
//! has one version so far.

use std::borrow::Cow;

use kernel_ir::{ConstantRange, Program};
use plugin_abi::{FFX_LEVEL_KERNEL_IR, FfxIrVersion};
use serde::{Deserialize, Serialize};

use crate::HostError;

/// The bytes for a plugin that reads `reads`, with their version.
///
/// # Errors
/// The plugin reads no program of this level and major, or none as new as what the program uses; damaged bytes.
pub(crate) fn for_reader<'a>(
    backend: &str,
    reads: &[FfxIrVersion],
    ir: FfxIrVersion,
    bytes: &'a [u8],
) -> Result<(FfxIrVersion, Cow<'a, [u8]>), HostError> {
    if reads.iter().any(|own| own.reads(ir)) {
        return Ok((ir, Cow::Borrowed(bytes)));
    }
    let older = reads.iter().filter(|own| own.level == ir.level && own.major == ir.major);
    let Some(&newest) = older.max_by_key(|own| own.minor).filter(|_| ir.level == FFX_LEVEL_KERNEL_IR) else {
        let reads = reads.iter().map(ToString::to_string).collect();
        return Err(HostError::ProgramVersion {
            backend: backend.to_owned(),
            reads,
            program: ir.to_string(),
        });
    };
    let program = Program::from_bytes(bytes).map_err(|e| HostError::argument(backend, e.to_string()))?;
    let written = program.to_bytes_at(newest.minor).map_err(|source| HostError::NoOlderForm {
        backend: backend.to_owned(),
        reads: newest.to_string(),
        source,
    })?;
    Ok((newest, Cow::Owned(written)))
}

/// What a host must know of a program that it has compiled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProgramInterface {
    /// For each input whether a call writes it; those beyond its end are only read.
    pub(crate) written: Vec<bool>,
    /// What the elements of constants must lie in.
    pub(crate) ranges: Vec<ConstantRange>,
}

/// The claims of a program; none where the bytes are no program of kernel-ir: that is for the plugin to say.
pub(crate) fn program_interface(ir: FfxIrVersion, bytes: &[u8]) -> ProgramInterface {
    if ir.level != FFX_LEVEL_KERNEL_IR {
        return ProgramInterface::default();
    }
    let ranges = Program::constant_ranges_of(bytes).unwrap_or_default();
    ProgramInterface { written: written_inputs(ir, bytes), ranges }
}

/// Which inputs a program writes in place: the host must have the memory to itself. None where the bytes are no program
/// of kernel-ir; that is for the plugin to say.
fn written_inputs(ir: FfxIrVersion, bytes: &[u8]) -> Vec<bool> {
    if ir.level != FFX_LEVEL_KERNEL_IR {
        return Vec::new();
    }
    Program::written_inputs(bytes).unwrap_or_default()
}
