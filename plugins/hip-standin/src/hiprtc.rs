//! hiprtc's functions: the emulator's compiler looks at the text, which is then the code itself. An architecture that is not known
//! ends the process, as the real compiler does.

use std::ffi::{CStr, c_char, c_int, c_void};

use gpu_emulator::Emulator;

use crate::device::target;
use crate::module::{code, kernels};

/// `hiprtcResult`: an invalid program, an error of compilation.
const INVALID_PROGRAM: c_int = 4;
const COMPILATION: c_int = 6;
/// The architectures that the compiler knows.
const KNOWN: [&str; 7] = ["gfx908", "gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"];

/// A program of the caller's.
#[derive(Default)]
struct Program {
    text: String,
    log: Vec<u8>,
    code: Vec<u8>,
}

impl Program {
    fn compile(&mut self, architecture: &str) -> c_int {
        let architecture = architecture.split(':').next().unwrap_or(architecture);
        if !KNOWN.contains(&architecture) {
            eprintln!("LLVM ERROR: the stand-in's compiler knows no `{architecture}`");
            std::process::abort();
        }
        match kernels(&Emulator::new(target(architecture)), &self.text) {
            Ok(found) if !found.is_empty() => {
                self.code = code(&self.text, architecture);
                0
            }
            Ok(_) => {
                self.log = b"the text has no kernel\0".to_vec();
                COMPILATION
            }
            Err(e) => {
                self.log = format!("{e}\0").into_bytes();
                COMPILATION
            }
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hiprtcCreateProgram(
    program: *mut *mut Program,
    text: *const c_char,
    _name: *const c_char,
    _headers: c_int,
    _texts: *const c_void,
    _names: *const c_void,
) -> c_int {
    // SAFETY: a text that ends with 0, and a pointer for the handle.
    unsafe {
        let text = CStr::from_ptr(text).to_string_lossy().into_owned();
        program.write(Box::into_raw(Box::new(Program { text, ..Program::default() })));
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hiprtcCompileProgram(
    program: *mut Program,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    // SAFETY: a program of `hiprtcCreateProgram`, and as many texts as are said.
    let (Some(program), texts) = (unsafe { program.as_mut() }, unsafe {
        (0..count as usize).map(|n| CStr::from_ptr(*options.add(n)).to_string_lossy().into_owned())
    }) else {
        return INVALID_PROGRAM;
    };
    let mut texts = texts.filter_map(|text| text.strip_prefix("--offload-arch=").map(str::to_owned));
    program.compile(&texts.next().unwrap_or_else(|| "gfx942".into()))
}

/// Gives the length of a list of bytes.
///
/// # Safety
/// A program of `hiprtcCreateProgram`; the pointer may be written.
unsafe fn size(program: *mut Program, of: fn(&Program) -> &Vec<u8>, to: *mut usize) -> c_int {
    // SAFETY: the caller's promise.
    let Some(program) = (unsafe { program.as_ref() }) else { return INVALID_PROGRAM };
    // SAFETY: the caller's promise.
    unsafe { to.write(of(program).len()) };
    0
}

/// Gives the bytes.
///
/// # Safety
/// As for [`size`]; as many bytes may be written.
unsafe fn bytes(program: *mut Program, of: fn(&Program) -> &Vec<u8>, to: *mut c_char) -> c_int {
    // SAFETY: the caller's promise.
    let Some(program) = (unsafe { program.as_ref() }) else { return INVALID_PROGRAM };
    let from = of(program);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.cast::<u8>(), from.len()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hiprtcGetProgramLogSize(program: *mut Program, to: *mut usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { size(program, |p| &p.log, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hiprtcGetProgramLog(program: *mut Program, to: *mut c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { bytes(program, |p| &p.log, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hiprtcGetCodeSize(program: *mut Program, to: *mut usize) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { size(program, |p| &p.code, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hiprtcGetCode(program: *mut Program, to: *mut c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { bytes(program, |p| &p.code, to) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn hiprtcDestroyProgram(program: *mut *mut Program) -> c_int {
    // SAFETY: a program of `hiprtcCreateProgram`, destroyed once.
    unsafe { drop(Box::from_raw(*program)) };
    0
}
