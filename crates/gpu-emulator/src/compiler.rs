//! Compiles module texts to shared libraries by the system's C++ compiler. The libraries are cached in a folder by the
//! hash of everything that goes into them.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use gpu_codegen::{Dialect, Target};
use gpu_runtime::Module;
use sha2::{Digest, Sha256};

use crate::EmulatorError;
use crate::launch::{Function, Library};

/// The text before the prelude.
const BEFORE: &str = concat!(
    include_str!("emulation/language.h"),
    "\n",
    include_str!("emulation/scheduler.h"),
    "\n",
    include_str!("emulation/cores.h"),
    "\n",
    include_str!("emulation/tma.h"),
    "\n",
    include_str!("emulation/launch.h"),
    "\n"
);

/// CUDA's dialect, with the emulator's own definitions where CUDA's need PTX.
const CUDA: Dialect = Dialect {
    name: "cuda on the host",
    before: &[Dialect::CUDA.before[0], include_str!("emulation/numbers.h")],
    behind: &[include_str!("emulation/instructions.h")],
    ..Dialect::CUDA
};

/// Adapts a target to what the host's compiler can read. HIP's dialect is read as it is, over built-in functions that the
/// emulator defines.
pub(crate) fn readable(target: Target) -> Target {
    let dialect = if target.dialect == Dialect::CUDA { CUDA } else { target.dialect };
    Target { dialect, ..target }
}

/// Contraction would round differently from the device's `--fmad=false`. Integers wrap and memory is untyped, as on the
/// device.
const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-w",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-fno-exceptions",
];

/// Converts 16-bit floats by an instruction where the processor has it, which gives the same bits as the library's functions.
fn conversions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("f16c") {
        return "-mf16c";
    }
    ""
}

fn flags() -> impl Iterator<Item = &'static str> {
    FLAGS.into_iter().chain(Some(conversions()).filter(|flag| !flag.is_empty()))
}

/// The text needs nothing of C++'s library, which takes longest to link.
const LIBRARIES: [&str; 4] = ["-nodefaultlibs", "-lm", "-lc", "-lgcc"];

/// Number of compilers that run concurrently.
const AT_ONCE: usize = 2;

fn command() -> String {
    std::env::var("CXX").ok().filter(|s| !s.is_empty()).unwrap_or_else(|| "c++".into())
}

/// The compiler's version, which is asked once.
fn version() -> Result<&'static str, EmulatorError> {
    static VERSION: OnceLock<Option<String>> = OnceLock::new();
    let ask = || {
        let output = Command::new(command()).arg("--version").output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    VERSION.get_or_init(ask).as_deref().ok_or_else(|| EmulatorError::NoCompiler { looked: command() })
}

/// Whether kernels can be compiled here, or why not.
///
/// # Errors
/// [`EmulatorError::NoCompiler`] where there is no C++ compiler.
pub fn available() -> Result<(), EmulatorError> {
    version().map(|_| ())
}

/// The folder of the libraries: `FERROFLUX_EMULATOR_CACHE`, or a subfolder of the system's temporary one.
fn folder() -> Result<PathBuf, EmulatorError> {
    let given = std::env::var_os("FERROFLUX_EMULATOR_CACHE").map(PathBuf::from);
    let folder = given.unwrap_or_else(|| std::env::temp_dir().join("ferroflux-gpu-emulator"));
    std::fs::create_dir_all(&folder).map_err(|e| system(&folder, &e))?;
    Ok(folder)
}

fn system(path: &Path, error: &dyn std::fmt::Display) -> EmulatorError {
    EmulatorError::System { what: format!("{}: {error}", path.display()) }
}

/// Compiles modules concurrently; the functions of each are in the order of its entries.
pub(crate) fn compile(modules: &[Module], wave: u32) -> Result<Vec<Vec<Function>>, EmulatorError> {
    let version = version()?;
    let folder = folder()?;
    let next = std::sync::atomic::AtomicUsize::new(0);
    let results: Vec<OnceLock<Result<Vec<Function>, EmulatorError>>> =
        modules.iter().map(|_| OnceLock::new()).collect();
    let work = || {
        loop {
            let n = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some(module) = modules.get(n) else { return };
            let _ = results[n].set(one(module, wave, version, &folder));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..AT_ONCE.min(modules.len()) {
            scope.spawn(work);
        }
        work();
    });
    let missing = || Err(EmulatorError::System { what: "a compiling thread ended early".into() });
    results.into_iter().map(|r| r.into_inner().unwrap_or_else(missing)).collect()
}

fn one(module: &Module, wave: u32, version: &str, folder: &Path) -> Result<Vec<Function>, EmulatorError> {
    let text = text(module, wave);
    let mut hash = Sha256::new();
    for part in [&command(), version, &flags().collect::<Vec<_>>().join(" "), &text] {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let hex = hash.finalize().iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    });
    let library = folder.join(format!("{}.so", &hex[..32]));
    if !library.exists() {
        build(module, &text, folder, &library)?;
    }
    let opened = Library::open(&library)?;
    let function = |(n, name): (usize, &String)| Function::new(&opened, n as u32, name.clone());
    Ok(module.entries.iter().enumerate().map(function).collect())
}

/// The complete text: the emulator's part, the module, and the table of entries.
fn text(module: &Module, wave: u32) -> String {
    let Module { prelude, kernels, .. } = module;
    let mut text = format!(
        "#define FFX_WAVE {wave}\n{BEFORE}#line 1 \"prelude.cu\"\n{prelude}\n#line 1 \"kernels.cu\"\n{kernels}\n"
    );
    text.push_str("extern \"C\" void ffx_launch(FfxLaunch *launch) {\nswitch (launch->entry) {\n");
    for (n, entry) in module.entries.iter().enumerate() {
        let call = format!("[](const ffx_u64 *a) {{ ffx_call({entry}, a); }}");
        let _ = writeln!(text, "case {n}: ffx_run(launch, {call}); break;");
    }
    text.push_str("}\n}\n");
    text
}

/// Builds under a temporary name and renames, so that concurrent processes do not interfere.
fn build(module: &Module, text: &str, folder: &Path, library: &Path) -> Result<(), EmulatorError> {
    let work = tempfile::Builder::new().prefix("build").tempdir_in(folder).map_err(|e| system(folder, &e))?;
    let (source, made) = (work.path().join("module.cpp"), work.path().join("module.so"));
    std::fs::write(&source, text).map_err(|e| system(&source, &e))?;
    let mut run = Command::new(command());
    run.args(flags()).arg(&source).arg("-o").arg(&made).args(LIBRARIES);
    let output = run.output().map_err(|e| system(&source, &e))?;
    if !output.status.success() {
        let log: String = String::from_utf8_lossy(&output.stderr).chars().take(4000).collect();
        return Err(EmulatorError::Compile {
            module: module.entries.first().cloned().unwrap_or_default(),
            log,
        });
    }
    std::fs::rename(&made, library).map_err(|e| system(library, &e))
}
