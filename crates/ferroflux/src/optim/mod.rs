//! Optimizers, compiled with the step: PyTorch's single-tensor arithmetic as graph code. Parameters and the optimizer's own
//! tensors are state of the step; values that change from step to step (learning rate, bias corrections) are inputs of a
//! call, so a schedule never recompiles.
//!
//! Not here: running a step ([`crate::train`]); schedules are plain functions of the step number ([`Schedule`]).

mod adam;
mod math;
mod schedule;
mod sgd;

use fx_ir::ValueId;
use prims::OpError;

pub use adam::Adam;
pub(crate) use math::Math;
pub use schedule::{Plateau, Schedule};
pub use sgd::Sgd;

/// An optimizer and its settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Optimizer {
    /// `torch.optim.SGD`.
    Sgd(Sgd),
    /// `torch.optim.Adam` and, with decoupled weight decay, `torch.optim.AdamW`.
    Adam(Adam),
}

/// A number that the graph of an update reads and every call supplies, by name.
pub(crate) type Number = (&'static str, f64);

impl Optimizer {
    /// Checks the settings, as PyTorch's constructors do.
    ///
    /// # Errors
    /// The setting that is out of range.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Optimizer::Sgd(sgd) => sgd.check(),
            Optimizer::Adam(adam) => adam.check(),
        }
    }
    /// PyTorch's name.
    pub fn name(&self) -> &'static str {
        match self {
            Optimizer::Sgd(_) => "sgd",
            Optimizer::Adam(adam) if adam.decoupled => "adamw",
            Optimizer::Adam(_) => "adam",
        }
    }
    /// Names of the tensors that the optimizer keeps for each parameter, of the parameter's type and zero at first.
    pub fn slots(&self) -> &'static [&'static str] {
        match self {
            Optimizer::Sgd(sgd) => sgd.slots(),
            Optimizer::Adam(adam) => adam.slots(),
        }
    }
    /// The numbers of step `step` (the first is 1), in a fixed order.
    pub(crate) fn numbers(&self, lr: f64, step: u64) -> Vec<Number> {
        match self {
            Optimizer::Sgd(sgd) => sgd.numbers(lr, step),
            Optimizer::Adam(adam) => adam.numbers(lr, step),
        }
    }
    /// Appends the update of one parameter: its new value, then the new values of its slots.
    pub(crate) fn update(
        &self,
        m: &mut Math<'_, '_>,
        parameter: ValueId,
        gradient: ValueId,
        slots: &[ValueId],
    ) -> Result<Vec<ValueId>, OpError> {
        match self {
            Optimizer::Sgd(sgd) => sgd.update(m, parameter, gradient, slots),
            Optimizer::Adam(adam) => adam.update(m, parameter, gradient, slots),
        }
    }
}

/// A setting that must be a number of at least `least`.
fn at_least(name: &str, value: f64, least: f64) -> Result<(), String> {
    if value >= least && value.is_finite() {
        Ok(())
    } else {
        Err(format!("{name} is {value}, it must be at least {least}"))
    }
}
