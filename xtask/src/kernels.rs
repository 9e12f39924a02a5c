//! `xtask kernels`: compiles every GPU kernel that golden cases need to machine code, without a GPU.
//!
//! NVRTC is enough for that (`pip install nvidia-cuda-nvrtc`; its folder in `CUDA_PATH`). What a kernel computes is not
//! looked at here; that needs a device.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, bail};
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
    let targets: Vec<(&str, Target)> =
        args.arch.iter().map(|arch| Ok((arch.as_str(), target(arch)?))).collect::<Result<_>>()?;
    // Equal modules of several cases are compiled once.
    let mut modules: BTreeMap<(&str, String), (String, Module)> = BTreeMap::new();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    for case in &cases {
        let program = match loader.program(case) {
            Ok(program) => ferroflux::Program::from(program),
            Err(_) => continue,
        };
        // What does not compile to kernel-ir is counted by `xtask corpus`.
        let Ok(kernels) = program.kernels() else { continue };
        for (arch, target) in &targets {
            match gpu_runtime::modules(&kernels, target) {
                Ok(list) => {
                    let named = list.into_iter().map(|m| ((*arch, m.source.clone()), (case.case.clone(), m)));
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
            println!("// {case}\n{}", module.source.trim_start_matches(gpu_codegen::PRELUDE));
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

/// A card of an architecture as `sm_90`, with the shared memory of a block that CUDA's table of compute capabilities gives it.
fn target(arch: &str) -> Result<Target> {
    let number = arch.strip_prefix("sm_").map(|n| n.trim_end_matches(['a', 'f']).parse());
    let Some(Ok(architecture)) = number else { bail!("{arch}: an architecture is named as `sm_90`") };
    let kibibytes = match architecture {
        80 | 87 => 163,
        90..120 => 227,
        _ => 99,
    };
    // What only the card itself has (`wgmma`) is in code for the card itself.
    let tensor_maps = arch == "sm_90a";
    Ok(Target { architecture, shared_memory: kibibytes * 1024, tensor_maps, ..Target::HOPPER })
}

#[cfg(test)]
mod tests {
    #[test]
    fn architectures_are_known_by_name() {
        assert_eq!(super::target("sm_80").unwrap().architecture, 80);
        assert_eq!(super::target("sm_90a").unwrap().shared_memory, 227 * 1024);
        assert!(super::target("sm_90a").unwrap().tensor_maps && !super::target("sm_90").unwrap().tensor_maps);
        assert!(super::target("90").is_err() && super::target("sm_x").is_err());
    }
}
