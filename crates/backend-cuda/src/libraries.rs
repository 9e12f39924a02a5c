//! Finds the CUDA libraries and loads them for the whole process. One that the process has loaded already, such as PyTorch's own
//! cuDNN, is used before any other.
//!
//! Not here: the functions (`api`; those of the driver are `cudarc`'s, which finds it by its name once it is loaded).

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gpu_runtime::GpuError;
use gpu_runtime::find::{self as files, Sought, children};

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
    /// `libnccl`, exchanges between ranks.
    Nccl,
}

impl Library {
    fn name(self) -> &'static str {
        match self {
            Library::Driver => "the CUDA driver (libcuda)",
            Library::Nvrtc => "NVRTC (libnvrtc)",
            Library::Blas => "cuBLASLt (libcublasLt)",
            Library::Dnn => "cuDNN (libcudnn)",
            Library::Nccl => "NCCL (libnccl)",
        }
    }
    /// File names, newest first.
    fn files(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["libcuda.so.1", "libcuda.so"],
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
            Library::Blas => &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
            Library::Dnn => &["libcudnn.so.9", "libcudnn.so"],
            Library::Nccl => &["libnccl.so.2", "libnccl.so"],
        }
    }
    fn sought(self) -> Sought {
        Sought { name: self.name(), files: self.files(), advice: self.advice() }
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
            Library::Nccl => "install NCCL 2.18 or later or `pip install nvidia-nccl-cu13`",
        }
    }
}

/// The folders that are searched after the system's own search path: those named by CUDNN_PATH, CUDA_PATH and CUDA_HOME,
/// the usual prefix, and NVIDIA's packages in the Python installations of PATH. They are determined once, since that reads
/// a hundred folders.
fn folders() -> &'static [PathBuf] {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    let listed = || {
        let mut prefixes = files::installations(&["CUDNN_PATH", "CUDA_PATH", "CUDA_HOME"]);
        prefixes.push(PathBuf::from("/usr/local/cuda"));
        let mut all = files::libraries_of(prefixes);
        for packages in files::python_packages() {
            let nvidia = children(&packages.join("nvidia"), |_| true);
            all.extend(nvidia.into_iter().map(|p| p.join("lib")).filter(|p| p.is_dir()));
        }
        files::once(all)
    };
    FOLDERS.get_or_init(listed)
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
    if find(Library::Dnn).is_err() {
        return;
    }
    let Some(whole) = Library::Dnn.sought().mapped() else { return };
    for name in ["libcudnn_graph.so.9", "libcudnn_engines_precompiled.so.9"] {
        let part = whole.with_file_name(name);
        // SAFETY: the libraries of CUDA only initialize themselves when loaded.
        if let Ok(loaded) = unsafe { libloading::Library::new(part) } {
            std::mem::forget(loaded);
        }
    }
}

/// A library that stays loaded, and its path.
type Opened = (&'static libloading::Library, PathBuf);

/// Loads a library for the life of the process, and returns its path.
///
/// # Errors
/// [`GpuError::Missing`] with all places that were searched.
pub fn find(library: Library) -> Result<PathBuf, GpuError> {
    opened(library).map(|(_, path)| path)
}

/// Whether the process has a library loaded already, which is then the one that is found.
pub(crate) fn is_mapped(library: Library) -> bool {
    library.sought().mapped().is_some()
}

/// As [`find`], with the library.
pub(crate) fn opened(library: Library) -> Result<Opened, GpuError> {
    static FOUND: [OnceLock<Result<Opened, GpuError>>; 5] = [const { OnceLock::new() }; 5];
    FOUND[library as usize].get_or_init(|| load(library)).clone()
}

fn load(library: Library) -> Result<Opened, GpuError> {
    let (loaded, path) = library.sought().load(&[], folders())?;
    companions(library, &path);
    // Never unloaded: the driver keeps threads.
    Ok((Box::leak(Box::new(loaded)), path))
}

/// The path of a library's file, without loading it. The real name of the file ends with the version. The result is
/// cached.
///
/// # Errors
/// [`GpuError::Missing`] with all places that were searched.
pub fn locate(library: Library) -> Result<PathBuf, GpuError> {
    static FOUND: [OnceLock<Result<PathBuf, GpuError>>; 5] = [const { OnceLock::new() }; 5];
    FOUND[library as usize].get_or_init(|| library.sought().locate(&[], folders())).clone()
}
