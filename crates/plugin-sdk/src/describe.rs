//! The description of a backend and of its devices. Plain data; `thunk::description` lays it out for the ABI.

use plugin_abi::{DLDevice, FfxIrVersion};

use crate::OptionSpec;

/// The description of a backend.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Name by which a user picks the backend.
    pub name: String,
    /// Version of the plugin itself.
    pub version: String,
    /// One line for listings.
    pub summary: String,
    /// Program forms that are read.
    pub irs: Vec<FfxIrVersion>,
    /// Compile modes beyond `default`.
    pub modes: Vec<String>,
    /// Options that `compile` takes.
    pub options: Vec<OptionSpec>,
}

impl Description {
    /// A backend that reads nothing yet; see [`Description::reads`].
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            summary: String::new(),
            irs: Vec::new(),
            modes: Vec::new(),
            options: Vec::new(),
        }
    }
    /// Sets the line for listings.
    pub fn summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = summary.into();
        self
    }
    /// Adds a program form. The host sends the one that was added first among those that it can write.
    pub fn reads(mut self, ir: FfxIrVersion) -> Self {
        self.irs.push(ir);
        self
    }
    /// Adds a compile mode.
    pub fn mode(mut self, mode: impl Into<String>) -> Self {
        self.modes.push(mode.into());
        self
    }
    /// Adds an option.
    pub fn option(mut self, option: OptionSpec) -> Self {
        self.options.push(option);
        self
    }
}

/// One device of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// DLPack type and ordinal.
    pub device: DLDevice,
    /// Model name for the user.
    pub name: String,
    /// `None` where usable, else why not and what to do.
    pub unavailable_because: Option<String>,
    /// Memory in bytes; 0 where unknown.
    pub memory_bytes: u64,
    /// Capabilities by name, as text: `cores`, `vector_bits`, …
    pub attributes: Vec<(String, String)>,
}

impl DeviceInfo {
    /// A usable device.
    pub fn new(device: DLDevice, name: impl Into<String>) -> Self {
        Self { device, name: name.into(), unavailable_because: None, memory_bytes: 0, attributes: Vec::new() }
    }
    /// The host processor.
    pub fn cpu(name: impl Into<String>) -> Self {
        Self::new(DLDevice { device_type: plugin_abi::dlpack::DL_CPU, device_id: 0 }, name)
    }
    /// Adds a capability.
    pub fn attribute(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.attributes.push((name.into(), value.to_string()));
        self
    }
    /// Sets the memory size.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory_bytes = bytes;
        self
    }
    /// Sets the reason why the device cannot be used.
    pub fn unavailable(mut self, reason: impl Into<String>) -> Self {
        self.unavailable_because = Some(reason.into());
        self
    }
}
