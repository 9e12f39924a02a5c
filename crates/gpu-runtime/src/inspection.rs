//! What a compiled program shows of itself: the texts of its kernels, and the times of its launches for a host that observes.

use std::time::Duration;

use plugin_sdk::{DeviceId, Listing, step_ran};

use crate::Driver;
use crate::compiled::{Compiled, Entry};
use crate::plan::Runnable;

impl<D: Driver> Compiled<D> {
    /// The text of each kernel of the candidates that were chosen, in the order of the steps; calls of libraries have none.
    pub fn listings(&self) -> Vec<Listing> {
        let mut all = Vec::new();
        for step in &self.device_steps {
            let parts = step.candidate().into_iter().flat_map(|c| &c.parts);
            let kernels = parts.filter_map(|part| match part {
                Runnable::Kernel(kernel) => self.texts.get(kernel.function),
                Runnable::Library(_) => None,
            });
            all.extend(kernels.map(|(_, text)| Listing {
                step: step.name.clone(),
                language: format!("{} C++", self.memory().driver().target().dialect.name),
                text: text.clone(),
            }));
        }
        all
    }

    /// Reports the launches of a call that was timed launch by launch and has just ended.
    pub(crate) fn report_steps(&self, entry: &Entry<D>, seconds: &[f64]) {
        let Ok(list) = &entry.prepared.list else { return };
        let device: DeviceId = self.memory().driver().device();
        let mut left: f64 = seconds.iter().sum();
        for (call, &own) in list.calls.iter().zip(seconds) {
            let name = &self.device_steps[call.step as usize].name;
            step_ran(
                &self.program.name,
                name,
                device,
                Duration::from_secs_f64(left),
                Duration::from_secs_f64(own),
            );
            left -= own;
        }
    }
}
