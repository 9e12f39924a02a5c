//! The settings of a compilation.

use gpu_codegen::{Costs, Target, Tf32};
use plugin_sdk::Mode;

/// The cost model by which candidates are chosen without a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CostModel {
    /// That of the device's architecture, where it has one.
    #[default]
    BuiltIn,
    /// None: the rules choose.
    Off,
    /// Another one.
    Given(Costs),
}

/// Settings of one compilation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The mode.
    pub mode: Mode,
    /// What may be computed in tf32; `None` leaves it to the driver's target.
    pub tf32: Option<Tf32>,
    /// Whether sums must not depend on the order in which blocks end; `None` leaves it to the driver's target.
    pub deterministic: Option<bool>,
    /// Number of calls whose steps are timed (see [`crate::Compiled::profile`]); those calls are slower.
    pub profile: u32,
    /// The cost model.
    pub costs: CostModel,
}

impl Settings {
    /// The target of code generation, from that of the device.
    pub fn target(&self, device: Target) -> Target {
        Target {
            tf32: self.tf32.unwrap_or(device.tf32),
            deterministic: self.deterministic.unwrap_or(device.deterministic),
            costs: match &self.costs {
                CostModel::BuiltIn => device.costs,
                CostModel::Off => None,
                CostModel::Given(costs) => Some(costs.clone()),
            },
            ..device
        }
    }
}
