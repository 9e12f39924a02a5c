//! Mixed precision as a program was captured in it: the regions of `torch.autocast(device, dtype, enabled)` around a node.
//!
//! A region has a meaning on its own kind of device alone. A program that was captured on another kind shows nothing of it in
//! its dtypes, so the region is recorded beside them. Not here: what operators do in a region, which is the column
//! `autocast` of their entries and a pass of `aot-autograd`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::DType;

/// The kind of device whose lists of operators apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AutocastDevice {
    /// `torch.autocast("cpu")`.
    Cpu,
    /// `torch.autocast("cuda")`, also for ROCm.
    Cuda,
}

impl AutocastDevice {
    /// Every kind, with PyTorch's name for it.
    pub const ALL: [(AutocastDevice, &str); 2] =
        [(AutocastDevice::Cpu, "cpu"), (AutocastDevice::Cuda, "cuda")];

    /// The kind of PyTorch's name.
    pub fn of_name(name: &str) -> Option<AutocastDevice> {
        AutocastDevice::ALL.into_iter().find(|(_, n)| *n == name).map(|(device, _)| device)
    }
}

/// What the innermost region for a device says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Precision {
    /// `enabled=False`: operators compute in the dtypes of their operands.
    Full,
    /// Operators of the device's lists compute in this dtype.
    Lower(DType),
}

/// The innermost region around a node for each kind of device; none where no region is.
///
/// The text form is `cuda bf16, cpu full`, empty without a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Precisions {
    /// The region for CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Precision>,
    /// The region for GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<Precision>,
}

impl Precisions {
    /// Whether no region is recorded.
    pub fn is_empty(&self) -> bool {
        *self == Precisions::default()
    }

    /// The region for a kind of device.
    pub fn on(&self, device: AutocastDevice) -> Option<Precision> {
        match device {
            AutocastDevice::Cpu => self.cpu,
            AutocastDevice::Cuda => self.cuda,
        }
    }

    /// The same within one more region.
    pub fn within(mut self, device: AutocastDevice, region: Precision) -> Precisions {
        match device {
            AutocastDevice::Cpu => self.cpu = Some(region),
            AutocastDevice::Cuda => self.cuda = Some(region),
        }
        self
    }
}

impl fmt::Display for Precisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sep = "";
        for (device, name) in AutocastDevice::ALL {
            match self.on(device) {
                None => continue,
                Some(Precision::Full) => write!(f, "{sep}{name} full")?,
                Some(Precision::Lower(dtype)) => write!(f, "{sep}{name} {dtype}")?,
            }
            sep = ", ";
        }
        Ok(())
    }
}

impl FromStr for Precisions {
    type Err = String;

    fn from_str(text: &str) -> Result<Precisions, String> {
        let mut all = Precisions::default();
        for region in text.split(", ").filter(|r| !r.is_empty()) {
            let wrong =
                || format!("a region of mixed precision such as `cuda bf16` or `cpu full`, not `{region}`");
            let (device, what) = region.split_once(' ').ok_or_else(wrong)?;
            let device = AutocastDevice::of_name(device).ok_or_else(wrong)?;
            let region = match what {
                "full" => Precision::Full,
                dtype => Precision::Lower(dtype.parse().map_err(|_| wrong())?),
            };
            all = all.within(device, region);
        }
        Ok(all)
    }
}
