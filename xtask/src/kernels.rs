//! `xtask kernels`: compiles every GPU kernel of golden cases to machine code, without a GPU.
//!
//! This needs only NVRTC (`pip install nvidia-cuda-nvrtc`; its folder in `CUDA_PATH`). Both halves of gradients are
//! compiled, and whole steps of training cases. What a kernel computes is not tested here; that needs a device.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use ferroflux::Options;
use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::train::{DiffOptions, TrainOptions, Wrt};
use gpu_codegen::Target;
use gpu_runtime::Module;
use rayon::prelude::*;

use crate::corpus::{self, Kind};

/// Arguments of `xtask kernels`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Zip files, archives or folders with cases.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Architectures to compile for.
    #[arg(long, value_delimiter = ',', default_value = "sm_80,sm_90a,sm_100")]
    arch: Vec<String>,
    /// Only cases whose names match this regular expression.
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Kinds of cases; all where none is given.
    #[arg(long, value_enum, value_delimiter = ',')]
    kind: Vec<Kind>,
    /// Prints the texts without compiling.
    #[arg(long)]
    print: bool,
    /// Prints the helpers of each module too.
    #[arg(long, requires = "print")]
    helpers: bool,
}

/// Compiles; `false` where a kernel is rejected.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let only = args.only.as_deref().map(regex::Regex::new).transpose()?;
    let kinds = if args.kind.is_empty() { Kind::value_variants() } else { &args.kind };
    let mut cases = corpus::find(&args.paths, kinds)?;
    cases.retain(|case| only.as_ref().is_none_or(|only| only.is_match(&case.case)));
    let mut loader = corpus::Loader::default();
    let targets: Vec<(&str, Target)> =
        args.arch.iter().map(|arch| Ok((arch.as_str(), target(arch)?))).collect::<Result<_>>()?;
    // Modules that several cases share are compiled once.
    let mut modules: BTreeMap<(&str, String), (String, Module)> = BTreeMap::new();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    for case in &cases {
        // `xtask corpus` counts what does not compile to kernel-ir.
        let Ok(programs) = programs(&mut loader, case) else { continue };
        for ((arch, target), program) in targets.iter().flat_map(|t| programs.iter().map(move |p| (t, p))) {
            match gpu_runtime::modules(program, target) {
                Ok(list) => {
                    let named =
                        list.into_iter().map(|m| ((*arch, m.kernels.clone()), (case.case.clone(), m)));
                    modules.extend(named);
                }
                Err(error) => *refused.entry(error.to_string()).or_default() += 1,
            }
        }
    }
    for (reason, count) in &refused {
        println!("{count:6}  {reason}");
    }
    if args.print {
        for (case, module) in modules.values() {
            let helpers = if args.helpers { module.prelude.as_str() } else { "" };
            println!("// {case}\n{helpers}{}", module.kernels);
        }
        return Ok(true);
    }
    let wanted: Vec<_> = modules.iter().collect();
    let refusal = |((arch, _), (case, module)): &(&(&str, String), &(String, Module))| {
        backend_cuda::compile(module, arch).err().map(|error| format!("{arch} {case}: {error}"))
    };
    let refusals: Vec<String> = wanted.par_iter().filter_map(refusal).collect();
    refusals.iter().for_each(|text| println!("{text}"));
    let failed = refusals.len();
    println!("{} cases, {} modules, {failed} failed", cases.len(), modules.len());
    Ok(failed == 0)
}

/// The programs of a case. Training cases are compiled for the CPU: programs do not depend on the device.
fn programs(loader: &mut corpus::Loader, case: &corpus::Case) -> Result<Vec<kernel_ir::Program>> {
    let differentiation = match case.kind {
        Kind::Forward | Kind::Model | Kind::Dynamic => {
            return Ok(vec![ferroflux::Program::from(loader.program(case)?).kernels()?]);
        }
        Kind::Gradient => DiffOptions::new().wrt(Wrt::Inputs).tangents(),
        Kind::Train => DiffOptions::new(),
    };
    let program = ferroflux::Program::from(loader.load(case)?.program);
    let options = Options::new().backend("cpu");
    let halves = program.differentiate(&differentiation, &options)?;
    let mut all: Vec<_> = halves.kernels().into_iter().flat_map(|(f, b)| [f.clone(), b.clone()]).collect();
    if case.kind == Kind::Train {
        let train = TrainOptions::new(Optimizer::Sgd(Sgd::default()));
        all.extend(program.train_step(&train, &options)?.kernels().cloned());
    }
    Ok(all)
}

fn target(arch: &str) -> Result<Target> {
    backend_cuda::target_of(arch).with_context(|| format!("{arch}: an architecture is named as `sm_90`"))
}
