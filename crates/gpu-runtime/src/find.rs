//! Finds the libraries of vendors: the one that the process has loaded already, then by name through the system's loader, then in
//! folders that the vendor names. Nothing of a vendor is linked, so a machine without it is told where it was looked.
//!
//! Not here: names and folders, which are the vendors'.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;

use crate::GpuError;

/// A library of a vendor.
#[derive(Clone, Copy, Debug)]
pub struct Sought {
    /// What it is, for people.
    pub name: &'static str,
    /// File names, newest first.
    pub files: &'static [&'static str],
    /// What to do where it is missing.
    pub advice: &'static str,
}

impl Sought {
    /// Loads it; where it was found: in this process, in a folder that the user names, by the system's own search, or in a folder
    /// that is usual. Another part of the process may have loaded an installation of its own, and parts of two do not work
    /// together.
    ///
    /// # Errors
    /// [`GpuError::Missing`] with everywhere that was looked, and why a file that is there does not load.
    pub fn load(&self, named: &[PathBuf], folders: &[PathBuf]) -> Result<(Library, PathBuf), GpuError> {
        let _span = tracing::debug_span!(target: "kernel", "load", library = self.name).entered();
        let names = self.files.iter().map(PathBuf::from);
        let within = |folders| -> Vec<PathBuf> { self.within(folders).collect() };
        let mut looked = Vec::new();
        let own = self.mapped();
        for path in own.into_iter().chain(within(named)).chain(names).chain(within(folders)) {
            // SAFETY: libraries of vendors do nothing but set themselves up when loaded; what has these names is trusted as the
            // system's loader trusts it.
            match unsafe { Library::new(&path) } {
                Ok(library) => return Ok((library, path)),
                // A file that is there and does not load is worth its reason.
                Err(e) if path.is_file() || !is_absence(&e, &path) => {
                    looked.push(format!("{} ({})", path.display(), reason(&e)));
                }
                Err(_) => looked.push(path.display().to_string()),
            }
        }
        Err(self.missing(&looked))
    }

    fn within<'a>(&'a self, folders: &'a [PathBuf]) -> impl Iterator<Item = PathBuf> + 'a {
        folders.iter().flat_map(|f| self.files.iter().map(move |n| f.join(n)))
    }

    /// The file of it that this process has loaded, whoever did. `None` where the system does not tell.
    pub fn mapped(&self) -> Option<PathBuf> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        self.files.iter().find_map(|name| mapped_in(&maps, name))
    }

    /// The error of a library that is not there.
    pub fn missing(&self, looked: &[String]) -> GpuError {
        GpuError::Missing { library: self.name, looked: looked.join(", "), advice: self.advice }
    }

    /// Where it lies, by its file alone: nothing is loaded. Its real name ends with the version.
    ///
    /// # Errors
    /// [`GpuError::Missing`] with everywhere that was looked.
    pub fn locate(&self, named: &[PathBuf], folders: &[PathBuf]) -> Result<PathBuf, GpuError> {
        if let Some(own) = self.mapped() {
            return Ok(own);
        }
        let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let given: Vec<PathBuf> = std::env::split_paths(&path).filter(|p| p.is_absolute()).collect();
        let usual =
            ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/lib64"];
        let all =
            named.iter().cloned().chain(given).chain(usual.map(PathBuf::from)).chain(folders.iter().cloned());
        let mut looked = Vec::new();
        for folder in all.filter(|f| f.is_dir()) {
            for name in self.files {
                let path = folder.join(name);
                if path.is_file() {
                    return Ok(path.canonicalize().unwrap_or(path));
                }
            }
            looked.push(folder.display().to_string());
        }
        Err(self.missing(&looked))
    }
}

/// The first file among a process's mappings whose name begins so. A name that goes on with a digit or a letter is another's.
fn mapped_in(maps: &str, name: &str) -> Option<PathBuf> {
    let files = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let named = |file: &&Path| {
        let file = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        file.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    files.into_iter().find(named).map(Path::to_owned)
}

/// What the system's loader says.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Whether an error says that this very file is not there; it may also be a file that the library needs.
fn is_absence(error: &libloading::Error, path: &Path) -> bool {
    reason(error).contains(&format!("{}: cannot open shared object file", path.display()))
}

/// What identifies a file beside its name: its size and when it was written.
pub fn stamp(path: &Path) -> String {
    let file = std::fs::metadata(path).ok();
    let changed = file.as_ref().and_then(|f| f.modified().ok());
    let since = changed.and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    let bytes = file.map_or(0, |f| f.len());
    // A distribution's file name ends with the version; size and time tell apart what is installed under one name.
    format!("{} {bytes} {}", path.display(), since.map_or(0, |d| d.as_secs()))
}

/// A library that was started; one that is missing or fails offers no candidates, and a warning gives the reason.
pub fn started<T>(name: &str, library: Result<T, GpuError>) -> Option<Arc<T>> {
    match library {
        Ok(library) => Some(Arc::new(library)),
        Err(e) => {
            tracing::warn!(target: "kernel", "{name} is not used: {e}");
            None
        }
    }
}

/// The installations that variables of the environment name.
pub fn installations(variables: &[&str]) -> Vec<PathBuf> {
    variables.iter().filter_map(std::env::var_os).filter(|p| !p.is_empty()).map(PathBuf::from).collect()
}

/// The folders of installations in which libraries lie.
pub fn libraries_of(installations: Vec<PathBuf>) -> Vec<PathBuf> {
    installations.into_iter().flat_map(|p| [p.join("lib64"), p.join("lib"), p]).collect()
}

/// Where the Pythons of PATH keep packages. Reads a hundred folders.
pub fn python_packages() -> Vec<PathBuf> {
    let mut all = Vec::new();
    let path = std::env::var_os("PATH").unwrap_or_default();
    for bin in std::env::split_paths(&path).filter(|p| p.is_absolute()) {
        let Some(prefix) = bin.parent() else { continue };
        for python in children(&prefix.join("lib"), |name| name.starts_with("python3")) {
            all.extend(["site-packages", "dist-packages"].map(|packages| python.join(packages)));
        }
    }
    all
}

/// Entries of a folder by name, in order; none where there is no folder.
pub fn children(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.filter(|e| wanted(&e.file_name().to_string_lossy())).map(|e| e.path()).collect();
    found.sort();
    found
}

/// The same without what stands there again.
pub fn once(folders: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut seen = std::collections::HashSet::new();
    folders.into_iter().filter(|p| seen.insert(p.clone())).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const NOWHERE: Sought =
        Sought { name: "nothing", files: &["libferroflux-nothing.so.1"], advice: "install it" };

    #[test]
    fn what_is_missing_says_where_it_was_looked() {
        let error = NOWHERE.load(&[], &[PathBuf::from("/nowhere")]).err().unwrap().to_string();
        assert_eq!(
            error,
            "nothing is not there: looked for libferroflux-nothing.so.1, /nowhere/libferroflux-nothing.so.1; \
             install it"
        );
    }

    #[test]
    fn the_file_that_a_process_has_loaded() {
        let maps = "7f00-7f01 r--p 00000000 fe:00 12 /opt/packages/libcudnn_graph.so.9\n\
                    7f01-7f02 r--p 00000000 fe:00 13 /opt/packages/libcudnn.so.9.14.0\n\
                    7f02-7f03 rw-p 00000000 00:00 0\n\
                    7f03-7f04 r-xp 00000000 fe:00 14 /usr/lib/libcudnn.so.9.1.0\n";
        let found = |name| mapped_in(maps, name).map(|p| p.display().to_string());
        assert_eq!(found("libcudnn.so.9").as_deref(), Some("/opt/packages/libcudnn.so.9.14.0"));
        assert_eq!(found("libcudnn.so").as_deref(), Some("/opt/packages/libcudnn.so.9.14.0"));
        assert_eq!(found("libcudnn.so.9.1").as_deref(), Some("/usr/lib/libcudnn.so.9.1.0"));
        assert_eq!(found("libcudnn.so.8"), None);
    }

    #[test]
    fn a_loaded_library_comes_before_others() {
        // Every program of this system has its C library loaded.
        let sought = Sought { name: "the C library", files: &["libc.so.6"], advice: "" };
        let Some(own) = sought.mapped() else { return };
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libc.so.6"), "no library").unwrap();
        let named = [folder.path().to_owned()];
        assert_eq!(sought.locate(&named, &[]).unwrap(), own);
        assert_eq!(sought.load(&named, &[]).unwrap().1, own);
    }

    #[test]
    fn a_broken_file_gives_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(NOWHERE.files[0]);
        std::fs::write(&file, "no library").unwrap();
        let error = NOWHERE.load(&[], &[folder.path().to_owned()]).err().unwrap().to_string();
        assert!(error.contains("file too short") || error.contains("invalid ELF header"), "{error}");
        assert_eq!(NOWHERE.locate(&[], &[folder.path().to_owned()]).unwrap(), file.canonicalize().unwrap());
    }
}
