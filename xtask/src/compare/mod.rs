//! `xtask compare`: this project next to PyTorch, ONNX Runtime and OpenVINO on the same archives, inputs and threads.
//!
//! All sides are measured in turn in one run (ours, theirs, ours, theirs), a process each, so that a machine that gets
//! slower or faster meanwhile does so for all. Only ratios from one run mean something; the page that quotes them names
//! the machine (`machine`). Peers are scripts that print one JSON object per model and mode; see `table` for what is
//! printed.

mod machine;
mod measure;
mod table;

pub(crate) use table::geometric_mean;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use self::measure::{Peer, Precision, Setup, Side};
use crate::root::root;

/// What is compared where no case is given, below `../shared/corpus`.
const MODELS: [&str; 9] = [
    "tv/resnet18.zip",
    "tv/resnet50.zip",
    "tv/resnet152.zip",
    "tv/vit_b_16.zip",
    "tv/mobilenet_v2.zip",
    "hf/BertForMaskedLM.zip",
    "hf/GPT2LMHeadModel.zip",
    "hf/LlamaForCausalLM.zip",
    "hf/T5ForConditionalGeneration.zip",
];

/// The same for `--train`.
const TRAINING: [&str; 3] = ["train/unet.zip", "train/resnet18_narrow.zip", "train/gpt2_tiny.zip"];

/// Arguments of `xtask compare`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A Python with PyTorch, numpy and safetensors, with torchao for int8, and with onnx, onnxscript, onnxruntime and openvino for these peers.
    #[arg(long, value_name = "PY")]
    python: PathBuf,
    /// Cases (zip files as the corpus has them); the main models of the corpus next to the project where none is given.
    cases: Vec<PathBuf>,
    /// Measures forward and backward: a loss and its gradients with respect to all parameters.
    #[arg(long)]
    train: bool,
    /// What is measured beside this project, in this order.
    #[arg(long, value_name = "PEER,…", value_delimiter = ',', default_values = ["eager", "inductor"])]
    peer: Vec<Side>,
    /// The dtype that is computed in: with bf16 this project runs `--autocast bf16`, and OpenVINO alone can be a peer; with int8 each side
    /// quantizes by its own tools (`ferroflux quantize`, torchao for `inductor`, ONNX Runtime's for itself and OpenVINO).
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Precision,
    /// The script that measures PyTorch; what reads cases lies beside it.
    #[arg(long, value_name = "FILE", default_value = "../shared/peers/torch_cpu.py")]
    torch_script: PathBuf,
    /// A built `ferroflux` to measure; a release build of this tree is made where not given.
    #[arg(long, value_name = "FILE")]
    command: Option<PathBuf>,
    /// Seconds that each side measures a model for, each round.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Threads of both sides; the number of cores where not given.
    #[arg(long)]
    threads: Option<usize>,
    /// How often the sides take turns.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Writes every measurement, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Refuses peers that cannot do what is asked for.
fn check(args: &Args) -> Result<()> {
    for side in &args.peer {
        if args.train && !side.is_torch() {
            bail!("{} does not train", side.name());
        }
        if args.dtype == Precision::Int8 && (args.train || *side == Side::Eager) {
            bail!("{} is not measured in int8, nor is training", side.name());
        }
        if args.dtype == Precision::Bf16 && *side != Side::OpenVino {
            bail!("{} is not measured in bf16: `--peer openvino`", side.name());
        }
    }
    Ok(())
}

/// Compares; `false` where a model could not be measured on all sides.
pub(crate) fn run(args: &Args) -> Result<bool> {
    check(args)?;
    let root = root()?;
    let models: &[&str] = if args.train { &TRAINING } else { &MODELS };
    let beside = || models.iter().map(|model| root.join("../shared/corpus").join(model)).collect();
    let cases: Vec<PathBuf> = if args.cases.is_empty() { beside() } else { args.cases.clone() };
    for file in cases.iter().chain([&args.torch_script]).chain(&args.command) {
        if !file.exists() {
            bail!("{} is not there", file.display());
        }
    }
    let threads = args.threads.unwrap_or_else(machine::cores);
    let cache = root.join("target/compare");
    let inductor = cache.join("inductor");
    // Of the compiler's first call the first round is quoted: it must not find what an earlier run left.
    if inductor.exists() {
        std::fs::remove_dir_all(&inductor).with_context(|| inductor.display().to_string())?;
    }
    std::fs::create_dir_all(&inductor).with_context(|| inductor.display().to_string())?;
    let peer = Peer {
        python: args.python.clone(),
        torch: args.torch_script.clone(),
        onnx: root.join("xtask/peers/onnx_cpu.py"),
        int8: root.join("xtask/peers/torch_int8.py"),
        cache,
    };
    let setup = Setup {
        command: args.command.clone().map_or_else(|| measure::build(&root), Ok)?,
        peer,
        seconds: args.seconds,
        threads,
        train: args.train,
        dtype: args.dtype,
        sides: [Side::Ferroflux].into_iter().chain(args.peer.iter().copied()).collect(),
    };
    let mut rows = Vec::new();
    for case in &cases {
        rows.push(measure::model(&setup, case, args.rounds));
    }
    let machine = machine::describe(&args.python, threads, &args.peer);
    if let Some(path) = &args.json {
        table::write_json(path, &rows, &machine)?;
    }
    let what = if args.train { "; forward and backward" } else { "" };
    let dtype = if args.dtype == Precision::F32 { String::new() } else { format!("; {}", args.dtype.name()) };
    println!("{machine}{what}{dtype}");
    println!();
    print!("{}", table::markdown(&rows, &args.peer));
    Ok(rows.iter().all(|row| row.problems.is_empty()))
}
