//! The registry: the available backends, their precedence for a name, and the reason why one cannot run.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use plugin_abi::FfxEntry;

use crate::{
    BackendInfo, HostError, LoadedBackend, Manifest, SearchPath, Source, library, nearest, permissions,
};

/// A plugin that is linked into the program. Register one with
/// `inventory::submit! { BuiltinPlugin { name: "cpu", entry: plugin_sdk::entry::<CpuBackend> } }`; it goes through the
/// same table as a library.
pub struct BuiltinPlugin {
    /// Name of the backend, as in its description.
    pub name: &'static str,
    /// Entry of a plugin that keeps the ABI's contract.
    pub entry: FfxEntry,
}
inventory::collect!(BuiltinPlugin);

/// One candidate for a name.
struct Entry {
    name: String,
    source: Source,
    origin: Origin,
    /// The result of loading, kept: libraries are hashed and entered once per registry.
    loaded: OnceLock<Result<LoadedBackend, HostError>>,
}

enum Origin {
    Builtin(FfxEntry),
    Manifest {
        path: PathBuf,
        manifest: Box<Manifest>,
    },
    /// A manifest that cannot be read: listed with its reason, but never selected by name.
    Broken(HostError),
}

/// Backends by name. Nothing is loaded before it is requested; a bad plugin never affects the rest.
pub struct Registry {
    entries: Vec<Entry>,
    shadowed: Vec<(String, Source)>,
}

impl Registry {
    /// Built-ins and the manifests of [`SearchPath::from_env`].
    pub fn from_env() -> Self {
        Self::new(&SearchPath::from_env())
    }

    /// Built-ins and the manifests of a search path. The first of two equal names wins, the other is logged.
    pub fn new(search: &SearchPath) -> Self {
        let mut registry = Self { entries: Vec::new(), shadowed: Vec::new() };
        let builtins = inventory::iter::<BuiltinPlugin>().map(|b| (b.name, Origin::Builtin(b.entry)));
        let mut builtins: Vec<_> = builtins.collect();
        // The linker's order of registrations has no meaning.
        builtins.sort_by_key(|&(name, _)| name);
        for (name, origin) in builtins {
            registry.add(name.to_owned(), Source::BuiltIn, origin);
        }
        for path in search.manifests() {
            registry.add_manifest(path);
        }
        registry
    }

    fn add_manifest(&mut self, path: PathBuf) {
        let source = Source::Manifest(path.clone());
        match Manifest::read(&path) {
            Ok(manifest) => {
                let manifest = Box::new(manifest);
                self.add(manifest.name.clone(), source, Origin::Manifest { path, manifest });
            }
            Err(error) => {
                tracing::warn!(target: "ferroflux::plugin", "{error}");
                let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                self.add(name, source, Origin::Broken(error));
            }
        }
    }

    fn add(&mut self, name: String, source: Source, origin: Origin) {
        let takes_name = !matches!(origin, Origin::Broken(_));
        if let Some(winner) = self.entries.iter().find(|e| takes_name && e.name == name && e.takes_name()) {
            tracing::info!(
                target: "ferroflux::plugin",
                "backend `{name}` of {source} is shadowed by the one of {}", winner.source
            );
            self.shadowed.push((name, source));
            return;
        }
        self.entries.push(Entry { name, source, origin, loaded: OnceLock::new() });
    }

    /// Every backend, in order of precedence, with its devices or the reason why it cannot run here. Loads what was
    /// not yet loaded; never fails.
    pub fn list_backends(&self) -> Vec<BackendInfo> {
        self.entries.iter().map(Entry::info).collect()
    }

    /// Names that lost to an earlier backend of the same name, with the location of each.
    pub fn shadowed(&self) -> &[(String, Source)] {
        &self.shadowed
    }

    /// All names that [`Registry::load`] accepts.
    pub fn names(&self) -> Vec<String> {
        self.entries.iter().filter(|e| e.takes_name()).map(|e| e.name.clone()).collect()
    }

    /// The location of a backend, whether or not it can be loaded; nothing is loaded.
    pub fn source_of(&self, name: &str) -> Option<&Source> {
        self.named(name).map(|e| &e.source)
    }

    /// The candidate for a name; one that cannot be read is returned only where there is no other.
    fn named(&self, name: &str) -> Option<&Entry> {
        let readable = self.entries.iter().find(|e| e.name == name && e.takes_name());
        readable.or_else(|| self.entries.iter().find(|e| e.name == name))
    }

    /// Finds a backend by name, or loads a library by its path; [`Registry::is_path`] decides between the two. `NAME:N` is that backend
    /// for its device of this number.
    ///
    /// # Errors
    /// An unknown name, with similar and available ones; the reason why the plugin does not load; no such device.
    pub fn load(&self, name: &str) -> Result<LoadedBackend, HostError> {
        match numbered(name).filter(|_| self.named(name).is_none() && !Path::new(name).is_file()) {
            Some((plugin, ordinal)) => self.load_plugin(plugin)?.on_device(ordinal),
            None => self.load_plugin(name),
        }
    }

    fn load_plugin(&self, name: &str) -> Result<LoadedBackend, HostError> {
        if self.is_path(name) {
            return load_library(Path::new(name));
        }
        let Some(entry) = self.named(name) else {
            let available = self.names();
            return Err(HostError::UnknownBackend {
                name: name.to_owned(),
                near: nearest(name, available.iter().map(String::as_str)),
                available,
            });
        };
        entry.load()
    }

    /// Whether `text` is the path of a library rather than the name of a backend: it has a separator, it ends as libraries
    /// do (`.so`, `.so.6`, `.dylib`, `.dll`), or it is a file and no backend has that name.
    pub fn is_path(&self, text: &str) -> bool {
        let unknown_file = || self.named(text).is_none() && Path::new(text).is_file();
        text.contains(std::path::is_separator) || is_library_name(text) || unknown_file()
    }
}

impl Entry {
    fn takes_name(&self) -> bool {
        !matches!(self.origin, Origin::Broken(_))
    }

    fn load(&self) -> Result<LoadedBackend, HostError> {
        self.loaded.get_or_init(|| self.load_now()).clone()
    }

    fn load_now(&self) -> Result<LoadedBackend, HostError> {
        let entry = match &self.origin {
            Origin::Builtin(entry) => *entry,
            Origin::Manifest { path, manifest } => library::entry_of(&manifest.verify(path)?)?,
            Origin::Broken(error) => return Err(error.clone()),
        };
        // SAFETY: the registration of a built-in, or the exported symbol of a library, promises the contract of the entry.
        let loaded = unsafe { LoadedBackend::enter(entry, Some(&self.name), self.source.clone()) }?;
        if let Origin::Manifest { manifest, .. } = &self.origin {
            // The loaded library had this checksum, even if the file changes later.
            loaded.plugin.checksum.get_or_init(|| manifest.sha256.clone());
        }
        Ok(loaded)
    }

    fn info(&self) -> BackendInfo {
        match self.load() {
            Ok(backend) => backend.info(),
            Err(error) => BackendInfo {
                unavailable_because: Some(error.to_string()),
                ..BackendInfo::new(self.name.clone(), self.source.clone())
            },
        }
    }
}

/// The parts of `NAME:N`.
fn numbered(text: &str) -> Option<(&str, i32)> {
    let (name, number) = text.rsplit_once(':')?;
    let digits = !name.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    Some((name, number.parse().ok().filter(|_| digits)?))
}

/// Whether a file's name is that of a library, with or without a version after it (`libx.so.6.0`).
fn is_library_name(name: &str) -> bool {
    let unversioned = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let version = name[unversioned.len()..].strip_prefix('.');
    let numbered = version.is_some_and(|v| v.split('.').all(|part| !part.is_empty()));
    let versioned = unversioned.ends_with(".so") && numbered;
    versioned || [".so", ".dylib", ".dll"].iter().any(|end| name.ends_with(end))
}

/// Loads a library without a manifest: the user named it, so only its permissions are checked.
fn load_library(path: &Path) -> Result<LoadedBackend, HostError> {
    permissions::check(path)?;
    let entry = library::entry_of(path)?;
    // SAFETY: the library promises the contract by exporting the symbol.
    unsafe { LoadedBackend::enter(entry, None, Source::Library(path.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_behind_a_name_is_a_device() {
        assert_eq!(numbered("cuda:1"), Some(("cuda", 1)));
        assert_eq!(numbered("./a.so:12"), Some(("./a.so", 12)));
        for none in ["cuda", "cuda:", ":1", "cuda:-1", "cuda:+1", "cuda:x", "cuda:99999999999"] {
            assert_eq!(numbered(none), None, "{none}");
        }
    }

    #[test]
    fn paths_and_names_are_told_apart() {
        let registry = Registry::new(&SearchPath::default());
        for path in ["a.so", "a.so.6", "liba.so.6.0.1", "a.dylib", "a.dll", "./cpu", "/lib/x", "Cargo.toml"] {
            assert!(registry.is_path(path), "{path}");
        }
        for name in ["cpu", "so", "a.so.", "a.sox", "a.so6", "fast-npu", "v1.6", "src"] {
            assert!(!registry.is_path(name), "{name}");
        }
    }
}
