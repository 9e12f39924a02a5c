//! What the caller of a compilation decides.

use gpu_codegen::Target;

/// How much is done ahead of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Launches one by one, the best way of each step by rule.
    #[default]
    Default,
    /// Calls are recorded as device graphs.
    ReduceOverhead,
    /// Ways are timed on the device, calls are recorded.
    MaxAutotune,
    /// Ways are timed on the device.
    MaxAutotuneNoCudagraphs,
}

impl Mode {
    /// The modes beside the default one, by PyTorch's names.
    pub const OTHERS: [(&'static str, Mode); 3] = [
        ("reduce-overhead", Mode::ReduceOverhead),
        ("max-autotune", Mode::MaxAutotune),
        ("max-autotune-no-cudagraphs", Mode::MaxAutotuneNoCudagraphs),
    ];

    /// The mode of that name; the default one where there is none.
    pub fn named(name: &str) -> Mode {
        Mode::OTHERS.iter().find(|(n, _)| *n == name).map_or(Mode::Default, |(_, mode)| *mode)
    }
    /// Whether calls are recorded.
    pub fn records(self) -> bool {
        matches!(self, Mode::ReduceOverhead | Mode::MaxAutotune)
    }
    /// Whether ways are timed.
    pub fn searches(self) -> bool {
        matches!(self, Mode::MaxAutotune | Mode::MaxAutotuneNoCudagraphs)
    }
}

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
