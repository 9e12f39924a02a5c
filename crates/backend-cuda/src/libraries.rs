//! Finds the CUDA libraries and loads them for the whole process, so that the bindings find them by name.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gpu_runtime::GpuError;

/// A library of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// `libcuda`, a part of the GPU driver.
    Driver,
    /// `libnvrtc`, the run-time compiler.
    Nvrtc,
    /// `libcublasLt`, matrix products.
    Blas,
    /// `libcudnn`, convolutions.
    Dnn,
}

impl Library {
    fn name(self) -> &'static str {
        match self {
            Library::Driver => "the CUDA driver (libcuda)",
            Library::Nvrtc => "NVRTC (libnvrtc)",
            Library::Blas => "cuBLASLt (libcublasLt)",
            Library::Dnn => "cuDNN (libcudnn)",
        }
    }
    /// File names, newest first.
    fn files(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["libcuda.so.1", "libcuda.so"],
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Library::Blas => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
            Library::Dnn => &["libcudnn.so.9", "libcudnn.so"],
        }
    }
    fn advice(self) -> &'static str {
        match self {
            Library::Driver => "install the NVIDIA driver",
            Library::Nvrtc => {
                "install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, and set CUDA_PATH to its folder"
            }
            Library::Blas => {
                "matrix products are generated kernels without it; install the CUDA toolkit or `pip install \
                 nvidia-cublas`, and set CUDA_PATH to its folder"
            }
            Library::Dnn => {
                "convolutions are generated kernels without it; install cuDNN 9 or `pip install nvidia-cudnn-cu13`, \
                 and set CUDNN_PATH to its folder"
            }
        }
    }
}

/// The folders that are searched after the system's own search path: those named by CUDNN_PATH, CUDA_PATH and CUDA_HOME,
/// the usual prefix, and NVIDIA's packages in the Python installations of PATH. They are determined once, since that reads
/// a hundred folders.
fn folders() -> &'static [PathBuf] {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FOLDERS.get_or_init(listed)
}

fn listed() -> Vec<PathBuf> {
    let given =
        ["CUDNN_PATH", "CUDA_PATH", "CUDA_HOME"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let prefixes = given.chain([PathBuf::from("/usr/local/cuda")]);
    let mut all: Vec<PathBuf> = prefixes.flat_map(|p| [p.join("lib64"), p.join("lib"), p]).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    for bin in std::env::split_paths(&path).filter(|p| p.is_absolute()) {
        let Some(prefix) = bin.parent() else { continue };
        for python in children(&prefix.join("lib"), |name| name.starts_with("python3")) {
            for packages in ["site-packages", "dist-packages"] {
                let nvidia = children(&python.join(packages).join("nvidia"), |_| true);
                all.extend(nvidia.into_iter().map(|p| p.join("lib")).filter(|p| p.is_dir()));
            }
        }
    }
    let mut seen = std::collections::HashSet::new();
    all.retain(|p| seen.insert(p.clone()));
    all
}

/// The entries of a folder in the order of their names; none where there is no folder.
fn children(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.filter(|e| wanted(&e.file_name().to_string_lossy())).map(|e| e.path()).collect();
    found.sort();
    found
}

/// Loads the second library of NVRTC, which it opens by its bare name and the system does not find.
fn companions(library: Library, path: &Path) {
    let Some(folder) = path.parent().filter(|f| library == Library::Nvrtc && !f.as_os_str().is_empty())
    else {
        return;
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so") {
            // SAFETY: the libraries of CUDA only initialize themselves when loaded. Where this one does not load, the
            // compiler reports it.
            if let Ok(loaded) = unsafe { libloading::Library::new(entry.path()) } {
                std::mem::forget(loaded);
            }
        }
    }
}

/// Loads the libraries that cuDNN opens for its first convolution, which takes longest. Where that fails cuDNN loads them
/// itself, or reports why not.
pub(crate) fn load_engines() {
    let _span = tracing::debug_span!(target: "kernel", "load engines of cuDNN").entered();
    let Ok(path) = find(Library::Dnn) else { return };
    for name in ["libcudnn_graph.so.9", "libcudnn_engines_precompiled.so.9"] {
        let part = path.with_file_name(name);
        // SAFETY: the libraries of CUDA only initialize themselves when loaded.
        if let Ok(loaded) = unsafe { libloading::Library::new(part) } {
            std::mem::forget(loaded);
        }
    }
}

/// Loads a library for the life of the process, and returns its path.
///
/// # Errors
/// [`GpuError::Missing`] with all places that were searched.
pub fn find(library: Library) -> Result<PathBuf, GpuError> {
    static FOUND: [OnceLock<Result<PathBuf, GpuError>>; 4] = [const { OnceLock::new() }; 4];
    FOUND[library as usize].get_or_init(|| load(library)).clone()
}

fn load(library: Library) -> Result<PathBuf, GpuError> {
    let _span = tracing::debug_span!(target: "kernel", "load", library = library.name()).entered();
    let names = library.files().iter().map(PathBuf::from);
    let paths = folders().iter().flat_map(|f| library.files().iter().map(move |n| f.join(n)));
    let mut looked = Vec::new();
    for path in names.chain(paths) {
        // SAFETY: the libraries of CUDA only initialize themselves when loaded; files with these names are trusted as the
        // system's loader trusts them.
        match unsafe { libloading::Library::new(&path) } {
            Ok(loaded) => {
                // The library is never unloaded: the driver keeps threads.
                std::mem::forget(loaded);
                companions(library, &path);
                return Ok(path);
            }
            // For a file that exists and does not load the reason is reported.
            Err(e) if path.is_file() => looked.push(format!("{} ({e})", path.display())),
            Err(_) => looked.push(path.display().to_string()),
        }
    }
    Err(missing(library, &looked))
}

fn missing(library: Library, looked: &[String]) -> GpuError {
    GpuError::Missing { library: library.name(), looked: looked.join(", "), advice: library.advice() }
}

/// The path of a library's file, without loading it. The real name of the file ends with the version. The result is
/// cached.
///
/// # Errors
/// [`GpuError::Missing`] with all places that were searched.
pub fn locate(library: Library) -> Result<PathBuf, GpuError> {
    static FOUND: [OnceLock<Result<PathBuf, GpuError>>; 4] = [const { OnceLock::new() }; 4];
    FOUND[library as usize].get_or_init(|| look_for(library)).clone()
}

fn look_for(library: Library) -> Result<PathBuf, GpuError> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let given: Vec<PathBuf> = std::env::split_paths(&path).filter(|p| p.is_absolute()).collect();
    let usual =
        ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64"];
    let all = given.into_iter().chain(usual.map(PathBuf::from)).chain(folders().iter().cloned());
    let mut looked = Vec::new();
    for folder in all.filter(|f| f.is_dir()) {
        for name in library.files() {
            let path = folder.join(name);
            if path.is_file() {
                return Ok(path.canonicalize().unwrap_or(path));
            }
        }
        looked.push(folder.display().to_string());
    }
    Err(missing(library, &looked))
}
