//! What a backend says of itself and of its devices. Plain data; `thunk::description` lays it out for the ABI.

use plugin_abi::{DLDevice, FFX_LEVEL_FX_IR, FFX_LEVEL_KERNEL_IR};

use crate::OptionSpec;

/// What a backend is.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Name by which a user picks the backend.
    pub name: String,
    /// Version of the plugin itself.
    pub version: String,
    /// One line for listings.
    pub summary: String,
    /// Program forms that are read.
    pub irs: Vec<IrVersion>,
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
    /// Adds a program form.
    pub fn reads(mut self, ir: IrVersion) -> Self {
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

/// Level of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Level {
    /// A whole fx graph.
    FxIr,
    /// Fused loop kernels and their plan.
    KernelIr,
}

impl Level {
    /// The ABI's number.
    pub const fn code(self) -> u32 {
        match self {
            Self::FxIr => FFX_LEVEL_FX_IR,
            Self::KernelIr => FFX_LEVEL_KERNEL_IR,
        }
    }
    /// The level with the ABI's number.
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            FFX_LEVEL_FX_IR => Some(Self::FxIr),
            FFX_LEVEL_KERNEL_IR => Some(Self::KernelIr),
            _ => None,
        }
    }
    /// Name in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FxIr => "fx-ir",
            Self::KernelIr => "kernel-ir",
        }
    }
}

/// A program form: every minor up to `minor` of `major` is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IrVersion {
    /// Level.
    pub level: Level,
    /// Major version.
    pub major: u16,
    /// Newest minor.
    pub minor: u16,
}

impl IrVersion {
    /// A version of fx-ir.
    pub const fn fx_ir(major: u16, minor: u16) -> Self {
        Self { level: Level::FxIr, major, minor }
    }
    /// A version of kernel-ir.
    pub const fn kernel_ir(major: u16, minor: u16) -> Self {
        Self { level: Level::KernelIr, major, minor }
    }
    /// Whether a reader of `self` reads a program of `other`.
    pub fn reads(self, other: Self) -> bool {
        self.level == other.level && self.major == other.major && self.minor >= other.minor
    }
}

impl std::fmt::Display for IrVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}.{}", self.level.name(), self.major, self.minor)
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
    /// Says why the device cannot be used.
    pub fn unavailable(mut self, reason: impl Into<String>) -> Self {
        self.unavailable_because = Some(reason.into());
        self
    }
}
