//! What a compiled program shows of itself: the texts of its kernels, and the times of its launches for a host that observes.

use std::time::Duration;

use plugin_sdk::{DeviceId, ExchangeRun, Listing, exchange_ran, step_ran};
use rustc_hash::FxHashMap;

use crate::compiled::{Compiled, Entry};
use crate::plan::Runnable;
use crate::prepare::{Call, CallKind, List};
use crate::{Driver, Exchanged, Timed};

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

    /// Reports the launches of a call that was timed launch by launch and has just ended. Exchanges that ran on a stream of their
    /// own are told with their times there.
    pub(crate) fn report_steps(&self, entry: &Entry<D>, times: &[Timed], beside: &FxHashMap<usize, Timed>) {
        let Ok(list) = &entry.prepared.list else { return };
        let device: DeviceId = self.memory().driver().device();
        let end = times.last().map_or(0.0, |last| last.begin + last.seconds);
        let when = |t: Timed| (duration(end - t.begin), duration(t.seconds));
        let mut marked: FxHashMap<usize, Exchanged> = FxHashMap::default();
        for (call, &time) in list.calls.iter().zip(times) {
            let name = (&*self.program.name, &*self.device_steps[call.step as usize].name);
            let Some(found) = self.exchanged(list, call) else {
                let (ago, took) = when(time);
                step_ran(name.0, name.1, device, ago, took);
                continue;
            };
            let waits = found.group.is_empty();
            let own = found.mark.filter(|_| !waits).and_then(|mark| beside.get(&mark));
            let about = if waits { found.mark.and_then(|mark| marked.get(&mark)) } else { Some(&found) };
            if let Some(about) = about {
                let run = ExchangeRun {
                    what: found.what,
                    group: &about.group,
                    bytes: about.bytes,
                    exchanges: about.exchanges,
                    stream: u64::from(own.is_some()),
                };
                let begun = own.map_or(time, |own| Timed { begin: time.begin + own.begin, ..*own });
                exchange_ran(name, device, when(begun), &run);
            }
            if let (false, Some(mark)) = (waits, found.mark) {
                marked.insert(mark, found);
            }
        }
    }

    /// What a launch exchanges.
    fn exchanged(&self, list: &List, call: &Call) -> Option<Exchanged> {
        let CallKind::Library { values, .. } = &call.what else { return None };
        let candidate = self.device_steps[call.step as usize].candidate()?;
        match candidate.parts.get(call.part as usize)? {
            Runnable::Library(library) => library.exchanged(list.values.get(*values as usize)?),
            Runnable::Kernel(_) => None,
        }
    }
}

/// Seconds that clocks of events have measured: not exactly, so that nothing may be a little less.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default()
}
