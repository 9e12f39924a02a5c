//! `ferroflux bench`: how fast models run, and the time to their first result. Inputs and missing weights are computed by
//! formula.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferroflux::ir_core::Scalar;
use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::train::{Differentiated, TangentInfo, TrainOptions, TrainStep};
use ferroflux::{Compiled, Input, Options, Tensor, Value, list_backends};
use serde::Serialize;

use crate::mesh::{MeshArgs, Rank};
use crate::model::Model;
use crate::options::{AutocastArgs, BackendArgs, Global};
use crate::prepared::GivenArgs;
use crate::progress::Progress;
use crate::{report, show};

/// Elements of an output whose mean is reported, and the largest output for which it is.
const CHECKED: usize = 4096;
const MOST_CHECKED: usize = 1 << 26;

/// Fewest runs that are timed, however slow the model.
const RUNS: usize = 5;
/// Learning rate of measured training steps.
const RATE: f64 = 0.01;
/// Calls of which `--profile` measures every step.
const PROFILED: usize = 5;

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The models: `.pt2` archives, or `.zip` files of one with its inputs.
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// How long each model is timed; at least five runs.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    #[command(flatten)]
    given: GivenArgs,
    /// Measures forward and backward: the gradients of the loss with respect to all parameters.
    #[arg(long, conflicts_with = "inference")]
    train: bool,
    /// Runs models that return a loss as they are, instead of measuring a training step: forward, backward and an update by
    /// SGD.
    #[arg(long)]
    inference: bool,
    /// Measures the time of every step on the device and prints a table of it, the longest first; other figures are
    /// then slower than without.
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    autocast: AutocastArgs,
    /// Prints one JSON object per model instead of text.
    #[arg(long)]
    json: bool,
}

/// The result for one model.
#[derive(Serialize)]
struct Measured {
    model: String,
    backend: String,
    mode: &'static str,
    /// `inference`, `gradients` or `training step`.
    work: &'static str,
    median_ms: f64,
    min_ms: f64,
    runs: usize,
    /// Archive read, compiled and called once, in seconds; making weights and inputs is not counted.
    first_call_s: f64,
    /// Compiling alone.
    compile_s: f64,
    /// Whether an earlier run had compiled it (`--cache off` recompiles); none of gradients.
    from_cache: Option<bool>,
    /// Bytes that the forward keeps for the backward next to inputs and parameters; none without `--train`.
    saved_bytes: Option<i64>,
    /// Peak resident memory of the process since the model was opened; none where the system does not tell.
    peak_mb: Option<u64>,
    /// Most memory in use at once on the backend's device since the process began, and what was asked of the driver;
    /// none where the backend does not tell.
    device_peak_mb: Option<u64>,
    /// How often the driver was asked for memory while the runs were timed.
    device_allocations: Option<u64>,
    /// Mean of the first 4,096 numbers of each of the first two outputs of the first call, for comparison with other
    /// programs on the same weights; none of training and of outputs that are too large to be fetched.
    check: Vec<f64>,
}

impl Args {
    /// Log tables that are shown without `--log`.
    pub(crate) fn tables(&self) -> Option<&'static str> {
        let searched = self.backend.mode.searches();
        (self.profile || searched).then_some("autotune=info,profile=info")
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, global: &Global, out: &mut dyn Write) -> Result<()> {
    let mut failed = Vec::new();
    // Of ranks that are processes the first one prints.
    if !args.json
        && ferroflux::mesh::Place::from_environment().is_none_or(|p| p.rank == 0 || args.mesh.mesh.is_none())
    {
        let titles =
            ["model", "median ms", "min ms", "runs", "first call s", "compile s", "peak MB", "device MB"];
        let [model, rest @ ..] = titles;
        writeln!(out, "{model:<32}{}", rest.map(|t| format!("{t:>13}")).concat())?;
    }
    for path in &args.models {
        let measured = args.mesh.on_ranks(&args.backend.backend, out, &|rank, out| {
            let measured = measure(path, args, (global, rank))?;
            print(&measured, args.json, out)
        });
        match measured {
            Ok(()) => {}
            // The other models are measured nevertheless.
            Err(error) if args.models.len() > 1 => {
                report::print(&error);
                failed.push(path.display().to_string());
            }
            Err(error) => return Err(error),
        }
        out.flush()?;
    }
    match failed.len() {
        0 => Ok(()),
        n => Err(report::advised(
            format!("{n} of {} models could not be measured: {}", args.models.len(), failed.join(", ")),
            "the errors above say why",
        )),
    }
}

fn measure(path: &Path, args: &Args, (global, rank): (&Global, Rank<'_>)) -> Result<Measured> {
    reset_peak();
    let mut model = Model::open(path)?;
    let mut options = args.mesh.options(args.autocast.on(args.backend.options(global)), rank)?;
    if args.profile {
        options = options.backend_option("profile", PROFILED.to_string());
    }
    let inputs = prepare(&mut model, args)?;
    let what =
        |what: &str| format!("cannot {what} `{}` with the backend `{}`", model.name, options.backend_name());
    let (mut compiled, compile) = {
        let _progress = Progress::start(format!("{}: compiling", model.name));
        compile(&model, args, &options).with_context(|| what("compile"))?
    };
    // Inputs that a device keeps are copied before the clock starts, as in a service.
    let placed = compiled.placed(&inputs).with_context(|| what("run"))?;
    let start = Instant::now();
    let outputs = compiled.first(&placed, &inputs).with_context(|| what("run"))?;
    let first = model.read + compile + start.elapsed();
    let check = compiled.check(&outputs).with_context(|| what("run"))?;
    drop(outputs);
    let (mut times, allocations) = {
        let _progress = Progress::start(format!("{}: measuring", model.name));
        let given = (&placed[..], &inputs[..]);
        time(&mut compiled, given, args, (options.backend_name(), rank)).with_context(|| what("run"))?
    };
    times.sort_unstable();
    let ms = |t: Duration| show::rounded(show::millis(t), 4);
    let seconds = |t: Duration| show::rounded(t.as_secs_f64(), 4);
    Ok(Measured {
        model: model.name,
        backend: args.backend.backend.clone(),
        mode: args.backend.mode.name(),
        work: compiled.name(),
        median_ms: ms(median(&times)),
        min_ms: ms(times.first().copied().unwrap_or_default()),
        runs: times.len(),
        first_call_s: seconds(first),
        compile_s: seconds(compile),
        from_cache: compiled.was_cached(),
        saved_bytes: compiled.saved_bytes(),
        peak_mb: peak(),
        device_peak_mb: device(options.backend_name(), "memory_peak_bytes").map(|bytes| bytes >> 20),
        device_allocations: allocations,
        check,
    })
}

/// Weights and inputs; weights on the host where the work or the backend needs them there.
fn prepare(model: &mut Model, args: &Args) -> Result<Vec<Input>> {
    let _progress = Progress::start(format!("{}: making weights and inputs", model.name));
    let given = args.given.weights(model)?;
    let trains = args.train || (model.program.trains() && !args.inference);
    if trains || !ferroflux::keeps_tensors_on_a_device(&args.backend.backend)? {
        model.program.make_weights_now()?;
    }
    args.given.inputs(model, given)
}

/// What is measured.
enum Work {
    Inference(Box<Compiled>),
    Gradients(Box<Differentiated>),
    Step(Box<TrainStep>),
}

impl Work {
    fn name(&self) -> &'static str {
        match self {
            Work::Inference(_) => "inference",
            Work::Gradients(_) => "gradients",
            Work::Step(_) => "training step",
        }
    }

    fn was_cached(&self) -> Option<bool> {
        match self {
            Work::Inference(compiled) => Some(compiled.is_from_cache()),
            Work::Step(step) => Some(step.is_from_cache()),
            Work::Gradients(_) => None,
        }
    }

    fn saved_bytes(&self) -> Option<i64> {
        match self {
            Work::Inference(_) | Work::Step(_) => None,
            Work::Gradients(model) => model.saved_bytes(),
        }
    }

    /// The inputs, tensors where the backend keeps them.
    fn placed(&self, inputs: &[Input]) -> Result<Vec<Input>, ferroflux::Error> {
        let placed = |input: &Input| match (self, input) {
            (Work::Inference(compiled), Input::Tensor(Value::Host(t))) => {
                compiled.to_device(t).map(Input::from)
            }
            (Work::Step(step), Input::Tensor(Value::Host(t))) => step.to_device(t).map(Input::from),
            (_, other) => Ok(other.clone()),
        };
        inputs.iter().map(placed).collect()
    }

    /// The first call; the outputs of an inference.
    fn first(&mut self, placed: &[Input], inputs: &[Input]) -> Result<Vec<Value>, ferroflux::Error> {
        match self {
            Work::Inference(compiled) => compiled.call_values_with(placed),
            _ => self.timed(placed, inputs).map(|()| Vec::new()),
        }
    }

    /// The figures of the first outputs.
    fn check(&self, outputs: &[Value]) -> Result<Vec<f64>, ferroflux::Error> {
        let Work::Inference(compiled) = self else { return Ok(Vec::new()) };
        let small = |v: &&Value| v.sizes().iter().product::<usize>() <= MOST_CHECKED;
        let mean = |v: &Value| {
            let numbers: Vec<f64> = compiled.to_host(v.clone())?.iter_f64().take(CHECKED).collect();
            Ok(show::rounded(numbers.iter().sum::<f64>() / numbers.len().max(1) as f64, 5))
        };
        outputs.iter().take(2).filter(small).map(mean).collect()
    }

    /// One call on placed tensors; outputs stay on the device, and the call is over when it returns.
    fn timed(&mut self, placed: &[Input], inputs: &[Input]) -> Result<(), ferroflux::Error> {
        match self {
            Work::Inference(compiled) => compiled.call_values_with(placed).map(drop),
            Work::Step(step) => step.step_with(placed, RATE).map(drop),
            Work::Gradients(model) => {
                let (outputs, saved) = model.forward_with(inputs)?;
                let ones = |t: &TangentInfo| {
                    let output = &outputs[t.output];
                    Ok(Tensor::full(t.info.meta.dtype, output.sizes(), Scalar::Float(1.0))?)
                };
                let tangents =
                    model.tangents().iter().map(ones).collect::<Result<Vec<_>, ferroflux::Error>>()?;
                saved.backward(&tangents).map(drop)
            }
        }
    }
}

fn compile(model: &Model, args: &Args, options: &Options) -> Result<(Work, Duration), ferroflux::Error> {
    let start = Instant::now();
    let program = &model.program;
    let work = if args.train {
        Work::Gradients(Box::new(program.differentiate(&program.usual_gradients(), options)?))
    } else if program.trains() && !args.inference {
        let train = TrainOptions::new(Optimizer::Sgd(Sgd::default()));
        Work::Step(Box::new(program.train_step(&train, options)?))
    } else {
        Work::Inference(Box::new(program.compile(options)?))
    };
    let made = match &work {
        Work::Inference(compiled) => compiled.making_weights(),
        _ => Duration::ZERO,
    };
    Ok((work, start.elapsed().saturating_sub(made)))
}

/// Times of calls, and how often memory was requested from the device's driver meanwhile.
fn time(
    work: &mut Work,
    (placed, inputs): (&[Input], &[Input]),
    args: &Args,
    (backend, rank): (&str, Rank<'_>),
) -> Result<(Vec<Duration>, Option<u64>), ferroflux::Error> {
    // Calls that are measured step by step, and those in which a graph is recorded.
    for _ in 0..if args.profile { PROFILED + 1 } else { 3 } {
        work.timed(placed, inputs)?;
    }
    let requested = device(backend, "memory_allocations");
    let (mut times, begin) = (Vec::new(), Instant::now());
    loop {
        let more = times.len() < RUNS || begin.elapsed().as_secs_f64() < args.seconds;
        // All ranks make as many calls as the first one.
        let more = match rank {
            Some(member) => member.all_gather(&[u8::from(more)])?[0] == [1],
            None => more,
        };
        if !more {
            break;
        }
        let start = Instant::now();
        work.timed(placed, inputs)?;
        times.push(start.elapsed());
    }
    let requested = device(backend, "memory_allocations").zip(requested).map(|(now, before)| now - before);
    Ok((times, requested))
}

/// A number that a backend reports for its first device.
fn device(backend: &str, attribute: &str) -> Option<u64> {
    let info = list_backends().into_iter().find(|b| b.name == backend)?;
    let devices = info.devices.into_iter().find(|d| d.unavailable_because.is_none())?;
    devices.attributes.iter().find(|(name, _)| name == attribute)?.1.parse().ok()
}

/// The median of sorted times.
fn median(times: &[Duration]) -> Duration {
    let middle = times.len() / 2;
    match times {
        [] => Duration::ZERO,
        _ if times.len() % 2 == 1 => times[middle],
        _ => (times[middle - 1] + times[middle]) / 2,
    }
}

/// Resets the system's record of the peak, so that each of several models has its own.
fn reset_peak() {
    // Only Linux has it; elsewhere, and where it is refused, there is no peak or a common one.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The peak of resident memory in MB (2^20 bytes).
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024)
}

fn print(m: &Measured, json: bool, out: &mut dyn Write) -> Result<()> {
    if json {
        writeln!(out, "{}", serde_json::to_string(m)?)?;
        return Ok(());
    }
    let mb = |mb: Option<u64>| mb.map_or("-".to_owned(), |mb| mb.to_string());
    let (peak, device) = (mb(m.peak_mb), mb(m.device_peak_mb));
    writeln!(
        out,
        "{:<32}{:>13.3}{:>13.3}{:>13}{:>13.3}{:>13.3}{peak:>13}{device:>13}",
        m.model, m.median_ms, m.min_ms, m.runs, m.first_call_s, m.compile_s
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let ms = |list: &[u64]| list.iter().map(|&n| Duration::from_millis(n)).collect::<Vec<_>>();
        assert_eq!(median(&ms(&[1, 2, 9])), Duration::from_millis(2));
        assert_eq!(median(&ms(&[1, 3])), Duration::from_millis(2));
        assert_eq!(median(&[]), Duration::ZERO);
    }
}
