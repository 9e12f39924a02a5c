//! Finds the libraries of CUDA and loads them for the whole process, so that the bindings find them by name.

use std::path::{Path, PathBuf};

use gpu_runtime::GpuError;

/// A library of CUDA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// `libcuda`, a part of the GPU driver.
    Driver,
    /// `libnvrtc`, the run-time compiler.
    Nvrtc,
}

impl Library {
    fn name(self) -> &'static str {
        match self {
            Library::Driver => "the CUDA driver (libcuda)",
            Library::Nvrtc => "NVRTC (libnvrtc)",
        }
    }
    /// File names, newest first.
    fn files(self) -> &'static [&'static str] {
        match self {
            Library::Driver => &["libcuda.so.1", "libcuda.so"],
            Library::Nvrtc => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
        }
    }
    fn advice(self) -> &'static str {
        match self {
            Library::Driver => "install the NVIDIA driver",
            Library::Nvrtc => {
                "install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`, and set CUDA_PATH to its folder"
            }
        }
    }
}

/// Folders to look in, after the system's own search: `CUDA_PATH`, `CUDA_HOME`, the usual prefix.
fn folders() -> Vec<PathBuf> {
    let given = ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let prefixes = given.chain([PathBuf::from("/usr/local/cuda")]);
    prefixes.flat_map(|p| [p.join("lib64"), p.join("lib"), p]).collect()
}

/// NVRTC opens a second library by its bare name, which the system does not find beside it.
fn companions(library: Library, path: &Path) {
    let Some(folder) = path.parent().filter(|f| library == Library::Nvrtc && !f.as_os_str().is_empty())
    else {
        return;
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so") {
            // SAFETY: as for the library itself. Where it does not load, the compiler says so.
            if let Ok(loaded) = unsafe { libloading::Library::new(entry.path()) } {
                std::mem::forget(loaded);
            }
        }
    }
}

/// Loads a library and keeps it for the life of the process; where it was found.
///
/// # Errors
/// [`GpuError::Missing`] with everywhere that was looked.
pub fn find(library: Library) -> Result<PathBuf, GpuError> {
    let names = library.files().iter().map(PathBuf::from);
    let paths = folders().into_iter().flat_map(|f| library.files().iter().map(move |n| f.join(n)));
    let mut looked = Vec::new();
    for path in names.chain(paths) {
        // SAFETY: the libraries of CUDA do nothing but set themselves up when loaded; what has these names is trusted as
        // the system's loader trusts it.
        match unsafe { libloading::Library::new(&path) } {
            Ok(loaded) => {
                // Never unloaded: the driver keeps threads.
                std::mem::forget(loaded);
                companions(library, &path);
                return Ok(path);
            }
            Err(_) => looked.push(path.display().to_string()),
        }
    }
    Err(GpuError::Missing { library: library.name(), looked: looked.join(", "), advice: library.advice() })
}
