//! `xtask kernels`: compiles every GPU kernel of golden cases, or of archives without goldens, to machine code, without a GPU.
//!
//! For NVIDIA's cards NVRTC is enough for that (`pip install nvidia-cuda-nvrtc`; its folder in `CUDA_PATH`), for AMD's clang 19
//! or later (`apt-get install clang-19 lld-19`), which is also asked what registers kernels use: products and attention by matrix
//! cores must have their instructions and spill nothing. Of gradients both halves are compiled, of training cases a whole step
//! too. What a kernel computes is not looked at here; that needs a device.

pub(crate) mod clang;
mod costs;
mod inner_loop;
pub(crate) mod page;
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use backend_rocm::Clang;
use clap::ValueEnum as _;
use ferroflux::Options;
use ferroflux::optim::{Optimizer, Sgd};
use ferroflux::train::{DiffOptions, TrainOptions, Wrt};
use gpu_codegen::{Dialect, Target};
use gpu_runtime::{Mode, Module};
use rayon::prelude::*;
use testing::cases::Cases;

use crate::corpus::{self, Kind};

/// Arguments of `xtask kernels`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Zip files, archives, graphs as text (`.fx`) or folders with cases.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Architectures to compile for: `sm_90a`, `gfx942`.
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
    /// Compiles each kernel that NVIDIA's GPUs run in `reduce-overhead` without libraries by itself, one after another, and prints the
    /// seconds that it took.
    #[arg(long, conflicts_with = "print")]
    times: bool,
    /// Prints what the cost model of the architecture says of the candidates of products and convolutions, without compiling.
    #[arg(long, conflicts_with_all = ["print", "times"])]
    costs: bool,
}

/// Compiles; `false` where a kernel is rejected.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let only = args.only.as_deref().map(regex::Regex::new).transpose()?;
    let kinds = if args.kind.is_empty() { Kind::value_variants() } else { &args.kind };
    let without_graphs: Vec<PathBuf> = args.paths.iter().filter(|path| !is_graph(path)).cloned().collect();
    let mut cases = corpus::find(&without_graphs, kinds)?;
    cases.retain(|case| only.as_ref().is_none_or(|only| only.is_match(&case.case)));
    let mut loader = corpus::Loader::default();
    let targets: Vec<(&str, Target)> =
        args.arch.iter().map(|arch| Ok((arch.as_str(), target(arch)?))).collect::<Result<_>>()?;
    // Modules that several cases share are compiled once.
    let mut modules: BTreeMap<(&str, String), (String, Module)> = BTreeMap::new();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    // `xtask corpus` counts what does not compile to kernel-ir.
    let golden = cases.iter().filter_map(|case| Some((case.case.clone(), programs(&mut loader, case).ok()?)));
    let mut archives = Vec::new();
    for path in &args.paths {
        archives.extend(archive(path)?.filter(|(name, _)| only.as_ref().is_none_or(|o| o.is_match(name))));
    }
    let count = cases.len() + archives.len();
    for (case, programs) in golden.chain(archives) {
        for ((arch, target), program) in targets.iter().flat_map(|t| programs.iter().map(move |p| (t, p))) {
            if args.costs {
                costs::print(&case, program, target, arch);
                continue;
            }
            let list = match args.times {
                true => gpu_runtime::single_kernels(program, target, Mode::ReduceOverhead),
                false => gpu_runtime::modules(program, target),
            };
            match list {
                Ok(list) => {
                    let named = list.into_iter().map(|m| ((*arch, m.kernels.clone()), (case.clone(), m)));
                    modules.extend(named);
                }
                Err(error) => *refused.entry(error.to_string()).or_default() += 1,
            }
        }
    }
    for (reason, count) in &refused {
        println!("{count:6}  {reason}");
    }
    if args.costs {
        return Ok(true);
    }
    if args.print {
        print(modules.values(), args.helpers);
        return Ok(true);
    }
    if args.times {
        return times(&modules);
    }
    let failed = compile(&targets, &modules)?;
    println!("{count} cases, {} modules, {failed} failed", modules.len());
    Ok(failed == 0)
}

/// Prints the texts of modules with the cases that they are of.
fn print<'a>(modules: impl Iterator<Item = &'a (String, Module)>, helpers: bool) {
    for (case, module) in modules {
        let helpers = if helpers { module.prelude.as_str() } else { "" };
        println!("// {case}\n{helpers}{}", module.kernels);
    }
}

/// Compiles all modules, prints what is rejected and how many of each architecture are, and returns the number of those rejected.
fn compile(
    targets: &[(&str, Target)],
    modules: &BTreeMap<(&str, String), (String, Module)>,
) -> Result<usize> {
    let amd = targets.iter().any(|(_, target)| target.dialect == Dialect::HIP);
    let clang = if amd { Some(Clang::find()?) } else { None };
    let wanted: Vec<_> = modules.iter().collect();
    let refusal = |((arch, _), (case, module)): &(&(&str, String), &(String, Module))| {
        let said = match &clang {
            Some(clang) if arch.starts_with("gfx") => amd_refusal(clang, module, arch),
            _ => backend_cuda::compile(module, arch).err().map(|error| error.to_string()),
        };
        said.map(|error| format!("{arch} {case}: {error}"))
    };
    let refusals: Vec<String> = wanted.par_iter().filter_map(refusal).collect();
    refusals.iter().for_each(|text| println!("{text}"));
    for (arch, _) in targets {
        let all = modules.keys().filter(|(of, _)| of == arch).count();
        let failed = refusals.iter().filter(|text| text.starts_with(&format!("{arch} "))).count();
        println!("{arch}: {all} modules, {failed} failed");
    }
    Ok(refusals.len())
}

/// Whether a path is that of a graph as text.
fn is_graph(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "fx")
}

/// An archive without goldens, or a graph, and what it compiles to: a training step where it returns a loss. `None` for folders, files of
/// golden cases, and files that are not there.
fn archive(path: &Path) -> Result<Option<(String, Vec<kernel_ir::Program>)>> {
    let graph = is_graph(path);
    if !path.is_file() || !graph && !corpus::find(&[path.to_owned()], Kind::value_variants())?.is_empty() {
        return Ok(None);
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let program = match path.extension().is_some_and(|e| e == "zip") {
        _ if graph => ferroflux::minify::Case::read(path)?.program()?,
        true => ferroflux::Program::from_bytes(Cases::open(path)?.archive(&name)?)?,
        false => ferroflux::Program::load(path)?,
    };
    let kernels = match program.trains() {
        true => program.step_kernels(&TrainOptions::new(Optimizer::Sgd(Sgd::default())))?,
        false => program.kernels()?,
    };
    Ok(Some((name, vec![kernels])))
}

/// Prints how long each kernel takes to compile, the slowest first; `false` where one is rejected.
fn times(modules: &BTreeMap<(&str, String), (String, Module)>) -> Result<bool> {
    if let Some((arch, _)) = modules.keys().find(|(arch, _)| arch.starts_with("gfx")) {
        anyhow::bail!("{arch}: only the time of NVIDIA's compiler is measured; name another --arch");
    }
    // The first compilation loads the compiler.
    if let Some(((arch, _), (_, module))) = modules.first_key_value() {
        let _ = backend_cuda::compile(module, arch);
    }
    let (mut rows, mut failed) = (Vec::new(), false);
    for ((arch, text), (case, module)) in modules {
        let start = Instant::now();
        let code = match backend_cuda::compile(module, arch) {
            Ok(code) => code,
            Err(error) => {
                println!("{arch} {case}: {error}");
                failed = true;
                continue;
            }
        };
        rows.push((
            start.elapsed().as_secs_f64(),
            code.len(),
            text.len(),
            format!("{arch} {case} {}", module.entries.join(" ")),
        ));
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (seconds, code, text, name) in &rows {
        println!("{seconds:.3} s {code:>8} bytes of code {text:>6} characters  {name}");
    }
    println!("{:.3} s in all, {} kernels", rows.iter().map(|r| r.0).sum::<f64>(), rows.len());
    Ok(!failed)
}

/// What is wrong with a module for an AMD GPU; `None` where nothing is.
fn amd_refusal(compiler: &Clang, module: &Module, arch: &str) -> Option<String> {
    let usages = match clang::usages(compiler, module, arch) {
        Ok(usages) => usages,
        Err(error) => return Some(error.to_string()),
    };
    // Where one kernel ends the next one's bounds begin.
    for text in module.kernels.split("extern \"C\"") {
        // A sum over nothing multiplies nothing.
        let empty = text.contains("const int depth = (int)(0),");
        let by_cores = (text.contains("CoreProduct<") || text.contains("typedef Core<")) && !empty;
        let Some((entry, usage)) = usages.iter().find(|(entry, _)| text.contains(&format!(" {entry}(")))
        else {
            continue;
        };
        if by_cores && !usage.matrix() {
            return Some(format!("{entry} has no instruction of matrix cores"));
        }
        if by_cores && usage.scratch > 0 {
            return Some(format!("{entry} spills {} bytes a lane", usage.scratch));
        }
    }
    None
}

/// What a case compiles to. Halves of training are compiled for the CPU: a backend's programs are the same for every device.
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
        all.push(program.step_kernels(&train)?);
    }
    Ok(all)
}

fn target(arch: &str) -> Result<Target> {
    Target::of_architecture(arch)
        .with_context(|| format!("{arch}: architectures are named as `sm_90`, `gfx942`"))
}
