//! clang: kernel text to machine code of one architecture without ROCm's headers and device libraries, where hiprtc is missing.
//! Needs no GPU.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use gpu_runtime::{GpuError, Module};

use crate::hiprtc::OPTIONS;
use crate::libraries::{USUAL, VARIABLES};

/// The first release that knows every architecture and built-in function that is used.
const FIRST: u32 = 19;
/// What makes of it a compiler of nothing but the device's code, with no file of ROCm's.
const ALONE: [&str; 6] =
    ["-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpulib", "-nogpuinc"];
/// Names that it may have in the folders of PATH, newest first.
const NAMES: [&str; 6] = ["clang-23", "clang-22", "clang-21", "clang-20", "clang-19", "clang"];

/// A clang that compiles for AMD's GPUs.
#[derive(Clone, Debug)]
pub struct Clang {
    program: PathBuf,
    /// The first line of what it says of itself.
    version: String,
}

impl Clang {
    /// The one of this machine: what FERROFLUX_CLANG names, ROCm's, or the newest of PATH; release 19 or later.
    ///
    /// # Errors
    /// There is none: where it was looked.
    pub fn find() -> Result<&'static Clang, GpuError> {
        static FOUND: OnceLock<Result<Clang, GpuError>> = OnceLock::new();
        FOUND.get_or_init(search).as_ref().map_err(Clone::clone)
    }

    /// On what machine code depends beside text and architecture.
    pub(crate) fn identity(&self) -> String {
        format!("clang {} {} {}", self.program.display(), self.version, OPTIONS.join(" "))
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The first line of what it says of itself.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// A call that compiles for an architecture as `gfx942`; the source and the output are to be added.
    pub fn command(&self, architecture: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(ALONE).args(OPTIONS).arg("-w").arg(format!("--offload-arch={architecture}"));
        command
    }

    /// Machine code of a module for an architecture as `gfx942`.
    ///
    /// # Errors
    /// clang refuses the text: what it says.
    pub fn compile(&self, module: &Module, architecture: &str) -> Result<Vec<u8>, GpuError> {
        let failed = |log: String| GpuError::Compile {
            module: module.entries.first().cloned().unwrap_or_default(),
            log: log.chars().take(4000).collect(),
        };
        let folder = tempfile::tempdir().map_err(|e| failed(e.to_string()))?;
        let (source, code) = (folder.path().join("module.hip"), folder.path().join("module.co"));
        std::fs::write(&source, module.text()).map_err(|e| failed(e.to_string()))?;
        let mut run = self.command(architecture);
        run.arg(&source).arg("-o").arg(&code);
        let output = run.output().map_err(|e| failed(format!("{}: {e}", self.program.display())))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        std::fs::read(&code).map_err(|e| failed(e.to_string()))
    }
}

fn search() -> Result<Clang, GpuError> {
    let named = std::env::var_os("FERROFLUX_CLANG").filter(|p| !p.is_empty()).map(PathBuf::from);
    let roots = VARIABLES.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let roots = roots.chain([PathBuf::from(USUAL)]).map(|root| root.join("llvm").join("bin").join("clang"));
    let all = named.into_iter().chain(roots).chain(NAMES.iter().map(PathBuf::from));
    let mut looked = Vec::new();
    for program in all {
        match release(&program) {
            Some((release, version)) if release >= FIRST => return Ok(Clang { program, version }),
            Some((release, _)) => looked.push(format!("{} (release {release})", program.display())),
            None => looked.push(program.display().to_string()),
        }
    }
    Err(GpuError::Missing {
        library: "clang 19 or later",
        looked: looked.join(", "),
        advice: "install it with lld, or ROCm's hiprtc",
    })
}

/// The release of a clang, and the line that says it.
fn release(program: &Path) -> Option<(u32, String)> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?.trim().to_owned();
    let number = line.split_once("clang version ")?.1.split('.').next()?.parse().ok()?;
    Some((number, line))
}
