//! NVRTC: compiles kernel text to machine code of one architecture. No GPU is needed.

use std::ffi::{CString, c_char};

use cudarc::nvrtc::{result, sys};
use gpu_runtime::{GpuError, Module, find as files};

use crate::libraries::{Library, find, locate};

/// The options of every compilation apart from the architecture. Products and sums are not contracted, so that results are
/// those of the individual operators.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// Compiles a module to machine code (a cubin) for an architecture such as `sm_90`.
///
/// # Errors
/// NVRTC is missing, or rejects the text; its log is in the error.
pub fn compile(module: &Module, architecture: &str) -> Result<Vec<u8>, GpuError> {
    find(Library::Nvrtc)?;
    let name = module.entries.first().cloned().unwrap_or_default();
    let failed = |log: String| GpuError::Compile { module: name.clone(), log };
    let source = CString::new(module.text()).map_err(|e| failed(e.to_string()))?;
    let program = Program(result::create_program(&source, None).map_err(|e| failed(format!("{e:?}")))?);
    let mut options = vec![format!("--gpu-architecture={architecture}")];
    options.extend(OPTIONS.map(String::from));
    // SAFETY: the program was just made, and `program` destroys it when dropped.
    let compiled = unsafe { result::compile_program(program.0, &options) };
    if compiled.is_err() {
        return Err(failed(program.log()));
    }
    program.cubin().map_err(failed)
}

/// What machine code depends on apart from text and architecture: the compiler's file and its options. The library is not
/// loaded for that: where all code is cached it is never needed.
///
/// # Errors
/// NVRTC is missing.
pub(crate) fn identity() -> Result<String, GpuError> {
    let path = locate(Library::Nvrtc).or_else(|_| find(Library::Nvrtc))?;
    Ok(format!("nvrtc {} {}", files::stamp(&path), OPTIONS.join(" ")))
}

/// An NVRTC program, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program is alive.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        String::from_utf8_lossy(&bytes).chars().take(4000).collect()
    }

    fn cubin(&self) -> Result<Vec<u8>, String> {
        let mut size = 0usize;
        // SAFETY: the program is alive and was compiled, and the size is written to a local.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size).result() }.map_err(|e| format!("{e:?}"))?;
        let mut code = vec![0u8; size];
        // SAFETY: the program is alive and was compiled, and the buffer has the size that the library reported.
        unsafe { sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast::<c_char>()).result() }
            .map_err(|e| format!("{e:?}"))?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was made in `compile` and is destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
