//! What a backend is asked to compile: the program's bytes with their version, the device, mode and options.

use plugin_abi::DLDevice;

use crate::{IrVersion, Level, Options, PluginError};

/// A program as bytes; its version was checked against the backend's description.
#[derive(Clone, Copy, Debug)]
pub struct ProgramBytes<'a> {
    /// Level and version.
    pub ir: IrVersion,
    /// The bytes.
    pub bytes: &'a [u8],
}

/// A request to compile (or to judge) a program.
#[derive(Clone, Debug)]
pub struct CompileRequest<'a> {
    /// The program.
    pub program: ProgramBytes<'a>,
    /// Device to compile for.
    pub device: DLDevice,
    /// `default` or one of the description's modes.
    pub mode: &'a str,
    /// Every declared option with its value.
    pub options: Options,
}

impl<'a> CompileRequest<'a> {
    /// The bytes of a kernel-ir program; an error for a program of another level.
    pub fn kernel_ir_bytes(&self) -> Result<&'a [u8], PluginError> {
        self.bytes_of(Level::KernelIr)
    }

    /// The bytes of an fx graph; an error for a program of another level.
    pub fn fx_ir_bytes(&self) -> Result<&'a [u8], PluginError> {
        self.bytes_of(Level::FxIr)
    }

    fn bytes_of(&self, level: Level) -> Result<&'a [u8], PluginError> {
        if self.program.ir.level == level {
            return Ok(self.program.bytes);
        }
        Err(PluginError::unsupported(format!(
            "the program is {}, but this backend wants {}",
            self.program.ir,
            level.name()
        )))
    }
}
