//! The device of a tensor. A name and an index only: nothing here talks to a device.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The kind of a device, PyTorch's names. A plugin's own kind is `Other`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// Host memory.
    Cpu,
    /// An NVIDIA GPU (PyTorch also calls AMD GPUs `cuda`; a backend decides).
    Cuda,
    /// No storage at all.
    Meta,
    /// Any other name.
    Other(Box<str>),
}

/// A device kind and, for several of one kind, its number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Device {
    /// Kind of device.
    pub kind: DeviceKind,
    /// Number within the kind; `None` is the current one.
    pub index: Option<u32>,
}

impl Device {
    /// The host.
    pub const CPU: Device = Device { kind: DeviceKind::Cpu, index: None };
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Meta => "meta",
            DeviceKind::Other(name) => name,
        };
        match self.index {
            Some(index) => write!(f, "{kind}:{index}"),
            None => f.write_str(kind),
        }
    }
}

impl FromStr for Device {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, index) = match text.split_once(':') {
            Some((kind, index)) => {
                let index = index
                    .parse()
                    .map_err(|_| format!("`{text}` is not a device: write `cpu` or `cuda:0`"))?;
                (kind, Some(index))
            }
            None => (text, None),
        };
        if kind.is_empty() || !kind.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') {
            return Err(format!("`{text}` is not a device: write `cpu` or `cuda:0`"));
        }
        let kind = match kind {
            "cpu" => DeviceKind::Cpu,
            "cuda" => DeviceKind::Cuda,
            "meta" => DeviceKind::Meta,
            other => DeviceKind::Other(other.into()),
        };
        Ok(Device { kind, index })
    }
}

impl From<Device> for String {
    fn from(device: Device) -> String {
        device.to_string()
    }
}

impl TryFrom<String> for Device {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
