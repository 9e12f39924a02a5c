//! `ferroflux run`: a model on inputs from a file; prints, writes, compares the outputs.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ferroflux::fx_ir::{Arg, Graph, OutputKind};
use ferroflux::tensor::safetensors::SafetensorsFile;
use ferroflux::{Input, InputInfo, Options, Tensor};
use serde_json::{Value, json};

use crate::compare::{self, Accuracy, Agreement, ToleranceArgs};
use crate::inputs::{self, SetArgs};
use crate::mesh::{MeshArgs, Rank, is_first};
use crate::model::{self, Model};
use crate::options::{AutocastArgs, BackendArgs, Global, WeightArgs};
use crate::progress::Progress;
use crate::report::usage;
use crate::{files, show};

/// Arguments of `run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The model: a `.pt2` archive of `torch.export.save`, or a `.zip` of one with its inputs.
    model: PathBuf,
    /// Safetensors file with the inputs, by argument name or as in0, in1, …
    #[arg(long, value_name = "FILE")]
    inputs: Option<PathBuf>,
    #[command(flatten)]
    set: SetArgs,
    /// Safetensors file to write the outputs to, as out0, out1, …
    #[arg(long, value_name = "FILE")]
    outputs: Option<PathBuf>,
    /// Safetensors file with the expected outputs (out0, … or by name); a difference is a failure.
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Names of the expected tensors in the order of the outputs.
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "expect")]
    expect_names: Vec<String>,
    #[command(flatten)]
    tolerance: ToleranceArgs,
    /// What names in the inputs and expected files begin with, for example `s0.`.
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    /// Prints the accuracy of class scores [N, C] against these integer labels [N] of the inputs file.
    #[arg(long, value_name = "LABEL")]
    accuracy: Option<String>,
    #[command(flatten)]
    weights: WeightArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    mesh: MeshArgs,
    #[command(flatten)]
    autocast: AutocastArgs,
    /// Prints one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// How long each part took.
struct Times {
    read: Duration,
    compile: Duration,
    call: Duration,
}

/// What is printed.
struct Outcome {
    outputs: Vec<(String, Tensor)>,
    accuracy: Option<Accuracy>,
    times: Times,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args, global: &Global, out: &mut dyn Write) -> Result<()> {
    args.mesh.on_ranks(&args.backend.backend, out, &|rank, out| as_rank(args, global, rank, out))
}

fn as_rank(args: &Args, global: &Global, rank: Rank<'_>, out: &mut dyn Write) -> Result<()> {
    if let Some(path) = &args.outputs {
        files::check_writable(path)?;
    }
    let mut model = Model::open(&args.model)?;
    let given = given(args, &model)?;
    model.fill(&args.weights, given.as_ref())?;
    let given = given.or_else(|| model.golden.take()).unwrap_or_default();
    let expected = args.expect.as_deref().map(model::tensors).transpose()?;
    let infos = model.program.inputs();
    let inputs = inputs::from_file(&infos, &given, &args.prefix, &args.set.of(&infos)?)?;
    let options = args.mesh.options(args.autocast.on(args.backend.options(global)), rank)?;
    let (outputs, times) = execute(&model, &options, &inputs)?;
    if let Some(path) = args.outputs.as_ref().filter(|_| is_first(rank)) {
        write_outputs(path, &outputs)?;
    }
    let accuracy =
        args.accuracy.as_deref().map(|l| compare::accuracy(&outputs, &given, &format!("{}{l}", args.prefix)));
    let outcome = Outcome { outputs, accuracy: accuracy.transpose()?, times };
    let compared = expected
        .map(|f| compare::outputs(&outcome.outputs, &f, &args.expect_names, &args.prefix, &args.tolerance));
    let agreements = compared.as_ref().and_then(|c| c.as_ref().ok()).map(Vec::as_slice);
    // The outputs are shown even if they differ from the expected ones.
    match args.json {
        true => print_json(args, &model, &outcome, agreements, out)?,
        false => print_text(&outcome, agreements, out)?,
    }
    compared.transpose().map(drop)
}

/// The inputs file; a corpus case has its own, and a model without tensors among its inputs needs none.
fn given(args: &Args, model: &Model) -> Result<Option<SafetensorsFile>> {
    let infos = model.program.inputs();
    let wanted: Vec<&InputInfo> = infos.iter().filter(|i| i.meta().is_some()).collect();
    match &args.inputs {
        Some(path) => model::tensors(path).map(Some),
        None if model.golden.is_some() || wanted.is_empty() => Ok(None),
        None => {
            let wanted: Vec<String> = wanted.iter().map(|i| format!("{}: {}", i.name, i.kind)).collect();
            Err(usage(
                format!("the model takes inputs ({}), and no file gives them", wanted.join(", ")),
                "give a safetensors file with `--inputs FILE`, or measure with made-up inputs: `ferroflux bench`",
            ))
        }
    }
}

fn execute(model: &Model, options: &Options, inputs: &[Input]) -> Result<(Vec<(String, Tensor)>, Times)> {
    let failed =
        |what: &str| format!("cannot {what} `{}` with the backend `{}`", model.name, options.backend_name());
    let start = Instant::now();
    let compiled = {
        let _progress = Progress::start(format!("{}: compiling", model.name));
        model.program.compile(options).with_context(|| failed("compile"))?
    };
    let compile = start.elapsed();
    let start = Instant::now();
    let outputs = {
        let _progress = Progress::start(format!("{}: running", model.name));
        compiled.call_with(inputs).with_context(|| failed("run"))?
    };
    let times = Times { read: model.read, compile, call: start.elapsed() };
    Ok((output_names(model.program.graph()).into_iter().zip(outputs).collect(), times))
}

/// The graph's names of the tensors that it returns.
fn output_names(graph: &Graph) -> Vec<String> {
    let users = graph.outputs.iter().filter(|o| matches!(o.kind, OutputKind::User | OutputKind::Loss));
    let name = |o: &ferroflux::fx_ir::Output| match o.arg {
        Arg::Value(v) => graph.values.get(v).map(|v| v.name.clone()),
        // A number that the model returns is a tensor without dimensions.
        Arg::Int(_) | Arg::Scalar(_) => Some("number".into()),
        _ => None,
    };
    users.filter_map(name).collect()
}

fn write_outputs(path: &std::path::Path, outputs: &[(String, Tensor)]) -> Result<()> {
    let tensors = outputs.iter().enumerate().map(|(n, (_, t))| (format!("out{n}"), t.clone())).collect();
    let file = SafetensorsFile { tensors, ..SafetensorsFile::default() };
    file.write(path).with_context(|| format!("cannot write the outputs to {}", path.display()))
}

fn print_text(outcome: &Outcome, agreements: Option<&[Agreement]>, out: &mut dyn Write) -> Result<()> {
    for (n, (name, tensor)) in outcome.outputs.iter().enumerate() {
        writeln!(out, "out{n} ({name}): {}", show::tensor(tensor))?;
    }
    for a in agreements.unwrap_or_default() {
        let (found, atol) = (show::number(a.max_abs), show::number(a.atol));
        let rtol =
            if a.rtol > 0.0 { format!(" + {} of the value", show::number(a.rtol)) } else { String::new() };
        writeln!(
            out,
            "{} is as expected (`{}`): largest difference {found}, allowed {atol}{rtol}",
            a.output, a.expected
        )?;
    }
    if let Some(a) = &outcome.accuracy {
        writeln!(out, "accuracy {:.4} ({} of {})", a.accuracy, a.correct, a.total)?;
    }
    let Times { read, compile, call } = outcome.times;
    let (read, compile, call) = (show::time(read), show::time(compile), show::time(call));
    writeln!(out, "read {read}, compiled {compile}, ran {call}")?;
    Ok(())
}

fn print_json(
    args: &Args,
    model: &Model,
    outcome: &Outcome,
    agreements: Option<&[Agreement]>,
    out: &mut dyn Write,
) -> Result<()> {
    let values = |t: &Tensor| t.iter_f64().take(show::VALUES).map(finite).collect::<Vec<Value>>();
    let one = |(n, (name, t)): (usize, &(String, Tensor))| {
        json!({
            "name": format!("out{n}"), "value": name, "dtype": t.dtype().name(), "sizes": t.sizes(),
            "first": values(t),
        })
    };
    let ms = |t: Duration| show::rounded(show::millis(t), 3);
    let Times { read, compile, call } = outcome.times;
    let object = json!({
        "model": model.name,
        "backend": args.backend.backend,
        "mode": args.backend.mode.name(),
        "outputs": outcome.outputs.iter().enumerate().map(one).collect::<Vec<_>>(),
        "as_expected": agreements,
        "accuracy": outcome.accuracy,
        "read_ms": ms(read),
        "compile_ms": ms(compile),
        "run_ms": ms(call),
    });
    writeln!(out, "{object}")?;
    Ok(())
}

/// JSON has no NaN and no infinities; they become text.
fn finite(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string()) }
}
