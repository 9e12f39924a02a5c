//! The table of measured times: a file that a run writes and continues, and from which a model can be fitted again.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use gpu_codegen::{Speeds, Target};
use serde::{Deserialize, Serialize};

/// Times on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Table {
    /// The device and its libraries.
    pub(super) device: String,
    /// Its architecture, without the letter of its own features: `sm_90`.
    pub(super) architecture: String,
    pub(super) multiprocessors: u32,
    /// Its highest clock in MHz and bandwidth in 10⁹ bytes a second; 0 where they are not known.
    #[serde(default)]
    pub(super) clock: u32,
    #[serde(default)]
    pub(super) bandwidth: u32,
    pub(super) cases: Vec<TimedCase>,
}

/// The candidates of one case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TimedCase {
    pub(super) case: String,
    /// Fastest first.
    pub(super) times: Vec<Time>,
}

/// The time of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Time {
    pub(super) candidate: String,
    /// Its kernels, calls of a library included.
    pub(super) kernels: usize,
    pub(super) library: bool,
    pub(super) us: f64,
}

impl Time {
    /// Whether modes without a search may choose it: of a library's algorithms they take the first.
    pub(super) fn is_first(&self) -> bool {
        !self.library || self.candidate.ends_with("_0")
    }
}

impl Table {
    /// Reads a table; an empty one where there is no file.
    pub(super) fn open(path: &Path) -> Result<Table> {
        match fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Table::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
            Ok(text) => serde_json::from_str(&text)
                .with_context(|| format!("{}: not a table of times", path.display())),
        }
    }

    /// Writes it, whole or not at all.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string(self)?;
        ir_core::write_whole(path, text.as_bytes()).with_context(|| path.display().to_string())
    }

    pub(super) fn speeds(&self) -> Speeds {
        Speeds { clock: self.clock, bandwidth: self.bandwidth }
    }

    /// The device as kernels are made for it, without a cost model.
    pub(super) fn target(&self, tf32: bool) -> Result<Target> {
        let known = Target::of_architecture(&format!("{}a", self.architecture));
        let known = known.or_else(|| Target::of_architecture(&self.architecture));
        let target =
            known.with_context(|| format!("the architecture `{}` is not known", self.architecture))?;
        ensure!(self.multiprocessors > 0, "the table says nothing of multiprocessors");
        Ok(Target { multiprocessors: self.multiprocessors, tf32: tf32.into(), costs: None, ..target })
    }
}
