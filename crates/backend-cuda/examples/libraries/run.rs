//! Runs the candidates of a step one by one.

use std::time::Instant;

use gpu_runtime::{Arguments, Candidate, Driver, GpuError, Grid, Map, Module, Part, Work};
use ir_core::{DType, EntityId};
use kernel_ir::BufId;

use crate::case::{Case, round};

pub(crate) const HEADER: &str = "step                                     candidate                      error    allowed       us   TFLOP/s     GB/s  plan ms";
/// Number of points that are compared with double precision.
const SAMPLES: i64 = 1500;
/// Number of timed runs, of which the median counts.
const RUNS: usize = 21;

/// Total bytes of the sets of a step's memory through which its runs rotate, so that no run finds in the cache what the
/// previous one left there; and the maximum number of sets.
const ROTATED: usize = 160 << 20;
const MAX_SETS: usize = 6;

/// Number of other generated candidates that run where all TMA candidates do.
pub(crate) const FEW: usize = 3;

/// Runs a library's candidates of a step and `most` generated ones, plus all TMA candidates where `most` is more than 1.
/// Returns how many are wrong.
///
/// `alone`: runs neither a library's candidates nor the kernel with one thread per point.
pub(crate) fn run<D: Driver>(driver: &D, case: &Case, most: usize, alone: bool) -> usize {
    let mut target = driver.target();
    target.tf32 = case.tf32.into();
    let started = Instant::now();
    let mut candidates = if alone { Vec::new() } else { driver.library(&case.program, &case.step, &target) };
    let plan = started.elapsed().as_secs_f64() * 1e3;
    if candidates.is_empty() && !alone {
        println!("{:40} offered nothing ({plan:.1} ms)", case.name);
    }
    let generated = gpu_codegen::variants(&case.program, &case.step, &target);
    // Some generated candidates run for comparison.
    let mut others = 0;
    candidates.extend(generated.into_iter().flatten().map(Candidate::from).filter(|candidate| {
        if alone && candidate.name == "direct" {
            return false;
        }
        let bulk = most > 1 && candidate.name.starts_with("wgmma");
        others += usize::from(!bulk);
        bulk || others <= most
    }));
    let bytes: usize = case.arrays.iter().map(|a| a.data.len() * case.dtype.size()).sum();
    let sets = (ROTATED / bytes.max(1)).clamp(1, MAX_SETS);
    let numbers: Vec<Vec<u8>> = case.arrays.iter().map(|a| encoded(&a.data, case.dtype)).collect();
    let set = || numbers.iter().map(|bytes| upload(driver, bytes)).collect();
    let memory: Result<Vec<Vec<u64>>, GpuError> = (0..sets).map(|_| set()).collect();
    let memory = match memory {
        Ok(memory) => memory,
        Err(e) => {
            println!("{:40} {e}", case.name);
            return 1;
        }
    };
    let mut bad = 0;
    // All are compiled at once, by the driver's threads.
    let functions = compile(driver, &candidates);
    for (n, candidate) in candidates.iter().enumerate() {
        let first = if n == 0 { plan } else { 0.0 };
        let ran = match &functions {
            Ok(functions) => one(driver, case, candidate, &functions[n], &memory),
            Err(e) => Err(e.clone()),
        };
        match ran {
            Ok(Outcome { error, allowed, seconds }) => {
                let good = error <= allowed;
                bad += usize::from(!good);
                println!(
                    "{:40} {:30} {error:8.1e} {allowed:8.1e} {:9.1} {:8.2} {:8.0} {first:8.1} {}",
                    case.name,
                    candidate.name,
                    seconds * 1e6,
                    case.flops / seconds / 1e12,
                    bytes as f64 / seconds / 1e9,
                    if good { "" } else { "WRONG" },
                );
            }
            Err(e) => {
                bad += 1;
                println!("{:40} {:30} FAILED: {e}", case.name, candidate.name);
            }
        }
    }
    memory.into_iter().flatten().for_each(|m| driver.free(m));
    bad
}

struct Outcome {
    error: f64,
    allowed: f64,
    seconds: f64,
}

fn one<D: Driver>(
    driver: &D,
    case: &Case,
    candidate: &Candidate,
    functions: &[D::Function],
    sets: &[Vec<u64>],
) -> Result<Outcome, GpuError> {
    let size =
        |e: &ir_core::SymExpr| e.as_const().ok_or_else(|| GpuError::Malformed(format!("{e} has no value")));
    let scratch: Vec<u64> = candidate
        .scratch
        .iter()
        .map(|bytes| driver.allocate(size(bytes)?.max(1) as u64))
        .collect::<Result<_, GpuError>>()?;
    let all = |n: usize| -> Result<(), GpuError> {
        let memory = &sets[n % sets.len()];
        let work = Work { address: &|buf: BufId| memory[buf.index()], size: &size, scratch: &scratch };
        let mut next = functions.iter();
        for part in &candidate.parts {
            match part {
                Part::Kernel(kernel) => {
                    let Some(function) = next.next() else { continue };
                    let mut blocks = [0; 3];
                    for (n, e) in blocks.iter_mut().zip(&kernel.launch.blocks) {
                        *n = size(e)? as u32;
                    }
                    let arguments: Vec<u64> = kernel
                        .params
                        .iter()
                        .map(|p| match p {
                            gpu_codegen::Param::Buffer(b) => memory[b.index()],
                            gpu_codegen::Param::Scratch(n) => scratch[*n as usize],
                            // Sizes are constant, and none of these kernels counts blocks or checks an index.
                            gpu_codegen::Param::Number(n) | gpu_codegen::Param::Slice(n) => *n as u64,
                            gpu_codegen::Param::Symbol(_)
                            | gpu_codegen::Param::Tickets
                            | gpu_codegen::Param::Fault
                            | gpu_codegen::Param::FirstCheck => 0,
                            gpu_codegen::Param::Map(n) => memory[kernel.maps[*n as usize].buf.index()],
                        })
                        .collect();
                    let grid = Grid { blocks, threads: kernel.launch.threads, shared: kernel.launch.shared };
                    let maps = Map::of(&kernel.params, &kernel.maps, &size)?;
                    let arguments = Arguments { words: &arguments, maps: &maps };
                    // SAFETY: the arguments are those that the kernel declares, and every buffer has its declared length.
                    unsafe { driver.launch(function, grid, arguments)? };
                }
                // SAFETY: every buffer has the length that the program declares, and the scratch buffers that of the
                // candidate.
                Part::Library(call) => unsafe { call.run(&work)? },
            }
        }
        Ok(())
    };
    // Old contents must not pass for a result.
    let result = sets[0][sets[0].len() - 1];
    let count = case.arrays[case.arrays.len() - 1].data.len();
    let bytes = vec![0xffu8; count * case.dtype.size()];
    // SAFETY: the buffer has at least this many bytes.
    unsafe { driver.upload(result, bytes.as_ptr(), bytes.len())? };
    all(0)?;
    let (error, allowed) = compare(driver, case, result, count)?;
    let times = driver.timed(RUNS, &mut |n| all(n))?;
    let mut times: Vec<f64> = times.into_iter().map(|t| t.seconds).collect();
    times.sort_by(f64::total_cmp);
    scratch.into_iter().for_each(|s| driver.free(s));
    Ok(Outcome { error, allowed, seconds: times[RUNS / 2] })
}

/// Compiles the kernels of every candidate.
fn compile<D: Driver>(driver: &D, candidates: &[Candidate]) -> Result<Vec<Vec<D::Function>>, GpuError> {
    let helpers = gpu_codegen::Prelude::new(&driver.target());
    let kernels = |candidate: &Candidate| -> Vec<Module> {
        let kernels = candidate.parts.iter().filter_map(|p| match p {
            Part::Kernel(kernel) => Some(kernel),
            Part::Library(_) => None,
        });
        let module = |k: &gpu_codegen::Kernel| Module::new(&helpers, k.source.clone(), vec![k.entry.clone()]);
        kernels.map(module).collect()
    };
    let modules: Vec<Module> = candidates.iter().flat_map(kernels).collect();
    let mut made = driver.compile(&modules)?.into_iter().flatten();
    Ok(candidates.iter().map(|candidate| made.by_ref().take(kernels(candidate).len()).collect()).collect())
}

/// The largest error relative to the sum of magnitudes, and the error that rounding explains.
fn compare<D: Driver>(driver: &D, case: &Case, result: u64, count: usize) -> Result<(f64, f64), GpuError> {
    let got = download(driver, result, count, case.dtype)?;
    let out = &case.arrays[case.arrays.len() - 1];
    let points: i64 = out.sizes.iter().product();
    let mut worst = 0.0f64;
    for n in 0..points.min(SAMPLES) {
        // The step is coprime to usual sizes, so that every row and column is sampled.
        let mut flat = n * (points / SAMPLES).max(1) + (n * 7) % (points / SAMPLES).max(1);
        let mut at = vec![0; out.sizes.len()];
        for d in (0..at.len()).rev() {
            at[d] = flat % out.sizes[d];
            flat /= out.sizes[d];
        }
        let (expected, size) = case.expected(&at);
        let place = at.iter().zip(&out.strides).map(|(i, s)| i * s).sum::<i64>() as usize;
        let error = (got[place] - expected).abs() / size.max(1e-30);
        worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
    }
    // The result is rounded once (twice where it is stored in a narrow dtype), and sums are rounded in single precision.
    let allowed = match (case.dtype, case.tf32) {
        (DType::F64, _) => 1e-13,
        (DType::F32, true) => 2e-3,
        (DType::F32, false) => 1e-5,
        (DType::F16, _) => 1.5e-3,
        _ => 1.2e-2,
    };
    Ok((worst, allowed))
}

fn encoded(data: &[f64], dtype: DType) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(data.len() * dtype.size());
    for &x in data {
        debug_assert_eq!(round(x, dtype), x);
        match dtype {
            DType::F64 => bytes.extend(x.to_le_bytes()),
            DType::F32 => bytes.extend((x as f32).to_le_bytes()),
            DType::F16 => bytes.extend(plugin_sdk::f16::from_f64(x).to_le_bytes()),
            _ => bytes.extend(plugin_sdk::bf16::from_f64(x).to_le_bytes()),
        }
    }
    bytes
}

fn upload<D: Driver>(driver: &D, bytes: &[u8]) -> Result<u64, GpuError> {
    let address = driver.allocate(bytes.len().max(1) as u64)?;
    // SAFETY: the memory was just allocated for these bytes.
    unsafe { driver.upload(address, bytes.as_ptr(), bytes.len())? };
    Ok(address)
}

fn download<D: Driver>(driver: &D, from: u64, count: usize, dtype: DType) -> Result<Vec<f64>, GpuError> {
    let mut bytes = vec![0u8; count * dtype.size()];
    // SAFETY: the buffer has at least this many bytes.
    unsafe { driver.download(bytes.as_mut_ptr(), from, bytes.len())? };
    driver.synchronize()?;
    let number = |c: &[u8]| match *c {
        [a, b] if dtype == DType::F16 => plugin_sdk::f16::from_le_bytes([a, b]).to_f64(),
        [a, b] => plugin_sdk::bf16::from_le_bytes([a, b]).to_f64(),
        [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => f64::NAN,
    };
    Ok(bytes.chunks_exact(dtype.size()).map(number).collect())
}
