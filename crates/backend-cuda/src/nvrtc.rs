//! NVRTC: kernel text to machine code of one architecture. Needs no GPU.

use std::ffi::{CString, c_char};

use cudarc::nvrtc::{result, sys};
use gpu_runtime::{GpuError, Module, find as files};

use crate::libraries::{Library, find, locate};

/// What every compilation is told beside its architecture. Products and sums are not contracted: results are those of the
/// operators, one by one.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// Machine code (a cubin) of a module for an architecture as `sm_90`.
///
/// # Errors
/// NVRTC is not there, or refuses the text: its log says why.
pub fn compile(module: &Module, architecture: &str) -> Result<Vec<u8>, GpuError> {
    find(Library::Nvrtc)?;
    let name = module.entries.first().cloned().unwrap_or_default();
    let failed = |log: String| GpuError::Compile { module: name.clone(), log };
    let source = CString::new(module.text()).map_err(|e| failed(e.to_string()))?;
    let program = Program(result::create_program(&source, None).map_err(|e| failed(format!("{e:?}")))?);
    let mut options = vec![format!("--gpu-architecture={architecture}")];
    options.extend(OPTIONS.map(String::from));
    // SAFETY: the program was just made and is destroyed when `program` goes.
    let compiled = unsafe { result::compile_program(program.0, &options) };
    if compiled.is_err() {
        return Err(failed(program.log()));
    }
    program.cubin().map_err(failed)
}

/// What machine code depends on beside text and architecture: the compiler's file and what it is told. The library is not
/// loaded for that: where all code is in the cache it is never needed.
///
/// # Errors
/// NVRTC is not there.
pub(crate) fn identity() -> Result<String, GpuError> {
    let path = locate(Library::Nvrtc).or_else(|_| find(Library::Nvrtc))?;
    Ok(format!("nvrtc {} {}", files::stamp(&path), OPTIONS.join(" ")))
}

/// A program of NVRTC's, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        // SAFETY: the program lives.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        String::from_utf8_lossy(&bytes).chars().take(4000).collect()
    }

    fn cubin(&self) -> Result<Vec<u8>, String> {
        let mut size = 0usize;
        // SAFETY: the program lives and was compiled; the size is written to a local.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size).result() }.map_err(|e| format!("{e:?}"))?;
        let mut code = vec![0u8; size];
        // SAFETY: as above; the buffer has the size that was asked for.
        unsafe { sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast::<c_char>()).result() }
            .map_err(|e| format!("{e:?}"))?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made in `compile`, destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}
