//! What a machine of a case has: a folder of ROCm in which libraries have the names that the backend looks for.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use plugin_host::{LoadedBackend, Registry, SearchPath};

/// How a case ends.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The folder of one case.
pub(crate) struct Machine(tempfile::TempDir);

/// A library that cargo built beside this program.
pub(crate) fn built(name: &str) -> io::Result<PathBuf> {
    let name = format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let program = std::env::current_exe()?;
    let found = program.ancestors().map(|dir| dir.join(&name)).find(|p| p.is_file());
    found.ok_or_else(|| io::Error::other(format!("{name} is not above {}", program.display())))
}

/// The plugin's library.
pub(crate) fn library() -> io::Result<PathBuf> {
    built("ferroflux_rocm")
}

/// The plugin, loaded by its path.
pub(crate) fn backend() -> Result<LoadedBackend, Box<dyn std::error::Error>> {
    let nowhere = tempfile::tempdir()?;
    let registry = Registry::new(&SearchPath::only(nowhere.path()));
    Ok(registry.load(&library()?.to_string_lossy())?)
}

impl Machine {
    pub(crate) fn new() -> io::Result<Machine> {
        let folder = tempfile::tempdir()?;
        std::fs::create_dir(folder.path().join("lib"))?;
        Ok(Machine(folder))
    }

    /// A file in the folder of libraries.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join("lib").join(name)
    }

    /// What a process there is told.
    pub(crate) fn environment(&self, devices: &str) -> Vec<(OsString, OsString)> {
        let program = env!("CARGO_BIN_EXE_ferroflux-hiprtc");
        let folder = self.0.path().as_os_str().to_owned();
        let all = [
            ("ROCM_PATH", folder.clone()),
            ("FERROFLUX_HIP_STANDIN", devices.into()),
            ("FERROFLUX_HIPRTC", program.into()),
            ("FERROFLUX_CACHE_DIR", self.0.path().join("cache").into_os_string()),
            ("FERROFLUX_TEST_FOLDER", folder),
        ];
        all.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }
}

/// The stand-in by the name of ROCm 6's runtime.
pub(crate) fn standin(machine: &Machine) -> io::Result<()> {
    std::os::unix::fs::symlink(built("ferroflux_hip_standin")?, machine.file("libamdhip64.so.6"))
}

/// The same with hipBLASLt.
pub(crate) fn with_products(machine: &Machine) -> io::Result<()> {
    standin(machine)?;
    std::os::unix::fs::symlink(built("ferroflux_hip_standin")?, machine.file("libhipblaslt.so.0"))
}

/// Fails a case with what was found.
pub(crate) fn ensure(holds: bool, found: impl std::fmt::Debug) -> Outcome {
    if holds { Ok(()) } else { Err(format!("not so: {found:?}").into()) }
}
