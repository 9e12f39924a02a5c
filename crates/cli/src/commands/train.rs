//! `ferroflux train`: a model that returns its loss, trained on data from a file.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferroflux::Program;
use ferroflux::mesh::BatchNorm;
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::train::TrainStep;
use serde_json::json;

use crate::compare::Accuracy;
use crate::inputs::{Set, SetArgs};
use crate::mesh::{MeshArgs, Rank, is_first};
use crate::model::{self, Model};
use crate::options::{BackendArgs, Global, WeightArgs};
use crate::progress::Progress;
use crate::report::{advised, usage};
use crate::training::checkpoint::{self, Checkpoint};
use crate::training::data::Data;
use crate::training::display::Display;
use crate::training::schedule::{self, Rates};
use crate::training::step::StepArgs;
use crate::training::{evaluate, plot};
use crate::{files, show};

/// Arguments of `train`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model, exported in train mode so that it returns its loss: a `.pt2` archive, or a `.zip` with one.
    model: PathBuf,
    /// Safetensors file with the data: a tensor for each input of the model, samples along the first dimension.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// What the names of the training data begin with, for example `train_`.
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    #[command(flatten)]
    set: SetArgs,
    #[command(flatten)]
    what: StepArgs,
    #[command(flatten)]
    rate: RateArgs,
    /// How often every sample is seen.
    #[arg(long, default_value_t = 1)]
    epochs: u64,
    /// Stops after this many steps instead.
    #[arg(long, value_name = "N", conflicts_with = "epochs")]
    steps: Option<u64>,
    /// Samples of a step, where the model was exported with a dynamic batch.
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Takes the samples of every epoch in another order.
    #[arg(long)]
    shuffle: bool,
    /// Fixes the order of the samples and the random numbers of the model.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder for checkpoints: written at the end, at Ctrl-C and every so often.
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Steps between checkpoints; an epoch where not given.
    #[arg(long, value_name = "N", requires = "checkpoint")]
    checkpoint_every: Option<u64>,
    /// How many checkpoints are kept.
    #[arg(long, value_name = "N", default_value_t = 3)]
    keep: usize,
    /// Goes on from the newest checkpoint that can be read; with `if-any` begins where there is none yet, as the command of a
    /// launcher that restarts it wants.
    #[arg(long, requires = "checkpoint", value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    resume: Option<Resume>,
    /// Writes the trained weights.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Draws the losses; DIR/loss.svg where checkpoints are written.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    evaluation: EvaluationArgs,
    #[command(flatten)]
    weights: WeightArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    mesh: MeshArgs,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// How fast a step learns.
#[derive(clap::Args)]
struct RateArgs {
    /// Learning rate.
    #[arg(long)]
    lr: f64,
    /// Learning-rate schedule: constant, step:size=N, multi-step:at=N/N, exponential:gamma=G, cosine, one-cycle,
    /// polynomial, plateau; settings follow as NAME=VALUE,….
    #[arg(long, default_value = "constant")]
    schedule: String,
    /// Steps during which the rate climbs to where the schedule begins.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    warmup: u64,
}

/// What is done with the trained weights at the end.
#[derive(clap::Args)]
struct EvaluationArgs {
    /// An inference model with the same weights, run on held-out data at the end.
    #[arg(long = "eval", value_name = "MODEL", requires = "accuracy")]
    eval: Option<PathBuf>,
    /// The labels [N] of the held-out data: accuracy of the class scores [N, C].
    #[arg(long, value_name = "LABEL", requires = "eval")]
    accuracy: Option<String>,
    /// What the names of the held-out data begin with.
    #[arg(long = "eval-prefix", value_name = "PREFIX", default_value = "", hide_default_value = true)]
    eval_prefix: String,
    /// The held-out data, where it is in another file.
    #[arg(long = "eval-data", value_name = "FILE", requires = "eval")]
    eval_data: Option<PathBuf>,
}

impl RateArgs {
    fn check(&self) -> Result<()> {
        if self.lr.is_finite() && self.lr >= 0.0 {
            return Ok(());
        }
        Err(usage(format!("a learning rate of {} makes no sense", self.lr), "give `--lr` at least 0"))
    }
}

/// When training goes on from a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Resume {
    /// Always: without one it is an error.
    Always,
    /// Where there is one.
    IfAny,
}

/// A training run in progress.
struct Run {
    step: TrainStep,
    data: Data,
    rates: Rates,
    lr: f64,
    losses: Vec<f64>,
    total: u64,
    /// The settings that a checkpoint must agree with.
    settings: BTreeMap<String, String>,
    compile: Duration,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, global: &Global, out: &mut dyn Write) -> Result<()> {
    args.mesh.on_ranks(&args.backend.backend, out, &|rank, out| as_rank(args, global, rank, out))
}

fn as_rank(args: &Args, global: &Global, rank: Rank<'_>, out: &mut dyn Write) -> Result<()> {
    for path in args.out.iter().chain(&args.plot) {
        files::check_writable(path)?;
    }
    let mut model = Model::open(&args.model)?;
    let file = args.data.as_deref().map(model::tensors).transpose()?;
    model.fill(&args.weights, file.as_ref())?;
    let file = file.or_else(|| model.golden.take());
    let file =
        file.ok_or_else(|| usage("there is no data to train on", "give it as `--data FILE.safetensors`"))?;
    let judge = args.evaluation.eval.as_deref().map(Model::open).transpose()?.map(|m| m.program);
    let infos = [model.program.inputs(), judge.as_ref().map_or(Vec::new(), Program::inputs)];
    let set = args.set.of_several(&[&infos[0], &infos[1]])?;
    let mut run = prepare(args, (global, rank), &model, &file, &set)?;
    let begins =
        || args.resume == Some(Resume::IfAny) && args.checkpoint.as_deref().is_none_or(checkpoint::is_none);
    if args.resume.is_some() && !begins() {
        resume(args, &mut run)?;
    }
    let begin = (run.losses.len(), Instant::now());
    let finished = train(args, &mut run, rank)?;
    let seconds = begin.1.elapsed().as_secs_f64();
    let samples = ((run.losses.len() - begin.0) * run.data.batch) as f64;
    if let Some(path) = &args.out {
        // Every rank has a part of them.
        let weights = SafetensorsFile { tensors: run.step.weights()?, ..SafetensorsFile::default() };
        if is_first(rank) {
            weights.write(path).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    let plot = args.plot.clone().or_else(|| Some(args.checkpoint.as_ref()?.join("loss.svg")));
    if let Some(path) = plot.as_ref().filter(|_| is_first(rank)) {
        files::write(path, plot::losses(&model.name, &run.losses).as_bytes())?;
    }
    let accuracy = if finished { evaluated(args, global, &run, judge, (&file, &set))? } else { None };
    report(args, &model, &run, Speed { seconds, rate: samples / seconds.max(1e-9) }, accuracy.as_ref(), out)?;
    if finished {
        return Ok(());
    }
    let how = match &args.checkpoint {
        Some(folder) => format!("the same command with `--resume` goes on from {}", folder.display()),
        None => "give `--checkpoint DIR`, and the next run can be resumed".to_owned(),
    };
    Err(advised(format!("stopped after step {} of {}", run.losses.len(), run.total), how))
}

fn prepare(
    args: &Args,
    (global, rank): (&Global, Rank<'_>),
    model: &Model,
    file: &SafetensorsFile,
    set: &Set<'_>,
) -> Result<Run> {
    let shuffle = args.shuffle.then_some(args.seed);
    let data = Data::new(&model.program.inputs(), file, (&args.prefix, set), args.batch_size, shuffle)?;
    let total = args.steps.unwrap_or_else(|| data.steps(args.epochs));
    let rates = schedule::parse(&args.rate.schedule, total, args.rate.warmup)?;
    let train = args.what.options()?;
    args.rate.check()?;
    let options = args.mesh.options(args.backend.options(global).seed(args.seed), rank)?;
    let start = Instant::now();
    let step = {
        let _progress = Progress::start(format!("{}: compiling", model.name));
        let failed =
            || format!("cannot compile `{}` with the backend `{}`", model.name, options.backend_name());
        model.program.train_step(&train, &options).with_context(failed)?
    };
    let about = [
        ("optimizer", format!("{:?}", args.what.optimizer()?)),
        ("clip", format!("{:?}", args.what.clip()?)),
        ("lr", args.rate.lr.to_string()),
        ("schedule", format!("{} warmup {}", args.rate.schedule, args.rate.warmup)),
        ("autocast", format!("{:?}", args.what.autocast)),
        ("data", format!("{} samples, {} a step, shuffled {:?}", data.len, data.batch, shuffle)),
        (BATCH_NORM, args.mesh.batch_norm()?.to_string()),
    ];
    let settings = about.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    let (lr, losses, compile) = (args.rate.lr, Vec::new(), start.elapsed());
    Ok(Run { step, data, rates, lr, losses, total, settings, compile })
}

fn folder(args: &Args) -> Result<&std::path::Path> {
    args.checkpoint
        .as_deref()
        .ok_or_else(|| usage("there is no folder for checkpoints", "give `--checkpoint DIR`"))
}

/// The setting that says whose statistics batch norms have. Checkpoints of versions without it have those of the whole batch.
const BATCH_NORM: &str = "batch norm";

/// Restores the newest checkpoint, which must be of the same training.
fn resume(args: &Args, run: &mut Run) -> Result<()> {
    let found = Checkpoint::newest(folder(args)?, &|text| eprintln!("warning: {text}"))?;
    let whole = BatchNorm::default().to_string();
    for (name, wanted) in &run.settings {
        let missing = if name == BATCH_NORM { whole.as_str() } else { "unknown" };
        let held = found.settings.get(name).map_or(missing, String::as_str);
        if held != wanted {
            return Err(advised(
                format!("the checkpoint was made with another {name}: {held}; now it is {wanted}"),
                "give the same settings again, or leave `--resume` out",
            ));
        }
    }
    run.step.restore_parts(&found.parts)?;
    if let Rates::Plateau(plateau) = &mut run.rates {
        let memory = found.settings.get("plateau").and_then(|text| serde_json::from_str(text).ok());
        plateau.restore(memory.ok_or_else(|| advised("the checkpoint has no state of the schedule", ""))?);
    }
    run.losses = found.losses;
    Ok(())
}

fn write_checkpoint(args: &Args, run: &Run, rank: Rank<'_>) -> Result<Option<PathBuf>> {
    let Some(folder) = &args.checkpoint else { return Ok(None) };
    let mut settings = run.settings.clone();
    if let Rates::Plateau(plateau) = &run.rates {
        // `best` is infinite before the first look, which JSON has no number for.
        let memory = plateau.memory().map(|x| if x.is_finite() { x } else { f64::MAX });
        settings.insert("plateau".into(), serde_json::to_string(&memory)?);
    }
    let parts = vec![run.step.snapshot_part()?];
    Checkpoint { parts, losses: run.losses.clone(), settings }.write(folder, args.keep, rank)
}

/// Trains to the end or until Ctrl-C; returns whether it reached the end.
fn train(args: &Args, run: &mut Run, rank: Rank<'_>) -> Result<bool> {
    static STOP: AtomicBool = AtomicBool::new(false);
    // The second Ctrl-C does not wait for the step. If no handler can be set, Ctrl-C ends the process at once.
    let _ = ctrlc::set_handler(|| {
        if STOP.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    });
    let epoch = run.data.steps(1).max(1);
    let every = args.checkpoint_every.unwrap_or(epoch).max(1);
    let mut display = Display::new(run.losses.len() as u64, run.total, run.data.batch, is_first(rank));
    while (run.losses.len() as u64) < run.total && !STOP.load(Ordering::SeqCst) {
        let n = run.losses.len() as u64;
        let batch = run.data.batch(n)?;
        let lr = run.rates.rate(run.lr, n);
        let outcome = run.step.step_with(&batch, lr).with_context(|| format!("step {n}"))?;
        if outcome.skipped {
            display.say(&format!("step {n}: a gradient is not finite, the update is left out"));
        }
        run.losses.push(outcome.loss);
        let done = n + 1;
        display.step(done, outcome.loss, lr);
        if let (Rates::Plateau(plateau), 0) = (&mut run.rates, done % epoch) {
            let losses = &run.losses[(done - epoch) as usize..];
            plateau.look(losses.iter().sum::<f64>() / epoch as f64);
        }
        if done.is_multiple_of(every) && done < run.total {
            write_checkpoint(args, run, rank)?;
        }
    }
    if let Some(path) = write_checkpoint(args, run, rank)? {
        display.say(&format!("checkpoint {}", path.display()));
    }
    Ok(run.losses.len() as u64 >= run.total)
}

/// The accuracy of the model to evaluate, where there is one, with the trained weights.
fn evaluated(
    args: &Args,
    global: &Global,
    run: &Run,
    judge: Option<Program>,
    (data, set): (&SafetensorsFile, &Set<'_>),
) -> Result<Option<Accuracy>> {
    let (Some(program), Some(label)) = (judge, &args.evaluation.accuracy) else {
        return Ok(None);
    };
    let own = args.evaluation.eval_data.as_deref().map(model::tensors).transpose()?;
    let program = evaluate::with_weights(program, &run.step.weights()?)?;
    let options = args.backend.options(global);
    let held = own.as_ref().unwrap_or(data);
    evaluate::accuracy(&program, &options, held, (&args.evaluation.eval_prefix, set), label).map(Some)
}

/// The speed of the run.
struct Speed {
    seconds: f64,
    rate: f64,
}

fn report(
    args: &Args,
    model: &Model,
    run: &Run,
    speed: Speed,
    accuracy: Option<&Accuracy>,
    out: &mut dyn Write,
) -> Result<()> {
    let kernels = run.step.kernels().map(|k| k.steps.len());
    let last = run.losses.last().copied().unwrap_or(f64::NAN);
    if args.json {
        let object = json!({
            "model": model.name,
            "backend": args.backend.backend,
            "optimizer": run.settings["optimizer"],
            "steps": run.losses.len(),
            "batch": run.data.batch,
            "losses": run.losses,
            "loss": if last.is_finite() { json!(last) } else { json!(last.to_string()) },
            "accuracy": accuracy,
            "kernels": kernels,
            "compile_ms": show::rounded(show::millis(run.compile), 3),
            "seconds": show::rounded(speed.seconds, 3),
            "samples_per_second": show::rounded(speed.rate, 1),
        });
        writeln!(out, "{object}")?;
        return Ok(());
    }
    let first = run.losses.first().copied().unwrap_or(f64::NAN);
    writeln!(out, "{} steps: loss {} to {}", run.losses.len(), show::number(first), show::number(last))?;
    if let Some(a) = accuracy {
        writeln!(out, "accuracy {:.4} ({} of {})", a.accuracy, a.correct, a.total)?;
    }
    let kernels = kernels.map_or(String::new(), |n| format!(", {} a step", show::count(n, "kernel")));
    let (compile, rate) = (show::time(run.compile), show::number(speed.rate));
    writeln!(out, "compiled {compile}{kernels}, trained {:.2} s, {rate} samples/s", speed.seconds)?;
    for (what, path) in [("weights", &args.out), ("losses", &args.plot)] {
        if let Some(path) = path {
            writeln!(out, "{what} written to {}", path.display())?;
        }
    }
    Ok(())
}
