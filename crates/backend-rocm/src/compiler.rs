//! Which compiler makes machine code, and how hiprtc is called. In this order: hiprtc in a process of its own, by the program
//! `ferroflux-hiprtc` that stands beside the plugin's library or the program that uses it; clang, which is a process anyway;
//! hiprtc in this very process, where neither is there. A library has no other way to have a process of its own than a program
//! beside it: the program that loaded it may be anyone's.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use gpu_runtime::find::stamp;
use gpu_runtime::{GpuError, Module};
use libloading::Library as Loaded;

use crate::clang::Clang;
use crate::hiprtc::{self, CODE, OPTIONS};
use crate::libraries::{self, Library};

/// The program that calls hiprtc in a process of its own.
const PROGRAM: &str = "ferroflux-hiprtc";
/// A file that is taken for it instead of what is found.
const VARIABLE: &str = "FERROFLUX_HIPRTC";

/// How code is made on this machine.
#[derive(Clone, Debug)]
enum Compiler {
    /// hiprtc of this library, by this program.
    Apart {
        program: PathBuf,
        library: PathBuf,
    },
    Clang(&'static Clang),
    /// hiprtc in this process.
    Here,
}

fn compiler() -> Result<&'static Compiler, GpuError> {
    static FOUND: OnceLock<Result<Compiler, GpuError>> = OnceLock::new();
    FOUND.get_or_init(choose).as_ref().map_err(Clone::clone)
}

fn choose() -> Result<Compiler, GpuError> {
    let library = match located() {
        Ok(library) => library,
        Err(missing) => {
            return Clang::find().map(Compiler::Clang).map_err(|none| match missing {
                GpuError::Missing { library, looked, advice } => {
                    GpuError::Missing { library, looked: format!("{looked}; and {none}"), advice }
                }
                other => other,
            });
        }
    };
    if let Some(program) = program() {
        return Ok(Compiler::Apart { program, library });
    }
    Ok(Clang::find().map_or(Compiler::Here, Compiler::Clang))
}

/// The file of hiprtc: its own library, or in ROCm 5 the runtime's.
fn located() -> Result<PathBuf, GpuError> {
    let missing = match libraries::locate(Library::Compiler) {
        Ok(path) => return Ok(path),
        Err(missing) => missing,
    };
    if let Ok(path) = libraries::find(Library::Compiler) {
        return Ok(path);
    }
    let Ok((runtime, path)) = libraries::load(Library::Runtime) else { return Err(missing) };
    // SAFETY: the address is looked up and not used.
    let there = unsafe { runtime.get::<*const ()>(b"hiprtcCompileProgram\0") }.is_ok();
    if there { Ok(path.clone()) } else { Err(missing) }
}

/// The program of this name beside the library that this code is in, or beside the running program or above it.
fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(VARIABLE) {
        return Some(PathBuf::from(named)).filter(|p| p.is_file());
    }
    let running = std::env::current_exe().ok();
    let places = own_library().into_iter().chain(running);
    let folders =
        places.flat_map(|file| file.ancestors().skip(1).take(2).map(PathBuf::from).collect::<Vec<_>>());
    folders.map(|folder| folder.join(PROGRAM)).find(|p| p.is_file())
}

/// The file that this code was loaded from, by the system's list of what lies where.
fn own_library() -> Option<PathBuf> {
    let here = own_library as *const () as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let path = rest.split_once('/').map(|(_, path)| PathBuf::from(format!("/{path}")))?;
        (number(from)? <= here && here < number(to)?).then_some(path)
    })
}

/// What machine code depends on beside text and architecture.
///
/// # Errors
/// There is no compiler.
pub(crate) fn identity() -> Result<String, GpuError> {
    let hiprtc = |path: &PathBuf| format!("hiprtc {} {}", stamp(path), OPTIONS.join(" "));
    Ok(match compiler()? {
        Compiler::Apart { library, .. } => hiprtc(library),
        Compiler::Clang(clang) => clang.identity(),
        Compiler::Here => hiprtc(&located()?),
    })
}

/// What a listing says of the compiler.
///
/// # Errors
/// There is none.
pub(crate) fn about() -> Result<String, GpuError> {
    Ok(match compiler()? {
        Compiler::Apart { program, library } => format!("{} by {}", library.display(), program.display()),
        Compiler::Clang(clang) => clang.program().display().to_string(),
        Compiler::Here => format!("{} in this process", located()?.display()),
    })
}

/// Machine code of a module for an architecture as `gfx942`.
///
/// # Errors
/// There is no compiler, or it refuses the text.
pub(crate) fn compile(module: &Module, architecture: &str) -> Result<Vec<u8>, GpuError> {
    let failed =
        |log: String| GpuError::Compile { module: module.entries.first().cloned().unwrap_or_default(), log };
    match compiler()? {
        Compiler::Apart { program, library } => {
            let mut run = Command::new(program);
            apart(run.arg(library).arg(architecture), &module.text()).map_err(failed)
        }
        Compiler::Clang(clang) => clang.compile(module, architecture),
        Compiler::Here => {
            let (library, path) = here()?;
            hiprtc::compile(library, path, &module.text(), architecture)?.map_err(failed)
        }
    }
}

/// hiprtc, loaded: its own library or the runtime's.
fn here() -> Result<(&'static Loaded, &'static PathBuf), GpuError> {
    libraries::load(Library::Compiler).or_else(|_| libraries::load(Library::Runtime))
}

/// Runs the program of one compilation.
fn apart(run: &mut Command, text: &str) -> Result<Vec<u8>, String> {
    let run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().map_err(|e| format!("{PROGRAM}: {e}"))?;
    // It reads all before it writes anything. Where it ends early, how it ended says why.
    let input = child.stdin.take();
    let _ = input.map_or(Ok(()), |mut input| input.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(|e| format!("{PROGRAM}: {e}"))?;
    match output.stdout.strip_prefix(CODE) {
        Some(code) if output.status.success() => Ok(code.to_vec()),
        _ => {
            let log: String = String::from_utf8_lossy(&output.stderr).chars().take(4000).collect();
            Err(format!("{}{}", ended(output.status), log.trim_end()))
        }
    }
}

/// How a process ended that did not end by itself.
fn ended(status: ExitStatus) -> String {
    match status.code() {
        Some(_) => String::new(),
        None => format!(
            "hiprtc ended its process ({status}), as it does where it does not know an architecture: "
        ),
    }
}
