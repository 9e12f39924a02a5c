//! The compile modes that host and plugins share names for. A plugin may describe others; across the boundary a mode is its
//! name.

extern crate alloc;

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// The modes of `torch.compile`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Good code, fast compilation: launches one by one, the implementation of each step chosen by rule.
    #[default]
    Default,
    /// Less overhead per call: calls are recorded as device graphs, memory is bound in advance.
    ReduceOverhead,
    /// Candidate implementations of a step are timed on the device; calls are recorded.
    MaxAutotune,
    /// As `MaxAutotune`, without device graphs.
    MaxAutotuneNoCudagraphs,
}

impl Mode {
    /// Every mode, the default one first.
    pub const ALL: [Mode; 4] =
        [Mode::Default, Mode::ReduceOverhead, Mode::MaxAutotune, Mode::MaxAutotuneNoCudagraphs];
    /// The modes that a plugin has to describe: all but the default one, which every plugin has.
    pub const OTHERS: [Mode; 3] = [Mode::ReduceOverhead, Mode::MaxAutotune, Mode::MaxAutotuneNoCudagraphs];

    /// PyTorch's name of the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Default => "default",
            Mode::ReduceOverhead => "reduce-overhead",
            Mode::MaxAutotune => "max-autotune",
            Mode::MaxAutotuneNoCudagraphs => "max-autotune-no-cudagraphs",
        }
    }
    /// Whether calls are recorded as device graphs.
    pub const fn records(self) -> bool {
        matches!(self, Mode::ReduceOverhead | Mode::MaxAutotune)
    }
    /// Whether candidate implementations of a step are timed.
    pub const fn searches(self) -> bool {
        matches!(self, Mode::MaxAutotune | Mode::MaxAutotuneNoCudagraphs)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;
    fn from_str(name: &str) -> Result<Mode, UnknownMode> {
        Mode::ALL.into_iter().find(|m| m.name() == name).ok_or_else(|| UnknownMode(name.into()))
    }
}

/// A name that no mode has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMode(pub String);

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no mode `{}`: one of {}", self.0, Mode::Default)?;
        Mode::OTHERS.iter().try_for_each(|mode| write!(f, ", {mode}"))
    }
}

impl core::error::Error for UnknownMode {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_read_back() {
        for mode in Mode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!(
            "fast".parse::<Mode>().unwrap_err().to_string(),
            "there is no mode `fast`: one of default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs"
        );
    }
}
