//! Stochastic gradient descent, as `torch.optim.sgd._single_tensor_sgd` computes it.

use fx_ir::ValueId;
use prims::OpError;

use super::{Math, Number, at_least};

/// `torch.optim.SGD`. The learning rate is an argument of each step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sgd {
    /// Factor of the running gradient; 0 keeps none.
    pub momentum: f64,
    /// Weight taken from a new gradient, from the second step on.
    pub dampening: f64,
    /// Factor of the L2 penalty.
    pub weight_decay: f64,
    /// Nesterov's momentum; requires momentum and no dampening.
    pub nesterov: bool,
    /// Climbs instead of descending.
    pub maximize: bool,
}

impl Sgd {
    pub(super) fn check(&self) -> Result<(), String> {
        at_least("momentum", self.momentum, 0.0)?;
        at_least("weight_decay", self.weight_decay, 0.0)?;
        if !self.dampening.is_finite() {
            return Err(format!("dampening is {}, it must be a finite number", self.dampening));
        }
        if self.nesterov && (self.momentum <= 0.0 || self.dampening != 0.0) {
            return Err("nesterov needs a momentum above 0 and a dampening of 0".into());
        }
        Ok(())
    }

    pub(super) fn slots(&self) -> &'static [&'static str] {
        if self.momentum == 0.0 { &[] } else { &["momentum_buffer"] }
    }

    pub(super) fn numbers(&self, lr: f64, step: u64) -> Vec<Number> {
        let mut list = vec![("neg_lr", -lr)];
        // The first gradient is used unscaled: the buffer does not exist yet.
        if self.momentum != 0.0 && self.dampening != 0.0 {
            list.push(("gradient_weight", if step <= 1 { 1.0 } else { 1.0 - self.dampening }));
        }
        list
    }

    pub(super) fn update(
        &self,
        m: &mut Math<'_, '_>,
        parameter: ValueId,
        gradient: ValueId,
        slots: &[ValueId],
    ) -> Result<Vec<ValueId>, OpError> {
        let p = m.load(parameter)?;
        let mut g = m.load(gradient)?;
        if self.maximize {
            g = m.b.neg(g)?;
        }
        if self.weight_decay != 0.0 {
            g = m.add_scaled(g, self.weight_decay, p)?;
        }
        let mut new = Vec::new();
        if let [buffer] = slots {
            let buffer = m.load(*buffer)?;
            // Zero at first, so that the first running gradient is the gradient.
            let decayed = m.scale(buffer, self.momentum)?;
            let buffer = if self.dampening == 0.0 {
                let sum = m.b.add(decayed, g)?;
                m.round(sum)?
            } else {
                let weight = m.number("gradient_weight")?;
                m.add_scaled(decayed, weight, g)?
            };
            new.push(m.store(buffer)?);
            g = if self.nesterov { m.add_scaled(g, self.momentum, buffer)? } else { buffer };
        }
        let rate = m.number("neg_lr")?;
        let p = m.add_scaled(p, rate, g)?;
        new.insert(0, m.store(p)?);
        Ok(new)
    }
}
