//! The libraries of ROCm: their names, where they may lie, and loading them once.

use std::path::PathBuf;
use std::sync::OnceLock;

use gpu_runtime::GpuError;
use gpu_runtime::find::{self as files, Sought, children};
use libloading::Library as Loaded;

/// A library of ROCm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// `libamdhip64`, the HIP runtime.
    Runtime,
    /// `libhiprtc`, the run-time compiler; in ROCm 5 a part of the runtime.
    Compiler,
    /// `libhipblaslt`, matrix products.
    Blas,
    /// `librocblas`, matrix products where hipBLASLt has none.
    RocBlas,
    /// `libMIOpen`, convolutions.
    Dnn,
}

/// The libraries that offer candidates for steps, by their names in listings. None of them is needed.
pub(crate) const OFFERING: [(&str, Library); 3] =
    [("hipblaslt", Library::Blas), ("rocblas", Library::RocBlas), ("miopen", Library::Dnn)];

impl Library {
    fn sought(self) -> Sought {
        match self {
            Library::Runtime => Sought {
                name: "the HIP runtime (libamdhip64)",
                files: &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"],
                advice: "install ROCm and its kernel driver, or set ROCM_PATH to where it is",
            },
            Library::Compiler => Sought {
                name: "hiprtc (libhiprtc)",
                files: &["libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so.5", "libhiprtc.so"],
                advice: "install ROCm's hip-runtime, or clang 19 or later with lld; set ROCM_PATH to where ROCm is",
            },
            Library::Blas => Sought {
                name: "hipBLASLt (libhipblaslt)",
                files: &["libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"],
                advice: "matrix products are rocBLAS's or generated kernels without it; install ROCm's hipblaslt",
            },
            Library::RocBlas => Sought {
                name: "rocBLAS (librocblas)",
                files: &[
                    "librocblas.so.5",
                    "librocblas.so.4",
                    "librocblas.so.3",
                    "librocblas.so.0",
                    "librocblas.so",
                ],
                advice: "matrix products are hipBLASLt's or generated kernels without it; install ROCm's rocblas",
            },
            Library::Dnn => Sought {
                name: "MIOpen (libMIOpen)",
                files: &["libMIOpen.so.1", "libMIOpen.so"],
                advice: "convolutions are generated kernels without it; install ROCm's miopen-hip",
            },
        }
    }
}

/// Variables that name installations of ROCm, and the usual one.
pub(crate) const VARIABLES: [&str; 2] = ["ROCM_PATH", "HIP_PATH"];
pub(crate) const USUAL: &str = "/opt/rocm";

/// Folders of the installation that the user names, which come before the system's own.
fn named() -> &'static [PathBuf] {
    static NAMED: OnceLock<Vec<PathBuf>> = OnceLock::new();
    NAMED.get_or_init(|| files::libraries_of(files::installations(&VARIABLES)))
}

/// Folders to look in after the system's own search: the usual installation, and where the Pythons of PATH keep AMD's packages or
/// a PyTorch that brings the libraries. Looked up once.
fn folders() -> &'static [PathBuf] {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let listed = || {
        let mut all = files::libraries_of(vec![PathBuf::from(USUAL)]);
        for packages in files::python_packages() {
            let amd = children(&packages, |name| name.starts_with("_rocm_sdk_") || name == "torch");
            all.extend(amd.into_iter().map(|p| p.join("lib")).filter(|p| p.is_dir()));
        }
        files::once(all)
    };
    FOLDERS.get_or_init(listed)
}

/// Where a library lies, by its file alone: nothing is loaded.
///
/// # Errors
/// [`GpuError::Missing`] with everywhere that was looked.
pub(crate) fn locate(library: Library) -> Result<PathBuf, GpuError> {
    library.sought().locate(named(), folders())
}

/// What identifies the libraries that are there: their proposals depend on them.
pub(crate) fn stamps() -> String {
    let there =
        OFFERING.into_iter().filter_map(|(_, library)| locate(library).or_else(|_| find(library)).ok());
    there.map(|path| format!(" {}", files::stamp(&path))).collect()
}

type Found = Result<(Loaded, PathBuf), GpuError>;

/// Loads a library for the life of the process; it, and where it was found.
///
/// # Errors
/// [`GpuError::Missing`] with everywhere that was looked, and why a file that is there does not load.
pub(crate) fn load(library: Library) -> Result<(&'static Loaded, &'static PathBuf), GpuError> {
    static FOUND: [OnceLock<Found>; 5] = [const { OnceLock::new() }; 5];
    let found = FOUND[library as usize].get_or_init(|| library.sought().load(named(), folders()));
    found.as_ref().map(|(library, path)| (library, path)).map_err(Clone::clone)
}

/// Loads a library and keeps it for the life of the process; where it was found.
///
/// # Errors
/// [`GpuError::Missing`] with everywhere that was looked, and why a file that is there does not load.
pub fn find(library: Library) -> Result<PathBuf, GpuError> {
    load(library).map(|(_, path)| path.clone())
}
