//! `xtask compare`: this project next to PyTorch on the same archives, inputs and threads.
//!
//! Both sides are measured in turn in one run (ours, theirs, ours, theirs), a process each, so that a machine that gets
//! slower or faster meanwhile does so for both. Only ratios from one run mean something; the page that quotes them names
//! the machine (`machine`). The peer is a script that prints one JSON object per model and mode; see `table` for what is
//! printed.

mod machine;
mod measure;
mod table;

pub(crate) use table::geometric_mean;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use self::measure::{Peer, Setup};
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
    /// A Python with PyTorch, numpy and safetensors.
    #[arg(long, value_name = "PY")]
    python: PathBuf,
    /// Cases (zip files as the corpus has them); the main models of the corpus next to the project where none is given.
    cases: Vec<PathBuf>,
    /// Measures forward and backward: a loss and its gradients with respect to all parameters.
    #[arg(long)]
    train: bool,
    /// The script that measures PyTorch.
    #[arg(long, value_name = "FILE", default_value = "../shared/peers/torch_cpu.py")]
    peer: PathBuf,
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

/// Compares; `false` where a model could not be measured on both sides.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = root()?;
    let models: &[&str] = if args.train { &TRAINING } else { &MODELS };
    let beside = || models.iter().map(|model| root.join("../shared/corpus").join(model)).collect();
    let cases: Vec<PathBuf> = if args.cases.is_empty() { beside() } else { args.cases.clone() };
    for file in cases.iter().chain([&args.peer]) {
        if !file.exists() {
            bail!("{} is not there", file.display());
        }
    }
    let threads = args.threads.unwrap_or_else(machine::cores);
    let cache = root.join("target/compare/inductor-cache");
    // Of the compiler's first call the first round is quoted: it must not find what an earlier run left.
    if cache.exists() {
        std::fs::remove_dir_all(&cache).with_context(|| cache.display().to_string())?;
    }
    std::fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let setup = Setup {
        command: measure::build(&root)?,
        peer: Peer { python: args.python.clone(), script: args.peer.clone(), cache },
        seconds: args.seconds,
        threads,
        train: args.train,
    };
    let mut rows = Vec::new();
    for case in &cases {
        rows.push(measure::model(&setup, case, args.rounds));
    }
    let machine = machine::describe(&args.python, threads);
    if let Some(path) = &args.json {
        table::write_json(path, &rows, &machine)?;
    }
    println!("{machine}{}", if args.train { "; forward and backward" } else { "" });
    println!();
    print!("{}", table::markdown(&rows));
    Ok(rows.iter().all(|row| row.problem.is_none()))
}
