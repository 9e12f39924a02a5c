//! Adam and AdamW, as `torch.optim.adam._single_tensor_adam` computes them (not capturable).

use fx_ir::ValueId;
use ir_core::Scalar;
use prims::OpError;

use super::{Math, Number, at_least};

/// `torch.optim.Adam`, `torch.optim.AdamW`. The learning rate is an argument of each step.
#[derive(Clone, Debug, PartialEq)]
pub struct Adam {
    /// Decay of the running mean of gradients.
    pub beta1: f64,
    /// Decay of the running mean of their squares.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Factor of the L2 penalty, or of the decay of the weights themselves.
    pub weight_decay: f64,
    /// Weight decay shrinks the weights and leaves the gradient alone: AdamW.
    pub decoupled: bool,
    /// Divides by the largest running mean so far.
    pub amsgrad: bool,
    /// Maximizes instead of minimizing.
    pub maximize: bool,
}

impl Default for Adam {
    /// PyTorch's defaults of `Adam`.
    fn default() -> Adam {
        Adam {
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            decoupled: false,
            amsgrad: false,
            maximize: false,
        }
    }
}

impl Adam {
    /// PyTorch's defaults of `AdamW`: weight decay 0.01, decoupled.
    pub fn adamw() -> Adam {
        Adam { weight_decay: 1e-2, decoupled: true, ..Adam::default() }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(format!("{name} is {beta}, it must be at least 0 and less than 1"));
            }
        }
        at_least("eps", self.eps, 0.0)?;
        at_least("weight_decay", self.weight_decay, 0.0)
    }

    pub(super) fn slots(&self) -> &'static [&'static str] {
        if self.amsgrad { &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"] } else { &["exp_avg", "exp_avg_sq"] }
    }

    pub(super) fn numbers(&self, lr: f64, step: u64) -> Vec<Number> {
        // Python's `beta ** step`, which is the C library's `pow`.
        let step = step as f64;
        let correction1 = 1.0 - libm::pow(self.beta1, step);
        let correction2 = 1.0 - libm::pow(self.beta2, step);
        let mut list = vec![("neg_step_size", -(lr / correction1)), ("correction2_sqrt", correction2.sqrt())];
        if self.decoupled && self.weight_decay != 0.0 {
            list.push(("shrink", 1.0 - lr * self.weight_decay));
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
        let mut p = m.load(parameter)?;
        let mut g = m.load(gradient)?;
        if self.maximize {
            g = m.b.neg(g)?;
        }
        if self.weight_decay != 0.0 && self.decoupled {
            let shrink = m.number("shrink")?;
            p = m.scale(p, shrink)?;
        } else if self.weight_decay != 0.0 {
            g = m.add_scaled(g, self.weight_decay, p)?;
        }
        let average = m.load(slots[0])?;
        let average = self.lerp(m, average, g)?;
        let squares = m.load(slots[1])?;
        let squares = m.scale(squares, self.beta2)?;
        let scaled = m.b.mul(g, 1.0 - self.beta2)?;
        let square = m.b.mul(scaled, g)?;
        let squares = m.b.add(squares, square)?;
        let squares = m.round(squares)?;
        let mut new = vec![m.store(average)?, m.store(squares)?];
        let mut divisor = squares;
        if let Some(&largest) = slots.get(2) {
            let largest = m.load(largest)?;
            divisor = m.b.maximum(largest, squares)?;
            new.push(m.store(divisor)?);
        }
        let root = m.b.sqrt(divisor)?;
        let root = m.round(root)?;
        let correction = m.number("correction2_sqrt")?;
        let root = m.b.div(root, correction)?;
        let root = m.round(root)?;
        let denominator = m.b.add(root, Scalar::Float(self.eps))?;
        let denominator = m.round(denominator)?;
        let size = m.number("neg_step_size")?;
        let change = m.b.mul(average, size)?;
        let change = m.b.div(change, denominator)?;
        let p = m.b.add(p, change)?;
        new.insert(0, m.store(p)?);
        Ok(new)
    }

    /// `average.lerp(gradient, 1 - beta1)`: from the nearer end, as ATen's `lerp` has it.
    fn lerp(&self, m: &mut Math<'_, '_>, average: ValueId, g: ValueId) -> Result<ValueId, OpError> {
        let weight = 1.0 - self.beta1;
        let difference = m.b.sub(g, average)?;
        let value = if weight < 0.5 {
            let part = m.b.mul(difference, weight)?;
            m.b.add(average, part)?
        } else {
            let part = m.b.mul(difference, 1.0 - weight)?;
            m.b.sub(g, part)?
        };
        m.round(value)
    }
}
