//! Which steps of a program are recorded, as `torch.profiler.schedule` has it.

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing.
    None,
    /// It is recorded and forgotten: the first steps of a recording are slower.
    Warmup,
    /// It is recorded.
    Record,
    /// It is recorded, and the cycle's trace is ready after it.
    RecordAndSave,
}

/// Cycles of steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Steps before the first cycle.
    pub skip_first: u64,
    /// Steps of a cycle in which nothing happens.
    pub wait: u64,
    /// Steps that are recorded and forgotten.
    pub warmup: u64,
    /// Steps that are recorded.
    pub active: u64,
    /// Number of cycles; 0 is without end.
    pub repeat: u64,
}

impl Schedule {
    /// What happens in the step of this number.
    pub fn action(&self, step: u64) -> Action {
        let Some(step) = step.checked_sub(self.skip_first) else { return Action::None };
        let cycle = self.wait + self.warmup + self.active;
        if cycle == 0 || self.active == 0 || (self.repeat > 0 && step / cycle >= self.repeat) {
            return Action::None;
        }
        match step % cycle {
            n if n < self.wait => Action::None,
            n if n < self.wait + self.warmup => Action::Warmup,
            n if n + 1 < cycle => Action::Record,
            _ => Action::RecordAndSave,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)` says of ten steps.
    #[test]
    fn cycles_are_pytorchs() {
        let schedule = Schedule { skip_first: 1, wait: 1, warmup: 1, active: 2, repeat: 2 };
        let actions: Vec<Action> = (0..10).map(|step| schedule.action(step)).collect();
        use Action::{None as N, Record as R, RecordAndSave as S, Warmup as W};
        assert_eq!(actions, [N, N, W, R, S, N, W, R, S, N]);
        assert_eq!(Schedule::default().action(3), N);
        assert_eq!(Schedule { active: 1, ..Schedule::default() }.action(7), S);
    }
}
