//! `ferroflux bench`: how fast models run, and how fast they get to their first result. Inputs and missing weights are
//! made by formula.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferroflux::ir_core::Scalar;
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::train::{Differentiated, TangentInfo};
use ferroflux::{Compiled, Options, Tensor};
use serde::Serialize;

use crate::any_weights::AnyWeights;
use crate::model::{self, Model};
use crate::options::{BackendArgs, Global, WeightArgs};
use crate::progress::Progress;
use crate::report;
use crate::{inputs, show};

/// Fewest runs that are timed, however slow the model.
const RUNS: usize = 5;

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The models: `.pt2` archives, or `.zip` files of one with its inputs.
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// How long each model is timed; at least five runs.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    seconds: f64,
    /// Safetensors file with the inputs; made up where not given.
    #[arg(long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    /// Measures forward and backward: the gradients of the loss with respect to all parameters.
    #[arg(long)]
    train: bool,
    #[command(flatten)]
    weights: WeightArgs,
    #[command(flatten)]
    backend: BackendArgs,
    /// Prints one JSON object a model instead of text.
    #[arg(long)]
    json: bool,
}

/// The result for one model.
#[derive(Serialize)]
struct Measured {
    model: String,
    backend: String,
    mode: &'static str,
    median_ms: f64,
    min_ms: f64,
    runs: usize,
    /// Archive read, compiled and called once, in seconds; making weights and inputs is not counted.
    first_call_s: f64,
    /// Compiling alone.
    compile_s: f64,
    /// Bytes that the forward keeps for the backward beside inputs and parameters; none without `--train`.
    saved_bytes: Option<i64>,
    /// Peak resident memory of the process since the model was opened; none where the system does not tell.
    peak_mb: Option<u64>,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, global: &Global, out: &mut dyn Write) -> Result<()> {
    let mut failed = Vec::new();
    if !args.json {
        let titles = ["model", "median ms", "min ms", "runs", "first call s", "compile s", "peak MB"];
        let [model, rest @ ..] = titles;
        writeln!(out, "{model:<32}{}", rest.map(|t| format!("{t:>13}")).concat())?;
    }
    for path in &args.models {
        match measure(path, args, global) {
            Ok(measured) => print(&measured, args.json, out)?,
            // The other models are measured all the same.
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

fn measure(path: &Path, args: &Args, global: &Global) -> Result<Measured> {
    reset_peak();
    let mut model = Model::open(path)?;
    let options = args.backend.options(global);
    let tensors = prepare(&mut model, args)?;
    let what =
        |what: &str| format!("cannot {what} `{}` with the backend `{}`", model.name, options.backend_name());
    let (compiled, compile) = {
        let _progress = Progress::start(format!("{}: compiling", model.name));
        compile(&model, args.train, &options).with_context(|| what("compile"))?
    };
    let start = Instant::now();
    compiled.run(&tensors).with_context(|| what("run"))?;
    let first = model.read + compile + start.elapsed();
    let mut times = {
        let _progress = Progress::start(format!("{}: measuring", model.name));
        time(&compiled, &tensors, args.seconds).with_context(|| what("run"))?
    };
    times.sort_unstable();
    let ms = |t: Duration| show::rounded(show::millis(t), 4);
    let seconds = |t: Duration| show::rounded(t.as_secs_f64(), 4);
    Ok(Measured {
        model: model.name,
        backend: args.backend.backend.clone(),
        mode: args.backend.mode.name(),
        median_ms: ms(median(&times)),
        min_ms: ms(times.first().copied().unwrap_or_default()),
        runs: times.len(),
        first_call_s: seconds(first),
        compile_s: seconds(compile),
        saved_bytes: compiled.saved_bytes(),
        peak_mb: peak(),
    })
}

/// Weights and inputs: of the files that are given, by the case's formulas, else made up.
fn prepare(model: &mut Model, args: &Args) -> Result<Vec<Tensor>> {
    let _progress = Progress::start(format!("{}: making weights and inputs", model.name));
    let given: Option<SafetensorsFile> = args.inputs.as_deref().map(model::tensors).transpose()?;
    model.fill(&args.weights, given.as_ref())?;
    model.program.fill_weights(&AnyWeights)?;
    let infos = model.program.inputs();
    let Some(file) = given.as_ref().or(model.golden.as_ref()) else {
        return inputs::any(&infos, &model.program.graph().symbols);
    };
    // A case with symbolic sizes has several samples; the first is measured.
    let prefix = if file.tensors.contains_key("s0.in0") { "s0." } else { "" };
    inputs::from_file(&infos, file, prefix)
}

/// What is measured.
enum Work {
    Inference(Box<Compiled>),
    Training(Box<Differentiated>),
}

impl Work {
    fn run(&self, tensors: &[Tensor]) -> Result<(), ferroflux::Error> {
        match self {
            Work::Inference(compiled) => compiled.call(tensors).map(drop),
            Work::Training(model) => {
                let (outputs, saved) = model.forward(tensors)?;
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

    fn saved_bytes(&self) -> Option<i64> {
        match self {
            Work::Inference(_) => None,
            Work::Training(model) => model.saved_bytes(),
        }
    }
}

fn compile(model: &Model, train: bool, options: &Options) -> Result<(Work, Duration), ferroflux::Error> {
    let start = Instant::now();
    let program = &model.program;
    let work = match train {
        true => Work::Training(Box::new(program.differentiate(&program.usual_gradients(), options)?)),
        false => Work::Inference(Box::new(program.compile(options)?)),
    };
    Ok((work, start.elapsed()))
}

fn time(work: &Work, tensors: &[Tensor], seconds: f64) -> Result<Vec<Duration>, ferroflux::Error> {
    // Inputs that a device keeps are there before the clock runs, as a service would have them; so do outputs stay.
    let placed = match work {
        Work::Inference(compiled) => {
            tensors.iter().map(|t| compiled.to_device(t)).collect::<Result<Vec<_>, _>>()?
        }
        Work::Training(_) => Vec::new(),
    };
    let (mut times, begin) = (Vec::new(), Instant::now());
    while times.len() < RUNS || begin.elapsed().as_secs_f64() < seconds {
        let start = Instant::now();
        match work {
            Work::Inference(compiled) => drop(compiled.call_values(&placed)?),
            Work::Training(_) => work.run(tensors)?,
        }
        times.push(start.elapsed());
    }
    Ok(times)
}

/// Of sorted times.
fn median(times: &[Duration]) -> Duration {
    let middle = times.len() / 2;
    match times {
        [] => Duration::ZERO,
        _ if times.len() % 2 == 1 => times[middle],
        _ => (times[middle - 1] + times[middle]) / 2,
    }
}

/// Makes the system's record of the peak begin now, so that each of several models has its own.
fn reset_peak() {
    // Linux alone has it; elsewhere, and where it is refused, there is no peak or a common one.
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
    let peak = m.peak_mb.map_or("-".to_owned(), |mb| mb.to_string());
    writeln!(
        out,
        "{:<32}{:>13.3}{:>13.3}{:>13}{:>13.3}{:>13.3}{peak:>13}",
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
