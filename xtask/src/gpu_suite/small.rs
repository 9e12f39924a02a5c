//! Small whole programs for measurements on a device: a graph from its text through the compiler, and the time of each
//! step of its calls.
//!
//! Not here: the programs (`masks`, `decode`, `losses`, `rows`).

use std::time::Instant;

use anyhow::{Context, Result, bail};
use ferroflux::cache::Cache;
use ferroflux::fx_ir::Graph;
use ferroflux::profiler::{Category, Profiler};
use ferroflux::{Compiled, Mode, Options, Program, Tensor, Value};

/// Calls of which every step is timed.
const PROFILED: usize = 9;
/// Calls that are timed as a whole, of which the median counts.
const CALLS: usize = 21;

/// How the programs are compiled.
#[derive(Clone, clap::Args)]
pub(super) struct Compilation {
    /// The backend.
    #[arg(long, default_value = "cuda")]
    backend: String,
    /// The mode.
    #[arg(long, default_value = "max-autotune")]
    mode: String,
    /// Only cases whose name contains this.
    #[arg(default_value = "")]
    pub(super) filter: String,
}

impl Compilation {
    fn options(&self) -> Result<Options> {
        let mode = [Mode::Default, Mode::ReduceOverhead, Mode::MaxAutotune]
            .into_iter()
            .find(|mode| mode.name() == self.mode)
            .with_context(|| format!("there is no mode `{}`", self.mode))?;
        Ok(Options::new().backend(&self.backend).mode(mode).cache(Cache::Off))
    }

    /// A program of a graph without weights.
    pub(super) fn compile(&self, graph: Graph) -> Result<Compiled> {
        let program = Program::from_graph(graph, &std::collections::BTreeMap::new())?;
        Ok(program.compile(&self.options()?)?)
    }
}

/// The median time of a step.
pub(super) struct StepTime {
    pub(super) name: String,
    pub(super) seconds: f64,
}

/// What was measured of a program.
pub(super) struct Measured {
    /// In the order of a call.
    pub(super) steps: Vec<StepTime>,
    /// A whole call, with the host's part.
    pub(super) call: f64,
    /// The outputs of the last call, on the host.
    pub(super) outputs: Vec<Tensor>,
}

/// Times a program and its steps on inputs that are on the device before.
pub(super) fn measure(code: &Compiled, inputs: &[Tensor]) -> Result<Measured> {
    let placed: Vec<Value> = inputs.iter().map(|t| code.to_device(t)).collect::<Result<_, _>>()?;
    for _ in 0..3 {
        code.call_values(&placed)?;
    }
    let mut times = Vec::with_capacity(CALLS);
    for _ in 0..CALLS {
        let start = Instant::now();
        code.call_values(&placed)?;
        times.push(start.elapsed().as_secs_f64());
    }
    let mut calls: Vec<Vec<StepTime>> = Vec::with_capacity(PROFILED);
    for _ in 0..PROFILED {
        let profiling = Profiler::new().start();
        code.call_values(&placed)?;
        let trace = profiling.stop();
        let kernels = trace.events.into_iter().filter(|e| e.category == Category::Kernel);
        calls.push(kernels.map(|e| StepTime { name: e.name, seconds: e.duration as f64 / 1e9 }).collect());
    }
    let outputs = code.call_values(&placed)?;
    let outputs = outputs.into_iter().map(|v| code.to_host(v)).collect::<Result<_, _>>()?;
    Ok(Measured { steps: medians(calls)?, call: median(times), outputs })
}

/// The median of each step over calls that have the same steps.
fn medians(calls: Vec<Vec<StepTime>>) -> Result<Vec<StepTime>> {
    let Some(first) = calls.first() else { return Ok(Vec::new()) };
    if calls.iter().any(|c| c.len() != first.len()) {
        bail!("calls of one program have different numbers of steps");
    }
    let of = |n: usize, name: &str| StepTime {
        name: name.to_owned(),
        seconds: median(calls.iter().map(|c| c[n].seconds).collect()),
    };
    Ok(first.iter().enumerate().map(|(n, s)| of(n, &s.name)).collect())
}

pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Numbers between -1 and 1 without a pattern that a sum could cancel: a multiplicative hash of the index.
pub(super) fn number(index: usize, seed: u64) -> f32 {
    let h = (index as u64 * 64 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((h ^ (h >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1 << 23) as f32 - 1.0
}
