//! The data of a listing of backends. Plain data, serializable for `--json`.

use std::path::PathBuf;

use plugin_abi::{DLDevice, FfxIrVersion};
use serde::Serialize;

/// One backend of the registry, usable or not.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BackendInfo {
    /// Name by which it is selected.
    pub name: String,
    /// Its own version; empty where it could not be queried.
    pub version: String,
    /// One line; empty where it could not be queried.
    pub summary: String,
    /// Where it comes from.
    pub source: Source,
    /// Its devices, unusable ones included.
    pub devices: Vec<DeviceInfo>,
    /// Compile modes, `default` first.
    pub modes: Vec<String>,
    /// Options of `compile`.
    pub options: Vec<OptionInfo>,
    /// Program forms that it reads.
    #[serde(serialize_with = "as_texts")]
    pub reads: Vec<FfxIrVersion>,
    /// Version of the plugin ABI that it was built with; empty where there is none or it could not be queried.
    pub abi: String,
    /// `None` where it can run here, else why not and what to do.
    pub unavailable_because: Option<String>,
}

impl BackendInfo {
    /// A backend of which only name and location are known.
    pub fn new(name: impl Into<String>, source: Source) -> Self {
        Self {
            name: name.into(),
            version: String::new(),
            summary: String::new(),
            source,
            devices: Vec::new(),
            modes: Vec::new(),
            options: Vec::new(),
            reads: Vec::new(),
            abi: String::new(),
            unavailable_because: None,
        }
    }
}

/// Where a backend comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Linked into this program.
    BuiltIn,
    /// A manifest file.
    Manifest(PathBuf),
    /// A library named by its path.
    Library(PathBuf),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built-in"),
            Self::Manifest(path) | Self::Library(path) => write!(f, "{}", path.display()),
        }
    }
}

/// One device of a backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// DLPack type and ordinal.
    #[serde(serialize_with = "device_pair")]
    pub device: DLDevice,
    /// Model name.
    pub name: String,
    /// Memory in bytes; 0 where unknown.
    pub memory_bytes: u64,
    /// Capabilities by name, as text.
    pub attributes: Vec<(String, String)>,
    /// `None` where usable, else why not.
    pub unavailable_because: Option<String>,
}

impl DeviceInfo {
    /// The value of a capability.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// One option of `compile`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OptionInfo {
    /// Name.
    pub name: String,
    /// Kind of value.
    pub kind: OptionKind,
    /// The default value.
    pub default: String,
    /// One line.
    pub help: String,
}

/// Kind of an option's value; values are given as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionKind {
    /// `true` or `false`.
    Bool,
    /// An integer.
    Int,
    /// A number.
    Float,
    /// Any text.
    Text,
    /// One of these.
    Choice(Vec<String>),
    /// A kind that this host does not know; the plugin checks the value.
    Unknown(u32),
}

impl OptionKind {
    /// The required form of a value, where `value` does not have it.
    pub(crate) fn expected_form(&self, value: &str) -> Option<String> {
        match self {
            Self::Bool => value.parse::<bool>().is_err().then(|| "`true` or `false`".to_owned()),
            Self::Int => value.parse::<i64>().is_err().then(|| "an integer".to_owned()),
            Self::Float => value.parse::<f64>().is_err().then(|| "a number".to_owned()),
            Self::Text | Self::Unknown(_) => None,
            Self::Choice(all) => {
                (!all.iter().any(|c| c == value)).then(|| format!("one of {}", all.join(", ")))
            }
        }
    }
}

/// A part of a program that a backend does not support.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// Name of the node or kernel.
    pub node: String,
    /// Why, and what to do.
    pub reason: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}`: {}", self.node, self.reason)
    }
}

/// Bytes on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryEstimate {
    /// Constants as kept after packing, beyond the borrowed originals.
    pub constant_bytes: u64,
    /// Peak of temporaries and outputs of one run.
    pub peak_bytes: u64,
    /// Machine code and tables.
    pub code_bytes: u64,
}

fn as_texts<S: serde::Serializer>(irs: &[FfxIrVersion], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(irs.iter().map(ToString::to_string))
}

fn device_pair<S: serde::Serializer>(device: &DLDevice, serializer: S) -> Result<S::Ok, S::Error> {
    (device.device_type, device.device_id).serialize(serializer)
}
