//! NVRTC: compiles kernel text to machine code of one architecture. No GPU is needed.

use std::ffi::{CStr, CString, c_char, c_int};

use cudarc::nvrtc::sys;
use gpu_runtime::{GpuError, Module, find as files};

use crate::libraries::{Library, find, locate};
use crate::nvrtc_api::Api;

/// The options of every compilation apart from the architecture. Products and sums are not contracted, so that results are
/// those of the individual operators.
const OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// Compiles a module to machine code (a cubin) for an architecture such as `sm_90`.
///
/// # Errors
/// NVRTC is missing, or rejects the text; its log is in the error.
pub fn compile(module: &Module, architecture: &str) -> Result<Vec<u8>, GpuError> {
    let api = Api::load()?;
    let name = module.entries.first().cloned().unwrap_or_default();
    let failed = |log: String| GpuError::Compile { module: name.clone(), log };
    let source = CString::new(module.text()).map_err(|e| failed(e.to_string()))?;
    let program = Program::new(api, &source).map_err(failed)?;
    if !program.compiles(architecture)? {
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
struct Program {
    api: &'static Api,
    handle: sys::nvrtcProgram,
}

impl Program {
    fn new(api: &'static Api, source: &CStr) -> Result<Program, String> {
        let mut handle = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: the library writes one pointer, and copies the text.
        let made = unsafe { (api.create)(&mut handle, source.as_ptr(), none, 0, none.cast(), none.cast()) };
        made.result().map_err(|e| format!("{e:?}"))?;
        Ok(Program { api, handle })
    }

    /// Compiles it; `false` where the log says why not.
    fn compiles(&self, architecture: &str) -> Result<bool, GpuError> {
        let architecture = format!("--gpu-architecture={architecture}");
        let options = std::iter::once(architecture.as_str()).chain(OPTIONS);
        let options: Result<Vec<CString>, _> = options.map(CString::new).collect();
        let options = options.map_err(|e| GpuError::Malformed(e.to_string()))?;
        let list: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        // SAFETY: the program is alive, and the options outlive the call.
        let done = unsafe { (self.api.compile)(self.handle, list.len() as c_int, list.as_ptr()) };
        Ok(done.result().is_ok())
    }

    fn log(&self) -> String {
        let mut size = 0usize;
        // SAFETY: the program is alive, and the size is written to a local.
        let sized = unsafe { (self.api.log_size)(self.handle, &mut size) };
        let mut log = vec![0u8; if sized.result().is_ok() { size } else { 0 }];
        if !log.is_empty() {
            // SAFETY: the program is alive, and the buffer has the size that the library reported.
            let _ = unsafe { (self.api.log)(self.handle, log.as_mut_ptr().cast::<c_char>()) };
        }
        let text = log.split(|c| *c == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).chars().take(4000).collect()
    }

    fn cubin(&self) -> Result<Vec<u8>, String> {
        let mut size = 0usize;
        // SAFETY: the program is alive and was compiled, and the size is written to a local.
        unsafe { (self.api.code_size)(self.handle, &mut size).result() }.map_err(|e| format!("{e:?}"))?;
        let mut code = vec![0u8; size];
        // SAFETY: the program is alive and was compiled, and the buffer has the size that the library reported.
        unsafe { (self.api.code)(self.handle, code.as_mut_ptr().cast::<c_char>()).result() }
            .map_err(|e| format!("{e:?}"))?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was made in `new` and is destroyed once.
        let _ = unsafe { (self.api.destroy)(&mut self.handle) };
    }
}
