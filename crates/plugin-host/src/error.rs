//! Errors between host and plugin. Every variant names the place and says what to do.

use std::path::PathBuf;
use std::sync::Arc;

use plugin_abi::{
    FFX_ERR_DAMAGED, FFX_ERR_INCOMPATIBLE, FFX_ERR_INTERNAL, FFX_ERR_INVALID_ARGUMENT, FFX_ERR_OUT_OF_MEMORY,
    FFX_ERR_PANIC, FFX_ERR_UNAVAILABLE, FFX_ERR_UNSUPPORTED,
};

/// An error that a plugin reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginFailure {
    /// One of the ABI's `FFX_ERR_*` codes, or a code that this host does not know.
    pub code: i32,
    /// Name of the node, kernel or constant concerned.
    pub node: Option<String>,
    /// What happened.
    pub message: String,
}

impl PluginFailure {
    /// Whether the arguments are at fault (an index out of bounds, say), and neither the machine nor the plugin.
    pub fn is_callers(&self) -> bool {
        self.code == FFX_ERR_INVALID_ARGUMENT
    }
    /// The kind in words.
    pub fn kind(&self) -> &'static str {
        match self.code {
            FFX_ERR_INVALID_ARGUMENT => "invalid argument",
            FFX_ERR_UNSUPPORTED => "unsupported",
            FFX_ERR_INCOMPATIBLE => "incompatible",
            FFX_ERR_UNAVAILABLE => "unavailable",
            FFX_ERR_OUT_OF_MEMORY => "out of memory",
            FFX_ERR_PANIC => "panic",
            FFX_ERR_INTERNAL => "internal error",
            FFX_ERR_DAMAGED => "damaged",
            _ => "unknown error code",
        }
    }
}

impl std::fmt::Display for PluginFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.kind(), self.code)?;
        if let Some(node) = &self.node {
            write!(f, " at `{node}`")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// An error of the registry or of a call to a plugin.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// No backend has this name.
    #[error("no backend is named `{name}`{}; available: {}", did_you_mean(.near), listed(.available))]
    UnknownBackend {
        /// The name asked for.
        name: String,
        /// Names that are spelled alike.
        near: Vec<String>,
        /// All names.
        available: Vec<String>,
    },
    /// The backend has no such mode.
    #[error("backend `{backend}` has no mode `{mode}`{}; available: {}", did_you_mean(.near), listed(.available))]
    UnknownMode {
        /// The backend.
        backend: String,
        /// The mode asked for.
        mode: String,
        /// Names that are spelled alike.
        near: Vec<String>,
        /// All modes.
        available: Vec<String>,
    },
    /// The backend has no such option.
    #[error("backend `{backend}` has no option `{option}`{}; available: {}", did_you_mean(.near), listed(.available))]
    UnknownOption {
        /// The backend.
        backend: String,
        /// The option asked for.
        option: String,
        /// Names that are spelled alike.
        near: Vec<String>,
        /// All options.
        available: Vec<String>,
    },
    /// The value of an option is of another kind.
    #[error("option `{option}` of backend `{backend}` is `{value}`, but must be {wanted}")]
    OptionValue {
        /// The backend.
        backend: String,
        /// The option.
        option: String,
        /// The value asked for.
        value: String,
        /// The form that it must have.
        wanted: String,
    },
    /// A manifest cannot be read or is not one.
    #[error("plugin manifest {}: {reason}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file or folder that other users can replace.
    #[error("{} is writable by every user, so nothing is loaded through it; run `chmod o-w {}`", path.display(), path.display())]
    WorldWritable {
        /// The file or folder.
        path: PathBuf,
    },
    /// The library is not the one that its manifest was written for.
    #[error("{}: its SHA-256 is {found}, but its manifest says {expected}; reinstall the plugin", library.display())]
    Checksum {
        /// The library.
        library: PathBuf,
        /// From the manifest.
        expected: String,
        /// Of the file.
        found: String,
    },
    /// Built for another platform.
    #[error("{}: built for `{found}`, this host is `{host}`", manifest.display())]
    Target {
        /// The manifest.
        manifest: PathBuf,
        /// Triple in the manifest.
        found: String,
        /// Triple of this host.
        host: &'static str,
    },
    /// Built for another ABI.
    #[error("{place}: needs plugin ABI {wanted}, this host has {host}; {}", upgrade(.wanted, .host))]
    Abi {
        /// Manifest or library.
        place: String,
        /// `major.minor` that the plugin needs at least.
        wanted: String,
        /// `major.minor` of this host.
        host: String,
    },
    /// The library cannot be loaded.
    #[error("plugin library {}: {reason}", path.display())]
    Library {
        /// The file.
        path: PathBuf,
        /// The message of the loader.
        reason: String,
    },
    /// The plugin's table or description is malformed.
    #[error("backend `{backend}`: {reason}; report it to the plugin's author")]
    Handshake {
        /// The backend.
        backend: String,
        /// What is wrong.
        reason: String,
    },
    /// The table lacks a function without which a plugin cannot work.
    #[error("backend `{backend}`: the plugin's table lacks the required function `{slot}`")]
    MissingSlot {
        /// The backend.
        backend: String,
        /// Name of the slot.
        slot: &'static str,
    },
    /// The program is of a form that the backend does not read.
    #[error("backend `{backend}` reads {}, but the program is {program}", listed(.reads))]
    ProgramVersion {
        /// The backend.
        backend: String,
        /// Forms that it reads.
        reads: Vec<String>,
        /// Form of the program.
        program: String,
    },
    /// The program uses features that are newer than the version that the backend reads.
    #[error("backend `{backend}` reads {reads}: {source}; update the plugin")]
    NoOlderForm {
        /// The backend.
        backend: String,
        /// Newest form that it reads.
        reads: String,
        /// The newer feature of the program.
        source: kernel_ir::NoOlderForm,
    },
    /// None of the backend's devices is usable.
    #[error("backend `{backend}` has no usable device: {reason}")]
    NoDevice {
        /// The backend.
        backend: String,
        /// The reasons of its devices.
        reason: String,
    },
    /// The tensors of a call do not fit.
    #[error("backend `{backend}`: {reason}")]
    Argument {
        /// The backend.
        backend: String,
        /// What is wrong.
        reason: String,
    },
    /// A constant holds an index that an operator of the program does not take.
    #[error("{message}")]
    ConstantRange {
        /// Which constant, which element, and which operator uses it as an index.
        message: String,
    },
    /// The plugin lacks an optional function that this call needs.
    #[error("backend `{backend}` does not offer `{slot}`")]
    NotOffered {
        /// The backend.
        backend: String,
        /// Name of the slot.
        slot: &'static str,
    },
    /// Ranks exchange memory of another kind of device than the programs of a backend use.
    #[error(
        "programs of backend `{backend}` keep tensors in memory that the engine `{engine}` does not exchange: take the engine of that \
         backend, and start the ranks by a launcher"
    )]
    OtherMemory {
        /// The backend.
        backend: String,
        /// The engine.
        engine: String,
    },
    /// The plugin reported an error.
    #[error("backend `{backend}`, {call}: {failure}")]
    Plugin {
        /// The backend.
        backend: String,
        /// The function called.
        call: &'static str,
        /// The plugin's message.
        failure: PluginFailure,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
}

impl HostError {
    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source: Arc::new(source) }
    }
    pub(crate) fn handshake(backend: &str, reason: impl Into<String>) -> Self {
        Self::Handshake { backend: backend.to_owned(), reason: reason.into() }
    }
    pub(crate) fn argument(backend: &str, reason: impl Into<String>) -> Self {
        Self::Argument { backend: backend.to_owned(), reason: reason.into() }
    }
    /// Whether the error says that an artifact is of another plugin, version or device, or damaged: compiling the program
    /// again helps.
    pub fn is_stale_artifact(&self) -> bool {
        matches!(self, Self::Plugin { call: "artifact_load", failure, .. }
            if matches!(failure.code, FFX_ERR_DAMAGED | FFX_ERR_INCOMPATIBLE))
    }
    /// The plugin's message, where the plugin failed.
    pub fn plugin_failure(&self) -> Option<&PluginFailure> {
        match self {
            Self::Plugin { failure, .. } => Some(failure),
            _ => None,
        }
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn did_you_mean(near: &[String]) -> String {
    match near {
        [] => String::new(),
        near => format!(" (did you mean {}?)", near.join(" or ")),
    }
}

fn upgrade(wanted: &str, host: &str) -> String {
    // Versions are `major.minor`, both below 2^16.
    let key = |v: &str| v.split('.').map(|p| p.parse::<u32>().unwrap_or(0)).collect::<Vec<_>>();
    if key(wanted) > key(host) { "update Ferroflux" } else { "update the plugin" }.to_owned()
}
