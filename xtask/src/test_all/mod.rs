//! `xtask test-all`: everything that must pass, in one command, with a table of durations at the end.
//!
//! Formatting, lints, tidy, packages, unit and integration tests, golden cases on each backend, changed archives, doc tests; where NVIDIA's run-time
//! compiler is there, GPU kernels of the golden cases are compiled, where clang is, a sample of those for AMD's GPUs; where a C++ compiler
//! is, some run as on these, with waves of 64 and of 32 lanes; where `FERROFLUX_PYTHON` names a Python with torch, the Python package;
//! where `FERROFLUX_MPI` says that there is an MPI, networks on meshes of processes;
//! where Chromium is installed, pages about programs are opened in it. Nothing here builds in
//! the release profile or needs more than the Rust toolchain and a C compiler (the linker). The larger corpus beside the
//! project is run where it is there: a sample, or all of it with `--full`. A step that fails shows its output and the
//! next one runs all the same. The last line is `N passed, N failed, N skipped`.

mod golden;

use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use backend_rocm::Clang;

use crate::root::{cargo, root};
use crate::{mpi, python};

/// Golden cases inside the project.
const GOLDENS: [&str; 2] = ["tests/data/corpus", "tests/data/models"];
/// The step that compiles generated kernels for architectures of NVIDIA's.
const GPU_KERNELS: &str = "GPU kernels";
/// What tests of pages about compiled programs do in a browser.
const PAGES: &str = "pages in a browser";
/// The larger corpus, which is optional.
const CORPUS: &str = "../shared/corpus";
/// The packages that are not published.
const UNPUBLISHED: [&str; 11] = [
    "broken",
    "ferroflux-cpu",
    "ferroflux-cuda",
    "ferroflux-python",
    "ferroflux-rocm",
    "gpu-emulator",
    "hip-standin",
    "models",
    "sentence-embeddings",
    "testing",
    "xtask",
];
/// The step that compiles them for architectures of AMD's, and its cases: kernels of every kind.
const AMD_KERNELS: &str = "AMD kernels";
const OF_AMD_KERNELS: &str = "^(addmm|argmax|bmm|cumsum|erfinv|index_add|lgamma|mm|pow|softmax|sort|std|topk|var)/(float32|bfloat16|int64)_0$\
    |^nn\\.functional\\.[a-z_]*(attention|conv2d|norm)[a-z_0-9]*/float32_0$|^models/resnet18$";
/// The step that runs generated kernels as a GPU with waves of 64 lanes would, and its cases: kernels of every kind that knows
/// waves, a network, and of the larger corpus a language model and a training step.
const WAVES: &str = "waves of 64";
/// The same of an architecture with waves of 32 that is AMD's.
const SHORT_WAVES: &str = "waves of 32";
const OF_WAVES: &str = "^(addmm|argmax|bmm|cumsum|index_add|mm|softmax|sort|std|sum|topk|var)/(float32|int64)_0$\
    |^nn\\.functional\\.[a-z_]*(attention|conv|norm)[a-z_0-9]*/float32_0$|^models/resnet18$|/BertForMaskedLM$|^train/mlp$";
const CORPUS_OF_WAVES: [&str; 2] = ["hf/BertForMaskedLM.zip", "train/mlp.zip"];
/// The step that runs the plugin of ROCm on a HIP runtime that is none, and its cases on two devices: operators of several families
/// with their gradients, a network and a training step on waves of 64 lanes; fewer on waves of 32, with the other schedule.
const ROCM: &str = "ROCm through its stand-in";
const OF_ROCM: [(&str, &str); 2] = [
    (
        "gfx942",
        "^(addmm|argmax|bmm|cumsum|index_add|mm|softmax|sort|std|sum|topk|gather|where)/(float32|int64)_0$\
         |^nn\\.functional\\.(conv2d|layer_norm|scaled_dot_product_attention|gelu|embedding)/float32_0$\
         |^models/resnet18$|^train/mlp$",
    ),
    (
        "gfx1100,schedule=backward",
        "^(mm|softmax|sort|sum|cumsum|index_add)/float32_0$\
         |^nn\\.functional\\.(conv2d|layer_norm|scaled_dot_product_attention)/float32_0$",
    ),
];
const CORPUS_OF_ROCM: &str = "train/mlp.zip";
/// The step that tests the Python package, where there is a Python with torch.
const PYTHON: &str = "Python package";
/// The step that runs meshes of processes, where there is an MPI.
const MPI: &str = "ranks by MPI";
/// What tests of emulated kernels read: whether each case is computed for all architectures.
const ARCHITECTURES: &str = "FERROFLUX_ARCHITECTURES";
/// What runs golden cases.
const BACKENDS: [&str; 2] = ["eager", "cpu"];

/// Arguments of `xtask test-all`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Runs every case of the corpus next to the project instead of a sample, compiles and emulates GPU kernels for more
    /// architectures, and checks the example that has a tokenizer.
    #[arg(long)]
    full: bool,
    /// Only steps whose name contains this text.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Lists the steps and runs none.
    #[arg(long)]
    list: bool,
}

/// What was counted in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

/// How a step is judged.
enum Judge {
    /// By the exit status, with the tests that the output reports.
    Exit,
    /// By the results of golden cases, written to a file; `refusals` says whether a case may be unsupported.
    Cases { results: PathBuf, backend: &'static str, refusals: bool },
}

/// One thing that must pass.
struct Step {
    name: String,
    /// Arguments of cargo.
    args: Vec<String>,
    judge: Judge,
}

/// A step that has run.
struct Done {
    name: String,
    counts: Counts,
    time: Duration,
}

/// Runs every step; `false` where any did not pass.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = root()?;
    let logs = root.join("target").join("test-all");
    std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let mut steps = steps(&root, &logs, args.full);
    let wanted = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    steps.retain(|step| wanted(&step.name));
    if args.list {
        steps.iter().for_each(|step| println!("{}: cargo {}", step.name, step.args.join(" ")));
        return Ok(true);
    }
    let mut done = Vec::new();
    let mut leave_out = |names: &[&str], why: &dyn Display| {
        for name in names.iter().filter(|name| wanted(name)) {
            eprintln!("test-all: left out: {name}: {why}");
            let counts = Counts { skipped: 1, ..Counts::default() };
            done.push(Done { name: (*name).to_owned(), counts, time: Duration::ZERO });
        }
    };
    if let Err(why) = backend_cuda::find(backend_cuda::Library::Nvrtc) {
        leave_out(&[GPU_KERNELS], &why);
    }
    if let Err(why) = gpu_emulator::available() {
        leave_out(&[WAVES, SHORT_WAVES, ROCM], &why);
    }
    if let Err(why) = Clang::find() {
        leave_out(&[AMD_KERNELS], &why);
    }
    if let Err(why) = python_with_torch() {
        leave_out(&[PYTHON], &format!("{why:#}"));
    }
    if std::env::var_os(mpi::VARIABLE).is_none() {
        leave_out(&[MPI], &format!("{} does not say that there is an MPI", mpi::VARIABLE));
    }
    if testing::browser().is_none() {
        leave_out(&[PAGES], &"no Chromium is installed; the tests look at their files alone");
    }
    for step in &steps {
        eprintln!("test-all: {} …", step.name);
        done.push(perform(step, args.full, &root, &logs)?);
    }
    Ok(report(&done))
}

fn steps(root: &Path, logs: &Path, full: bool) -> Vec<Step> {
    // The example with a tokenizer needs forty crates more; `--full` has a step for it.
    let all = ["--workspace", "--exclude", "sentence-embeddings"];
    let tests = [&["test"][..], &all, &["--no-fail-fast"]].concat();
    let mut steps = vec![
        checked("fmt", &["fmt", "--all", "--check"]),
        checked("tidy", &["run", "--quiet", "--package", "xtask", "--", "tidy"]),
    ];
    // Some examples are plugin libraries that tests load; `cargo test --examples` would not build these as such.
    if builds_lint() {
        let others = ["--examples", "--bench", "overhead"];
        steps.push(checked("examples and benches", &[&["build"][..], &all, &others].concat()));
    } else {
        let lints = ["--all-targets", "--", "-D", "warnings"];
        steps.push(checked("clippy", &[&["clippy"][..], &all, &lints].concat()));
        let plugins = ["--example", "fixture", "--example", "bare", "--example", "graph_plugin"];
        steps.push(checked("plugins of tests", &[&["build"][..], &all, &plugins].concat()));
    }
    steps.extend([
        checked("tests", &[&tests[..], &["--lib", "--bins", "--tests"]].concat()),
        // Of what is published, that it can be packed; without the network.
        checked("packages", &packages()),
        checked("doc tests", &[&tests[..], &["--doc"]].concat()),
    ]);
    // NVIDIA's compiler needs no GPU.
    if backend_cuda::find(backend_cuda::Library::Nvrtc).is_ok() {
        let kernels = ["run", "--quiet", "--package", "xtask", "--", "kernels"];
        // Each architecture takes minutes on two cores, and gradients as long as all else.
        let what = match full {
            true => ["--arch", "sm_80,sm_90a,sm_100", "--kind", "forward,model,dynamic,gradient,train"],
            false => ["--arch", "sm_90a", "--kind", "forward,model,dynamic"],
        };
        steps.push(checked(GPU_KERNELS, &[&kernels[..], &GOLDENS, &what].concat()));
    }
    // So does AMD's.
    if Clang::find().is_ok() {
        let kernels = ["run", "--quiet", "--package", "xtask", "--", "kernels"];
        let what = match full {
            true => {
                ["--arch", "gfx90a,gfx942,gfx1100,gfx1201", "--kind", "forward,model,dynamic,gradient,train"]
                    .to_vec()
            }
            false => vec!["--arch", "gfx942,gfx1100", "--kind", "forward,model", "--only", OF_AMD_KERNELS],
        };
        steps.push(checked(AMD_KERNELS, &[&kernels[..], &GOLDENS, &what].concat()));
    }
    if gpu_emulator::available().is_ok() {
        let corpus = ["run", "--quiet", "--package", "xtask", "--", "corpus", "--backend"];
        let emulated = [&corpus[..], &["gpu-emulator:wave=64"]].concat();
        let short =
            [&corpus[..], &["gpu-emulator:architecture=gfx1100", "--only", OF_WAVES], &GOLDENS].concat();
        let beside: Vec<String> = CORPUS_OF_WAVES.iter().map(|path| format!("{CORPUS}/{path}")).collect();
        let beside = beside.iter().map(String::as_str).filter(|path| root.join(path).exists());
        let paths: Vec<&str> = GOLDENS.into_iter().chain(beside).collect();
        steps.push(checked(WAVES, &[&emulated[..], &["--only", OF_WAVES], &paths[..]].concat()));
        steps.push(checked(SHORT_WAVES, &short));
    }
    if gpu_emulator::available().is_ok() {
        let beside = format!("{CORPUS}/{CORPUS_OF_ROCM}");
        let paths = GOLDENS.into_iter().chain(root.join(&beside).exists().then_some(beside.as_str()));
        let paths: Vec<&str> = paths.collect();
        for (devices, only) in OF_ROCM {
            let (wave, _) = devices.split_once(',').unwrap_or((devices, ""));
            let standin = ["run", "--quiet", "--package", "xtask", "--", "hip-standin", "--devices", devices];
            let corpus = ["--", "xtask", "corpus", "--backend", "{plugin}", "--only", only];
            steps.push(checked(&format!("{ROCM}, {wave}"), &[&standin[..], &corpus, &paths].concat()));
        }
    }
    if python_with_torch().is_ok() {
        steps.push(checked(PYTHON, &["run", "--quiet", "--package", "xtask", "--", "python"]));
    }
    if std::env::var_os(mpi::VARIABLE).is_some() {
        steps.push(checked(MPI, &["run", "--quiet", "--package", "xtask", "--", "mpi"]));
    }
    // Enough to notice that reading, compiling or running strangers' archives is broken; `cargo xtask fuzz` runs more.
    let cases = if full { "20000" } else { "1000" };
    let fuzz = ["run", "--quiet", "--package", "xtask", "--", "fuzz", "--cases", cases];
    steps.push(checked("changed archives", &fuzz));
    if full {
        steps.push(checked("example of embeddings", &["check", "--package", "sentence-embeddings"]));
        // Builds every package from what would be uploaded; reads the registry, and writes nothing to it.
        steps.push(checked("publication", &["publish", "--dry-run", "--workspace", "--allow-dirty"]));
    }
    let mut cases = |what: &str, paths: &[&str], refusals: bool, more: &[&str]| {
        for backend in BACKENDS {
            let name = format!("{what}, {backend}");
            let results = logs.join(format!("{}.jsonl", name.replace([',', ' '], "-")));
            let corpus = ["run", "--quiet", "--package", "xtask", "--", "corpus"];
            let results_text = results.to_string_lossy();
            let given = ["--backend", backend, "--json", &*results_text];
            let args = [&corpus[..], paths, &given[..], more].concat();
            let args = args.into_iter().map(str::to_owned).collect();
            steps.push(Step { name, args, judge: Judge::Cases { results, backend, refusals } });
        }
    };
    cases("goldens", &GOLDENS, false, &[]);
    if root.join(CORPUS).exists() {
        let (what, more) =
            if full { ("whole corpus", &[][..]) } else { ("corpus sample", &golden::SAMPLE[..]) };
        cases(what, &[CORPUS], true, more);
    }
    steps
}

/// Whether each build is also clippy's look at the packages of the workspace: the environment then names `clippy-driver`, which
/// compiles as `rustc` does, as the compiler of these, and warnings as errors.
fn builds_lint() -> bool {
    let names = |variable: &str, text: &str| {
        std::env::var_os(variable).is_some_and(|value| value.to_string_lossy().contains(text))
    };
    names("RUSTC_WORKSPACE_WRAPPER", "clippy-driver") && names("RUSTFLAGS", "-Dwarnings")
}

/// Whether the environment names a Python that can test the package.
///
/// # Errors
/// Why not.
fn python_with_torch() -> Result<()> {
    let python = std::env::var_os(python::VARIABLE);
    let python = python.with_context(|| format!("{} names no Python with torch", python::VARIABLE))?;
    python::usable(Path::new(&python))
}

/// Packs what is published, and compiles none of it.
fn packages() -> Vec<&'static str> {
    let mut args = vec!["package", "--workspace", "--no-verify", "--allow-dirty", "--offline"];
    for unpublished in UNPUBLISHED {
        args.extend(["--exclude", unpublished]);
    }
    args
}

fn checked(name: &str, args: &[&str]) -> Step {
    let args = args.iter().map(|s| (*s).to_owned()).collect();
    Step { name: name.to_owned(), args, judge: Judge::Exit }
}

/// Runs a step with its output in a file, and shows that where the step fails.
fn perform(step: &Step, full: bool, root: &Path, logs: &Path) -> Result<Done> {
    let log = logs.join(format!("{}.log", step.name.replace([',', ' '], "-")));
    let start = Instant::now();
    let status = execute(&step.args, full, root, &log)?;
    let output = String::from_utf8_lossy(&std::fs::read(&log).context("the output of a step")?).into_owned();
    let counts = match &step.judge {
        Judge::Exit => from_output(&output, status),
        Judge::Cases { results, backend, refusals } => {
            golden::counts(results, backend, &root.join(golden::KNOWN), *refusals)?
        }
    };
    let done = Done { name: step.name.clone(), counts, time: start.elapsed() };
    if counts.failed > 0 {
        println!("──── {} failed: cargo {}", step.name, step.args.join(" "));
        println!("{}", output.trim_end());
    }
    println!("{}", line(&done));
    Ok(done)
}

fn execute(args: &[String], full: bool, root: &Path, log: &Path) -> Result<ExitStatus> {
    let file = File::create(log).with_context(|| log.display().to_string())?;
    let errors = file.try_clone()?;
    Command::new(cargo())
        .args(args)
        .envs(full.then_some((ARCHITECTURES, "all")))
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .status()
        .with_context(|| format!("cargo {}", args.join(" ")))
}

/// Counts of the tests that cargo's test runner reports; a step without tests counts as one.
fn from_output(output: &str, status: ExitStatus) -> Counts {
    let mut counts = Counts::default();
    for line in output.lines().filter(|line| line.starts_with("test result: ")) {
        let number = |what: &str| {
            let part = line.split([';', '.']).find_map(|part| part.trim().strip_suffix(what));
            part.and_then(|n| n.trim().parse::<usize>().ok()).unwrap_or(0)
        };
        counts.passed += number(" passed");
        counts.failed += number(" failed");
        counts.skipped += number(" ignored");
    }
    // The last line of pytest: `2 failed, 89 passed, 1 skipped, 3 warnings in 38.19s`.
    let summary = output
        .lines()
        .rev()
        .find(|line| line.contains(" passed") && line.contains(" in ") && line.ends_with('s'));
    if counts == Counts::default()
        && let Some(line) = summary
    {
        let number = |what: &str| {
            let part =
                line.split(", ").find_map(|part| part.split_once(what)).map(|(n, _)| n.trim_matches('='));
            part.and_then(|n| n.trim().parse::<usize>().ok()).unwrap_or(0)
        };
        counts = Counts { passed: number(" passed"), failed: number(" failed"), skipped: number(" skipped") };
    }
    if !status.success() && counts.failed == 0 {
        counts.failed = 1;
    } else if counts == Counts::default() {
        counts.passed = 1;
    }
    counts
}

fn line(done: &Done) -> String {
    let Counts { passed, failed, skipped } = done.counts;
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    let time = done.time.as_secs_f64();
    format!("{:<22} {verdict:<7} {passed:>6} {failed:>7} {skipped:>8} {time:>8.1} s", done.name)
}

/// Prints the table and the last line; returns whether all passed.
fn report(done: &[Done]) -> bool {
    println!("\n{:<22} {:<7} {:>6} {:>7} {:>8} {:>10}", "step", "", "passed", "failed", "skipped", "time");
    done.iter().for_each(|done| println!("{}", line(done)));
    let time: Duration = done.iter().map(|done| done.time).sum();
    println!("{:<22} {:>42.1} s\n", "all", time.as_secs_f64());
    let sum = |of: fn(&Counts) -> usize| done.iter().map(|done| of(&done.counts)).sum::<usize>();
    let failed = sum(|c| c.failed);
    println!("{} passed, {failed} failed, {} skipped", sum(|c| c.passed), sum(|c| c.skipped));
    failed == 0
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::{Counts, ExitStatus, from_output};

    #[test]
    fn tests_of_all_crates_are_summed() {
        let output = "running 3 tests\ntest result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
                      finished in 0.01s\ntest result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured\n";
        let counts = from_output(output, ExitStatus::from_raw(101 << 8));
        assert_eq!(counts, Counts { passed: 5, failed: 4, skipped: 1 });
    }

    #[test]
    fn a_step_without_tests_counts_as_one() {
        assert_eq!(from_output("", ExitStatus::from_raw(0)).passed, 1);
        assert_eq!(from_output("", ExitStatus::from_raw(1 << 8)).failed, 1);
        // The tests that ran passed, yet cargo failed: some did not build.
        let output = "test result: ok. 3 passed; 0 failed; 0 ignored\n";
        assert_eq!(from_output(output, ExitStatus::from_raw(101 << 8)).failed, 1);
    }
}
