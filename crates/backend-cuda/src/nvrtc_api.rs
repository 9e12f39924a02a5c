//! The functions of NVRTC that are called, with the types of `cudarc`'s bindings.
//!
//! Not here: what they are called for (`nvrtc`).

use std::ffi::{c_char, c_int};

use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};

use crate::api::functions;
use crate::libraries::Library;

functions! {
    /// The functions, by what they do.
    pub(crate) struct Api in Library::Nvrtc, which is "NVRTC 12 or later";
    /// Program, text, name, number of headers, these, their names.
    create = "nvrtcCreateProgram": fn(
        *mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
    ) -> nvrtcResult;
    destroy = "nvrtcDestroyProgram": fn(*mut nvrtcProgram) -> nvrtcResult;
    compile = "nvrtcCompileProgram": fn(nvrtcProgram, c_int, *const *const c_char) -> nvrtcResult;
    log_size = "nvrtcGetProgramLogSize": fn(nvrtcProgram, *mut usize) -> nvrtcResult;
    log = "nvrtcGetProgramLog": fn(nvrtcProgram, *mut c_char) -> nvrtcResult;
    code_size = "nvrtcGetCUBINSize": fn(nvrtcProgram, *mut usize) -> nvrtcResult;
    code = "nvrtcGetCUBIN": fn(nvrtcProgram, *mut c_char) -> nvrtcResult;
}
