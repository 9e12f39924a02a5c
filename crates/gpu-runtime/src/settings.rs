//! What the caller of a compilation decides.

use gpu_codegen::Target;
use plugin_sdk::Mode;

/// Settings of one compilation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The mode.
    pub mode: Mode,
    /// Whether float32 products may be computed in tf32; the driver's own target decides where `None`.
    pub tf32: Option<bool>,
    /// Whether sums must not depend on the order in which blocks end; as above.
    pub deterministic: Option<bool>,
    /// Calls of which the time of each step is measured (see [`crate::Compiled::profile`]); those calls are slower.
    pub profile: u32,
}

impl Settings {
    /// What kernels are made for, of what the device is.
    pub fn target(&self, device: Target) -> Target {
        Target {
            tf32: self.tf32.unwrap_or(device.tf32),
            deterministic: self.deterministic.unwrap_or(device.deterministic),
            ..device
        }
    }
}
