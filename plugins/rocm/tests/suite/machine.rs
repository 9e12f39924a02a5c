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

/// The same with the stand-in by further names.
fn with(machine: &Machine, names: &[&str]) -> io::Result<()> {
    standin(machine)?;
    names
        .iter()
        .try_for_each(|name| std::os::unix::fs::symlink(built("ferroflux_hip_standin")?, machine.file(name)))
}

/// Files as those in which rocBLAS keeps its kernels for an architecture.
fn rocblas_kernels(machine: &Machine, architecture: &str) -> io::Result<()> {
    let folder = machine.file("rocblas/library");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(format!("TensileLibrary_lazy_{architecture}.dat")), "")
}

/// The stand-in with hipBLASLt.
pub(crate) fn with_hipblaslt(machine: &Machine) -> io::Result<()> {
    with(machine, &["libhipblaslt.so.0"])
}

/// The stand-in with rocBLAS for `gfx942`.
pub(crate) fn with_rocblas(machine: &Machine) -> io::Result<()> {
    rocblas_kernels(machine, "gfx942")?;
    with(machine, &["librocblas.so.4"])
}

/// The stand-in with a rocBLAS that has no kernels for `gfx942`.
pub(crate) fn with_rocblas_for_others(machine: &Machine) -> io::Result<()> {
    rocblas_kernels(machine, "gfx1030")?;
    with(machine, &["librocblas.so.4"])
}

/// The stand-in with both libraries of products.
pub(crate) fn with_both(machine: &Machine) -> io::Result<()> {
    rocblas_kernels(machine, "gfx942")?;
    with(machine, &["librocblas.so.4", "libhipblaslt.so.0"])
}

/// The stand-in with MIOpen.
pub(crate) fn with_miopen(machine: &Machine) -> io::Result<()> {
    with(machine, &["libMIOpen.so.1"])
}

/// The stand-in with files that are no libraries by the names of hipBLASLt, rocBLAS and MIOpen, or other libraries.
pub(crate) fn with_broken_libraries(machine: &Machine) -> io::Result<()> {
    standin(machine)?;
    std::fs::write(machine.file("libhipblaslt.so.0"), "no library")?;
    std::os::unix::fs::symlink(library()?, machine.file("librocblas.so.4"))?;
    std::os::unix::fs::symlink(library()?, machine.file("libMIOpen.so.1"))
}

/// Calls a function of the stand-in that counts something: the very library that the plugin has loaded.
pub(crate) fn counted(name: &str, of: i32) -> Result<u64, Box<dyn std::error::Error>> {
    // SAFETY: the stand-in does nothing when loaded, and its functions that count take a number or nothing.
    unsafe {
        let standin = libloading::Library::new(built("ferroflux_hip_standin")?)?;
        let count =
            standin.get::<extern "C" fn(i32) -> u64>(format!("ferroflux_hip_standin_{name}").as_bytes())?;
        Ok(count(of))
    }
}

/// Fails a case with what was found.
pub(crate) fn ensure(holds: bool, found: impl std::fmt::Debug) -> Outcome {
    if holds { Ok(()) } else { Err(format!("not so: {found:?}").into()) }
}
