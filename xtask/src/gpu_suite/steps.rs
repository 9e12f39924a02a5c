//! The steps of the suite, most informative first: the machine, benchmarks against PyTorch, the golden cases, the memory
//! checker.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// A program to run.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(&'static str, String)>,
    /// Its time limit.
    pub(crate) limit: Duration,
    /// Number of lines at the end of its log that the table shows.
    pub(crate) lines: usize,
}

/// The programs that are benchmarked.
const BENCHMARKS: [&str; 5] =
    ["llama2_7b_decode", "vit_b_16_bf16", "resnet152_bf16", "resnet18_train", "trig"];

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Steps that are about the tools of one vendor.
const OF_CUDA: [&str; 5] = ["bench-tf32", "profile-train", "faults", "indices", "sanitizer"];

/// All steps of a backend, for a packed folder.
pub(crate) fn steps(folder: &Path, python: &str, backend: &str) -> Vec<Step> {
    let ferroflux = folder.join("bin/ferroflux");
    let xtask = folder.join("bin/xtask");
    let cache = std::env::temp_dir().join(format!("gpu-suite-cache-{}", std::process::id()));
    let cache = vec![("XDG_CACHE_HOME", cache.display().to_string())];
    let step = |name, program: &Path, text: &str, seconds, lines| Step {
        name,
        program: program.to_owned(),
        args: words(text),
        env: cache.clone(),
        limit: Duration::from_secs(seconds),
        lines,
    };
    let cases = BENCHMARKS.map(|b| format!("corpus/gpu/{b}.zip")).join(" ");
    let bench = |mode: &str| format!("bench {cases} --backend {backend} --mode {mode} --seconds 1 --json");
    let train = "bench corpus/gpu/resnet18_train.zip --backend cuda -o tf32=on --seconds 1";
    let corpus = |what: &str| format!("corpus {what} --backend {backend} --jobs 8");
    let (tool, list) =
        if backend == "cuda" { ("nvidia-smi", "-L") } else { ("rocm-smi", "--showproductname") };
    let mut all = vec![
        step("machine", Path::new(tool), list, 20, 4),
        step("backends", &ferroflux, "backends", 20, 12),
        step("bench-reduce", &ferroflux, &bench("reduce-overhead"), 120, 7),
        // The second process finds compiled kernels in the cache.
        step("bench-warm", &ferroflux, &bench("reduce-overhead"), 60, 7),
        step("bench-default", &ferroflux, &bench("default"), 60, 7),
        step("bench-autotune", &ferroflux, &bench("max-autotune"), 120, 9),
        // PyTorch computes float32 convolutions in tf32 by default.
        step("bench-tf32", &ferroflux, &format!("{train} --mode max-autotune"), 60, 4),
        step("profile-train", &ferroflux, &format!("{train} --mode max-autotune --profile"), 60, 40),
        step("pytorch", Path::new(python), &format!("peers/torch_gpu.py {cases}"), 240, 18),
        step("faults", &xtask, "gpu-suite faults", 60, 4),
        step("indices", &xtask, "gpu-suite indices", 90, 12),
        step("ops", &xtask, &corpus("corpus/ops.zip --kind forward"), 150, 6),
        step("gradients", &xtask, &corpus("corpus/ops.zip --kind gradient"), 120, 6),
        step("models", &xtask, &corpus("corpus/hf corpus/tv corpus/timm corpus/dynamic"), 150, 8),
        step("train", &xtask, &corpus("corpus/train"), 90, 6),
        step(
            "sanitizer",
            Path::new("compute-sanitizer"),
            &format!(
                "--error-exitcode 3 {} bench corpus/tv/resnet18.zip --backend cuda --seconds 0",
                ferroflux.display()
            ),
            120,
            3,
        ),
    ];
    all.retain(|step| backend == "cuda" || !OF_CUDA.contains(&step.name));
    all
}
