//! `xtask kernels`: compiles every GPU kernel that golden cases need to machine code, without a GPU.
//!
//! NVRTC is enough for that (`pip install nvidia-cuda-nvrtc`; its folder in `CUDA_PATH`). What a kernel computes is not
//! looked at here; that needs a device.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
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
    #[arg(long, value_delimiter = ',', default_value = "sm_80,sm_90,sm_100")]
    arch: Vec<String>,
    /// Only cases whose name this regular expression finds.
    #[arg(long, value_name = "REGEX")]
    only: Option<String>,
    /// Prints the texts, without the prelude, and compiles nothing.
    #[arg(long)]
    print: bool,
}

/// Compiles; `false` where a kernel is refused.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let only = args.only.as_deref().map(regex::Regex::new).transpose()?;
    let mut cases = corpus::find(&args.paths, &[Kind::Forward, Kind::Model, Kind::Dynamic])?;
    cases.retain(|case| only.as_ref().is_none_or(|only| only.is_match(&case.case)));
    let mut loader = corpus::Loader::default();
    // Equal modules of several cases are compiled once.
    let mut modules: BTreeMap<String, (String, Module)> = BTreeMap::new();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    for case in &cases {
        let program = match loader.program(case) {
            Ok(program) => ferroflux::Program::from(program),
            Err(_) => continue,
        };
        // What does not compile to kernel-ir is counted by `xtask corpus`.
        let Ok(kernels) = program.kernels() else { continue };
        match gpu_runtime::modules(&kernels, &Target::HOPPER) {
            Ok(list) => {
                let named = list.into_iter().map(|m| (m.source.clone(), (case.case.clone(), m)));
                modules.extend(named);
            }
            Err(error) => *refused.entry(error.to_string()).or_default() += 1,
        }
    }
    for (reason, count) in &refused {
        println!("{count:6}  {reason}");
    }
    if args.print {
        for (case, module) in modules.values() {
            println!("// {case}\n{}", module.source.trim_start_matches(gpu_codegen::PRELUDE));
        }
        return Ok(true);
    }
    let wanted: Vec<_> = args.arch.iter().flat_map(|arch| modules.values().map(move |m| (arch, m))).collect();
    let refusal = |(arch, (case, module)): &(&String, &(String, Module))| {
        backend_cuda::compile(module, arch).err().map(|error| format!("{arch} {case}: {error}"))
    };
    let refusals: Vec<String> = wanted.par_iter().filter_map(refusal).collect();
    refusals.iter().for_each(|text| println!("{text}"));
    let failed = refusals.len();
    println!(
        "{} cases, {} modules, {} architectures, {failed} failed",
        cases.len(),
        modules.len(),
        args.arch.len()
    );
    Ok(failed == 0)
}
