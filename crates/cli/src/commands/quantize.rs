//! `ferroflux quantize`: a model with integers for weights and activations, and what each layer's error is.

use std::io::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Context, Result};
use ferroflux::cache::Cache;
use ferroflux::quantize::{LayerReport, Observation, Quantized, Scheme, Settings};
use ferroflux::{Input, InputInfo, Options, Tensor, Value};
use serde_json::json;

use crate::inputs::{self, SetArgs};
use crate::model::{self, Model};
use crate::options::{Global, WeightArgs};
use crate::progress::Progress;
use crate::report::{advised, usage};
use crate::{files, show};

/// Arguments of `quantize`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model: a `.pt2` archive of `torch.export.save`, or a `.zip` of one with its inputs.
    model: PathBuf,
    /// Safetensors file with typical inputs, by argument name or as in0, in1, …; their first dimension may have many samples, which are
    /// given to the model batch by batch. With `--weights-only` it may be left out: errors are then those of the weights.
    #[arg(long, value_name = "DATA")]
    calibrate: Option<PathBuf>,
    #[command(flatten)]
    set: SetArgs,
    /// The archive to write.
    #[arg(short = 'o', long = "output", value_name = "OUT")]
    output: PathBuf,
    /// Quantizes the weights of matrix products alone; activations stay floats.
    #[arg(long, value_enum, value_name = "FORM")]
    weights_only: Option<Weights>,
    /// With `--weights-only int4`: numbers that share a factor.
    #[arg(long, value_name = "N", default_value = "64")]
    group: NonZeroUsize,
    /// How ranges of activations are found.
    #[arg(long, value_enum, value_name = "HOW", default_value = "histogram")]
    observer: Observer,
    /// Samples of a batch, where the model takes any number.
    #[arg(long, value_name = "N", default_value = "32")]
    batch: NonZeroUsize,
    /// Most batches.
    #[arg(long, value_name = "N", default_value = "32")]
    batches: NonZeroUsize,
    /// A layer stays a float where its signal to noise ratio against float64 is below this, in decibels.
    #[arg(long, value_name = "DB", default_value = "15")]
    min_layer_db: f64,
    /// Layers return to floats, the noisiest first, until the signal to noise ratio of the model's results is at least this.
    #[arg(long, value_name = "DB", requires = "calibrate")]
    min_model_db: Option<f64>,
    #[command(flatten)]
    weights: WeightArgs,
    /// Backend that runs the calibration, by name (see `ferroflux backends`).
    #[arg(long, default_value = "cpu")]
    backend: String,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// The integers of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Weights {
    /// 8 bits, a factor for each output channel.
    Int8,
    /// 4 bits, a factor for each group along the sum.
    Int4,
}

/// An observer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Observer {
    /// The range with the least squared error.
    Histogram,
    /// The smallest and the largest value.
    MinMax,
    /// Running means of both.
    MovingAverage,
}

impl Args {
    fn settings(&self) -> Settings {
        Settings {
            scheme: match self.weights_only {
                None => Scheme::Static,
                Some(Weights::Int8) => Scheme::WeightsInt8,
                Some(Weights::Int4) => Scheme::WeightsInt4 { group: self.group.get() },
            },
            observation: match self.observer {
                Observer::Histogram => Observation::Histogram,
                Observer::MinMax => Observation::MinMax,
                Observer::MovingAverage => Observation::MovingAverage,
            },
            least_layer: self.min_layer_db,
            least_model: self.min_model_db,
        }
    }

    /// The calls of the calibration.
    fn samples(&self, model: &Model) -> Result<Vec<Vec<Input>>> {
        let Some(path) = &self.calibrate else {
            return match self.weights_only {
                Some(_) => Ok(Vec::new()),
                None => Err(usage(
                    "the ranges of activations are found on typical inputs, and no file gives them",
                    "give a safetensors file with `--calibrate DATA`, or quantize weights alone with `--weights-only`",
                )),
            };
        };
        let infos = model.program.inputs();
        let all = inputs::from_file(&infos, &model::tensors(path)?, "", &self.set.of(&infos)?)?;
        let calls = batches(&infos, &all, self.batch.get());
        let calls = calls.with_context(|| format!("cannot part {} into calls", path.display()))?;
        Ok(calls.into_iter().take(self.batches.get()).collect())
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, global: &Global, out: &mut dyn Write) -> Result<()> {
    files::check_writable(&args.output)?;
    let mut model = Model::open(&args.model)?;
    model.fill(&args.weights, None)?;
    let samples = args.samples(&model)?;
    // What is compiled for measuring is of no use later.
    let mut options = Options::new().backend(&args.backend).cache(Cache::Off);
    if let Some(threads) = global.threads {
        options = options.threads(threads.get());
    }
    let quantized = {
        let _progress = Progress::start(format!("{}: quantizing", model.name));
        let failed = || format!("cannot quantize `{}`", model.name);
        model.program.quantize(&samples, &args.settings(), &options).with_context(failed)?
    };
    let failed = || format!("cannot write {}", args.output.display());
    quantized.program.save(&args.output).with_context(failed)?;
    match args.json {
        true => {
            let Quantized { layers, decibels, .. } = &quantized;
            writeln!(out, "{}", json!({ "model": model.name, "layers": layers, "model_db": decibels }))?;
        }
        false => print(&quantized, out)?,
    }
    Ok(())
}

fn print(quantized: &Quantized, out: &mut dyn Write) -> Result<()> {
    let mut rows = vec![["layer", "operator", "dB", "weight", "bytes"].map(str::to_owned).to_vec()];
    for layer in &quantized.layers {
        let form = if layer.quantized { "quantized" } else { "float" };
        let size = |n: usize| show::bytes(n as u64);
        rows.push(vec![
            layer.name.clone(),
            layer.operator.clone(),
            format!("{:.1}", layer.decibels),
            form.to_owned(),
            format!("{} -> {}", size(layer.bytes[0]), size(layer.bytes[1])),
        ]);
    }
    show::columns(&rows, out)?;
    let done: Vec<&LayerReport> = quantized.layers.iter().filter(|l| l.quantized).collect();
    let total = show::count(quantized.layers.len(), "layer");
    write!(out, "{} of {total} quantized", done.len())?;
    match quantized.decibels {
        Some(db) => writeln!(out, ", signal to noise of the results {db:.1} dB")?,
        None => writeln!(out)?,
    }
    Ok(())
}

/// Calls with parts of the tensors along their first dimension. A call has as many samples as the model wants, or `wanted` where it takes
/// any number; what is left over is a smaller call, or none.
fn batches(infos: &[InputInfo], all: &[Input], wanted: usize) -> Result<Vec<Vec<Input>>> {
    let mut calls: Option<usize> = None;
    let mut parts: Vec<Option<(Tensor, usize)>> = Vec::new();
    for (info, input) in infos.iter().zip(all) {
        let (Some(meta), Input::Tensor(Value::Host(tensor))) = (info.meta(), input) else {
            parts.push(None);
            continue;
        };
        let (Some(own), Some(&given)) = (meta.sizes.first(), tensor.sizes().first()) else {
            parts.push(None);
            continue;
        };
        let (size, rest) = match own.as_const() {
            Some(n) => (usize::try_from(n).unwrap_or(0).max(1), false),
            None => (wanted, true),
        };
        let count = if rest { given.div_ceil(size) } else { given / size };
        if calls.is_some_and(|n| n != count) || count == 0 {
            return Err(advised(
                format!(
                    "`{}` has {given} samples, which is another number of calls than those of other inputs, or none",
                    info.name
                ),
                "give as many samples of each input, at least as many as the model takes at once",
            ));
        }
        calls = Some(count);
        parts.push(Some((tensor.clone(), size)));
    }
    let mut out = Vec::new();
    for n in 0..calls.unwrap_or(1) {
        let mut call = Vec::with_capacity(all.len());
        for (input, part) in all.iter().zip(&parts) {
            call.push(match part {
                None => input.clone(),
                Some((tensor, size)) => {
                    let length = (*size).min(tensor.sizes()[0] - n * size);
                    tensor.narrow(0, n * size, length)?.contiguous()?.into()
                }
            });
        }
        out.push(call);
    }
    Ok(out)
}
