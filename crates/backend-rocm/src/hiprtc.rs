//! hiprtc: kernel text to machine code of one architecture, in this process. It ends the process that calls it where it does not
//! know the architecture, or where a built-in function has no instruction there; so it is called in a process of its own
//! ([`serve`]) wherever there is a program for that (`compiler`).

use std::ffi::{CString, c_char, c_int, c_void};
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::ptr::{null, null_mut};

use gpu_runtime::GpuError;
use libloading::Library as Loaded;

use crate::api::{Opaque, table};

/// What every compilation is told beside its architecture. Products and sums are not contracted: results are those of the
/// operators, one by one.
pub(crate) const OPTIONS: [&str; 3] = ["-O3", "-std=c++17", "-ffp-contract=off"];
/// What an answer with code begins with.
pub(crate) const CODE: &[u8; 8] = b"ffxhipco";
/// Letters of a log that are passed on.
const MOST_LOG: usize = 4000;

table! {
    /// The functions of hiprtc.
    Functions of "hiprtc (libhiprtc)";
    create = "hiprtcCreateProgram"(
        *mut Opaque, *const c_char, *const c_char, c_int, *const c_void, *const c_void
    ),
    compile = "hiprtcCompileProgram"(Opaque, c_int, *const *const c_char),
    log_size = "hiprtcGetProgramLogSize"(Opaque, *mut usize),
    log = "hiprtcGetProgramLog"(Opaque, *mut c_char),
    code_size = "hiprtcGetCodeSize"(Opaque, *mut usize),
    code = "hiprtcGetCode"(Opaque, *mut c_char),
    destroy = "hiprtcDestroyProgram"(*mut Opaque),
    ;
}

/// A program of hiprtc's, destroyed when dropped.
struct Program<'a>(&'a Functions, Opaque);

impl Program<'_> {
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program lives; the size is written to a local.
        if unsafe { (self.0.log_size)(self.1, &mut size) } != 0 || size == 0 {
            return String::new();
        }
        let mut log = vec![0u8; size];
        // SAFETY: the program lives; the buffer has the size that hiprtc told for it.
        let _ = unsafe { (self.0.log)(self.1, log.as_mut_ptr().cast::<c_char>()) };
        let text = String::from_utf8_lossy(&log);
        text.trim_end_matches('\0').chars().take(MOST_LOG).collect()
    }

    fn code(&self) -> Result<Vec<u8>, String> {
        let mut size = 0;
        // SAFETY: the program lives and was compiled; the size is written to a local.
        failed("hiprtcGetCodeSize", unsafe { (self.0.code_size)(self.1, &mut size) })?;
        let mut code = vec![0u8; size];
        // SAFETY: the program lives; the buffer has the size that hiprtc told for it.
        failed("hiprtcGetCode", unsafe { (self.0.code)(self.1, code.as_mut_ptr().cast::<c_char>()) })?;
        Ok(code)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: made in `compile`, destroyed once.
        let _ = unsafe { (self.0.destroy)(&mut self.1) };
    }
}

fn failed(call: &str, number: c_int) -> Result<(), String> {
    if number == 0 { Ok(()) } else { Err(format!("{call}: error {number}")) }
}

/// Machine code of a text, or what the compiler says.
///
/// # Errors
/// The library is not hiprtc; the inner error is the compiler's.
pub(crate) fn compile(
    library: &'static Loaded,
    path: &Path,
    text: &str,
    architecture: &str,
) -> Result<Result<Vec<u8>, String>, GpuError> {
    let functions = Functions::of(library, path)?;
    Ok(compiled(&functions, text, architecture))
}

fn compiled(functions: &Functions, text: &str, architecture: &str) -> Result<Vec<u8>, String> {
    let text = CString::new(text).map_err(|e| e.to_string())?;
    let mut program = null_mut();
    // SAFETY: the texts live through the call; the handle is written to a local; there are no headers.
    let made = unsafe {
        (functions.create)(&mut program, text.as_ptr(), c"ferroflux.hip".as_ptr(), 0, null(), null())
    };
    failed("hiprtcCreateProgram", made)?;
    let program = Program(functions, program);
    let options = std::iter::once(format!("--offload-arch={architecture}")).chain(OPTIONS.map(String::from));
    let options: Vec<CString> =
        options.map(CString::new).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    // SAFETY: the program was just made; the options live through the call.
    let done = unsafe { (functions.compile)(program.1, pointers.len() as c_int, pointers.as_ptr()) };
    if let Err(e) = failed("hiprtcCompileProgram", done) {
        return Err(format!("{e}\n{}", program.log()));
    }
    program.code()
}

/// The process of one compilation: `PROGRAM LIBRARY ARCHITECTURE`, the text on the standard input, machine code on the standard
/// output, what the compiler says on the standard error. It ends as the compiler does.
pub fn serve() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(path), Some(architecture)) = (arguments.next(), arguments.next()) else {
        eprintln!("this program compiles kernels for Ferroflux's ROCm backend, which calls it");
        return ExitCode::FAILURE;
    };
    match served(Path::new(&path), &architecture.to_string_lossy()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("{what}");
            ExitCode::FAILURE
        }
    }
}

fn served(path: &Path, architecture: &str) -> Result<(), String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| e.to_string())?;
    // SAFETY: the backend found this library to be ROCm's by its name, as the system's loader would.
    let library = unsafe { Loaded::new(path) }.map_err(|e| e.to_string())?;
    let library: &'static Loaded = Box::leak(Box::new(library));
    let code = compile(library, path, &text, architecture).map_err(|e| e.to_string())??;
    let mut out = std::io::stdout().lock();
    out.write_all(CODE)
        .and_then(|()| out.write_all(&code))
        .and_then(|()| out.flush())
        .map_err(|e| e.to_string())
}
