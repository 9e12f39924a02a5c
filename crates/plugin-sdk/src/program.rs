//! A compile request: the program's bytes with their version, the device, mode and options.

use plugin_abi::{DLDevice, FFX_LEVEL_FX_IR, FFX_LEVEL_KERNEL_IR, FfxIrVersion};

use crate::{ErrorKind, Options, PluginError};

/// A program as bytes; its version was checked against the backend's description.
#[derive(Clone, Copy, Debug)]
pub struct ProgramBytes<'a> {
    /// Level and version.
    pub ir: FfxIrVersion,
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
    /// The kernel-ir program, decoded; an error for a program of another level, version or with damaged bytes.
    pub fn kernels(&self) -> Result<kernel_ir::Program, PluginError> {
        kernel_ir::Program::from_bytes(self.kernel_ir_bytes()?).map_err(|e| {
            let kind = match e {
                kernel_ir::WireError::Version { .. } => ErrorKind::Incompatible,
                _ => ErrorKind::InvalidArgument,
            };
            PluginError::new(kind, e.to_string())
        })
    }

    /// The bytes of a kernel-ir program; an error for a program of another level.
    pub fn kernel_ir_bytes(&self) -> Result<&'a [u8], PluginError> {
        self.bytes_of(FFX_LEVEL_KERNEL_IR, "kernel-ir")
    }

    /// The bytes of an fx graph; an error for a program of another level.
    pub fn fx_ir_bytes(&self) -> Result<&'a [u8], PluginError> {
        self.bytes_of(FFX_LEVEL_FX_IR, "fx-ir")
    }

    fn bytes_of(&self, level: u32, name: &str) -> Result<&'a [u8], PluginError> {
        if self.program.ir.level == level {
            return Ok(self.program.bytes);
        }
        Err(PluginError::unsupported(format!(
            "the program is {}, but this backend wants {name}",
            self.program.ir
        )))
    }
}
