//! Learning-rate schedules as plain functions of the step number, after `torch.optim.lr_scheduler`. The closed forms are
//! PyTorch's own; PyTorch's recursions round a little differently (1 part in 10^15 per step).

use std::f64::consts::PI;

/// The learning rate of each step, from the base rate. Steps count from 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Schedule {
    /// Always the base rate.
    #[default]
    Constant,
    /// `StepLR`: times `gamma` after every `size` steps.
    Step {
        /// Steps between changes.
        size: u64,
        /// Factor.
        gamma: f64,
    },
    /// `MultiStepLR`: times `gamma` at each of these steps.
    MultiStep {
        /// Where.
        milestones: Vec<u64>,
        /// Factor.
        gamma: f64,
    },
    /// `ExponentialLR`: times `gamma` at every step.
    Exponential {
        /// Factor.
        gamma: f64,
    },
    /// `CosineAnnealingWarmRestarts`: half a cosine from the base rate down to `min` in `period` steps, then again, each
    /// time `factor` as long. A single descent where `restarts` is false: the rate stays at `min` after it.
    Cosine {
        /// Steps of the first descent.
        period: u64,
        /// How much longer each next descent is, at least 1.
        factor: u64,
        /// The lowest rate.
        min: f64,
        /// Whether it starts again.
        restarts: bool,
    },
    /// `LinearLR`: from `start` times the base rate to the base rate in `steps` steps, then `then` (counted from its own 0).
    Warmup {
        /// Steps until the base rate.
        steps: u64,
        /// Factor at step 0.
        start: f64,
        /// The schedule that follows.
        then: Box<Schedule>,
    },
    /// `OneCycleLR` with cosine annealing: up from `base / div` to the base rate during the first `rise` of `total`
    /// steps, down to `base / (div * final_div)` at the end.
    OneCycle {
        /// All steps.
        total: u64,
        /// Part of the steps that climb, 0 to 1.
        rise: f64,
        /// The first rate is the base rate divided by this.
        div: f64,
        /// The last rate is the first divided by this.
        final_div: f64,
    },
    /// `PolynomialLR`: `(1 - step / total) ^ power` times the base rate, 0 from `total` on.
    Polynomial {
        /// Steps until 0.
        total: u64,
        /// Exponent.
        power: f64,
    },
}

impl Schedule {
    /// The rate of a step.
    pub fn rate(&self, base: f64, step: u64) -> f64 {
        match self {
            Schedule::Constant => base,
            Schedule::Step { size, gamma } => base * powi(*gamma, step / (*size).max(1)),
            Schedule::MultiStep { milestones, gamma } => {
                base * powi(*gamma, milestones.iter().filter(|m| **m <= step).count() as u64)
            }
            Schedule::Exponential { gamma } => base * powi(*gamma, step),
            Schedule::Cosine { period, factor, min, restarts } => {
                let (at, length) = descent((*period).max(1), (*factor).max(1), *restarts, step);
                min + (base - min) * (1.0 + (PI * at as f64 / length as f64).cos()) / 2.0
            }
            Schedule::Warmup { steps, start, then } if step < *steps => {
                let _ = then;
                base * (start + (1.0 - start) * step as f64 / *steps as f64)
            }
            Schedule::Warmup { steps, then, .. } => then.rate(base, step - steps),
            Schedule::OneCycle { total, rise, div, final_div } => {
                one_cycle(base, (*total).max(1), *rise, base / div, base / (div * final_div), step)
            }
            Schedule::Polynomial { total, power } => {
                let left = 1.0 - step.min(*total) as f64 / (*total).max(1) as f64;
                base * left.powf(*power)
            }
        }
    }
}

fn powi(x: f64, n: u64) -> f64 {
    x.powi(i32::try_from(n).unwrap_or(i32::MAX))
}

/// Where in which descent a step is.
fn descent(period: u64, factor: u64, restarts: bool, step: u64) -> (u64, u64) {
    if !restarts {
        return (step.min(period), period);
    }
    if factor == 1 {
        return (step % period, period);
    }
    let (mut at, mut length) = (step, period);
    while at >= length {
        at -= length;
        length = length.saturating_mul(factor);
    }
    (at, length)
}

fn one_cycle(top: f64, total: u64, rise: f64, first: f64, last: f64, step: u64) -> f64 {
    let cosine = |from: f64, to: f64, part: f64| to + (from - to) / 2.0 * (1.0 + (PI * part).cos());
    let step = step.min(total.saturating_sub(1)) as f64;
    let climb_end = (rise * total as f64 - 1.0).max(0.0);
    let end = total as f64 - 1.0;
    if step <= climb_end {
        let part = if climb_end > 0.0 { step / climb_end } else { 1.0 };
        return cosine(first, top, part);
    }
    cosine(top, last, if end > climb_end { (step - climb_end) / (end - climb_end) } else { 1.0 })
}

/// `ReduceLROnPlateau` on a loss: times `factor` when it has not become smaller for more than `patience` observations.
#[derive(Clone, Debug, PartialEq)]
pub struct Plateau {
    /// Factor.
    pub factor: f64,
    /// Tolerated observations without improvement.
    pub patience: u64,
    /// A loss counts as better below `best * (1 - threshold)`.
    pub threshold: f64,
    /// Observations after a change that are not counted.
    pub cooldown: u64,
    /// The lowest rate.
    pub min: f64,
    best: f64,
    bad: u64,
    cooling: u64,
    scale: f64,
}

impl Plateau {
    /// With PyTorch's threshold (1e-4), no cooldown and no lowest rate.
    pub fn new(factor: f64, patience: u64) -> Plateau {
        let best = f64::INFINITY;
        Plateau {
            factor,
            patience,
            threshold: 1e-4,
            cooldown: 0,
            min: 0.0,
            best,
            bad: 0,
            cooling: 0,
            scale: 1.0,
        }
    }
    /// Observes a loss, for example once per epoch.
    pub fn look(&mut self, loss: f64) {
        if loss < self.best * (1.0 - self.threshold) {
            (self.best, self.bad) = (loss, 0);
        } else {
            self.bad += 1;
        }
        if self.cooling > 0 {
            (self.cooling, self.bad) = (self.cooling - 1, 0);
        }
        if self.bad > self.patience {
            self.scale *= self.factor;
            (self.cooling, self.bad) = (self.cooldown, 0);
        }
    }
    /// The current rate.
    pub fn rate(&self, base: f64) -> f64 {
        (base * self.scale).max(self.min)
    }
    /// The state for a checkpoint: best loss, observations without improvement, rest of the cooldown, scale.
    pub fn memory(&self) -> [f64; 4] {
        [self.best, self.bad as f64, self.cooling as f64, self.scale]
    }
    /// Restores the state of a checkpoint.
    pub fn restore(&mut self, memory: [f64; 4]) {
        let [best, bad, cooling, scale] = memory;
        (self.best, self.bad, self.cooling, self.scale) = (best, bad as u64, cooling as u64, scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `torch.optim.lr_scheduler` (2.11), base rate 0.1, at these steps.
    fn check(schedule: &Schedule, wanted: &[(u64, f64)]) {
        for &(step, rate) in wanted {
            let got = schedule.rate(0.1, step);
            assert!((got - rate).abs() <= 1e-12, "{schedule:?} at {step}: {got}, not {rate}");
        }
    }

    #[test]
    fn schedules_are_pytorchs() {
        check(&Schedule::Step { size: 3, gamma: 0.5 }, &[(0, 0.1), (2, 0.1), (3, 0.05), (6, 0.025)]);
        let milestones = vec![2, 4];
        check(&Schedule::MultiStep { milestones, gamma: 0.1 }, &[(1, 0.1), (2, 0.01), (4, 0.001)]);
        check(&Schedule::Exponential { gamma: 0.5 }, &[(0, 0.1), (3, 0.0125)]);
        let cosine = Schedule::Cosine { period: 4, factor: 2, min: 0.0, restarts: true };
        check(&cosine, &[(0, 0.1), (2, 0.05), (4, 0.1), (8, 0.05), (12, 0.1)]);
        let then = Box::new(Schedule::Constant);
        check(&Schedule::Warmup { steps: 4, start: 0.5, then }, &[(0, 0.05), (2, 0.075), (4, 0.1), (9, 0.1)]);
        check(&Schedule::Polynomial { total: 4, power: 2.0 }, &[(0, 0.1), (2, 0.025), (4, 0.0), (7, 0.0)]);
    }

    #[test]
    fn one_cycle_is_pytorchs() {
        // OneCycleLR(SGD, max_lr=0.1, total_steps=10), last value at step 9.
        let one = Schedule::OneCycle { total: 10, rise: 0.3, div: 25.0, final_div: 1e4 };
        check(&one, &[(0, 0.004), (1, 0.052), (2, 0.1), (9, 4e-7)]);
    }

    #[test]
    fn a_plateau_lowers_the_rate() {
        let mut plateau = Plateau::new(0.1, 1);
        for loss in [1.0, 0.9, 0.9, 0.9] {
            plateau.look(loss);
        }
        assert!((plateau.rate(0.1) - 0.01).abs() < 1e-15);
    }
}
