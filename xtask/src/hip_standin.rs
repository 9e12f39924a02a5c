//! `xtask hip-standin`: runs a command on a machine that seems to have ROCm: its runtime is the one of `plugins/hip-standin`, over
//! the GPU emulator. `{plugin}` in the command's arguments stands for the library of the ROCm plugin, which is a backend's name
//! too: `xtask hip-standin --devices gfx942 -- xtask corpus --backend {plugin} --only add tests/data/corpus`.
//!
//! Called by the name `ferroflux-hiprtc`, this program is the process of one compilation, as the plugin calls it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::root::root;

/// The name of the program that compiles.
const COMPILER: &str = "ferroflux-hiprtc";
/// What stands for the plugin's library.
const PLUGIN: &str = "{plugin}";

/// Arguments of `xtask hip-standin`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What there is: architectures, and settings as `schedule=backward` (see `plugins/hip-standin`).
    #[arg(long, default_value = "gfx942")]
    devices: String,
    /// The command; `xtask` is this program.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The answer of a process of one compilation, where this is one.
pub(crate) fn compiler() -> Option<ExitCode> {
    let called = std::env::args_os().next()?;
    (Path::new(&called).file_name() == Some(OsStr::new(COMPILER))).then(backend_rocm::serve)
}

/// Runs the command; whether it ended well.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let program = std::env::current_exe().context("where this program is")?;
    let folder = root()?.join("target").join("hip-standin");
    let libraries = folder.join("lib");
    std::fs::create_dir_all(&libraries).with_context(|| libraries.display().to_string())?;
    link(&built(&program, "ferroflux_hip_standin")?, &libraries.join("libamdhip64.so.6"))?;
    let compiler = folder.join(COMPILER);
    link(&program, &compiler)?;
    let plugin = built(&program, "ferroflux_rocm")?;
    let mut words = args.command.iter().map(|word| match word.to_str() {
        Some(PLUGIN) => plugin.clone().into_os_string(),
        _ => word.clone(),
    });
    let command = words.next().context("no command")?;
    let command = if command == "xtask" { program.into_os_string() } else { command };
    let status = Command::new(&command)
        .args(words)
        .env("ROCM_PATH", &folder)
        .env("FERROFLUX_HIP_STANDIN", &args.devices)
        .env("FERROFLUX_HIPRTC", &compiler)
        .env("FERROFLUX_CACHE_DIR", folder.join("cache"))
        .status();
    Ok(status.with_context(|| command.display().to_string())?.success())
}

/// The newest library of this name beside the program: as a package of its own, or as what this one depends on.
fn built(program: &Path, name: &str) -> Result<PathBuf> {
    let name = format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let folder = program.parent().context("a program in no folder")?;
    let places = [folder.join(&name), folder.join("deps").join(&name)];
    let written = |path: &PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    let newest = places.into_iter().filter(|path| path.is_file()).max_by_key(written);
    newest.with_context(|| format!("{name} is not beside {}", program.display()))
}

/// Makes a link to a file, in the place of what is there.
fn link(to: &Path, at: &Path) -> Result<()> {
    let new = at.with_extension(format!("new{}", std::process::id()));
    let made = std::os::unix::fs::symlink(to, &new).and_then(|()| std::fs::rename(&new, at));
    made.with_context(|| at.display().to_string())
}
