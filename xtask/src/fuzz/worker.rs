//! The process that runs changed archives: for each seed it announces the seed, changes an archive, reads it, compiles and
//! calls it on `eager` and on the other backend, and says how that ended. What kills it is the parent's to notice.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Result;
use cli::golden::FormulaWeights;
use ferroflux::{Options, Program};
use tensor::Tensor;

use super::archive::Parts;
use super::rng::Rng;
use super::{Outcome, Report, allocator, inputs, mutate};
use crate::corpus::{self, Case, Kind, Loader};

/// Bytes that a worker may have of its own.
const MEMORY: u64 = 4 << 30;
/// Calls of one compiled program.
const CALLS: usize = 4;
/// Larger archives are left out: reading them is most of what such a case would do.
const MAX_BYTES: usize = 1 << 19;

/// Arguments of the hidden command.
#[derive(clap::Args)]
pub(crate) struct WorkerArgs {
    /// The first seed.
    #[arg(long)]
    first: u64,
    /// How many seeds.
    #[arg(long)]
    count: u64,
    /// What is compared with `eager`.
    #[arg(long)]
    backend: String,
    /// Where the archives are.
    paths: Vec<std::path::PathBuf>,
}

/// Runs the seeds.
pub(crate) fn work(args: &WorkerArgs) -> Result<bool> {
    let cases = corpus::find(&args.paths, &[Kind::Forward, Kind::Dynamic])?;
    allocator::limit_memory(MEMORY);
    if !allocator::guard_allocations() {
        eprintln!("fuzz: this system reserves no addresses; tensors are not guarded");
    }
    let mut loader = Loader::default();
    for seed in args.first..args.first + args.count {
        say(&Report { seed, outcome: None, detail: String::new() })?;
        let (outcome, detail) = one(&mut loader, &cases, seed, &args.backend);
        say(&Report { seed, outcome: Some(outcome), detail })?;
    }
    Ok(true)
}

fn say(report: &Report) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(report)?)?;
    Ok(out.flush()?)
}

/// The changed archive of a seed, with the inputs of its case's goldens; `None` where the case is too large.
pub(crate) fn changed(
    loader: &mut Loader,
    cases: &[Case],
    seed: u64,
    rng: &mut Rng,
) -> Result<Option<Changed>> {
    // Cases stand in the order of their operators: a stride visits all of them early.
    let case = &cases[(seed as usize).wrapping_mul(7919) % cases.len().max(1)];
    let (bytes, golden) = loader.raw(case)?;
    if bytes.len() > MAX_BYTES {
        return Ok(None);
    }
    let mut parts = Parts::read(&bytes)?;
    let changes = mutate::mutate(&mut parts, rng);
    let prefix = if case.kind == Kind::Dynamic { "s0." } else { "" };
    let inputs = corpus::inputs(&golden, prefix)?;
    let weights = FormulaWeights::of(&golden)?;
    Ok(Some(Changed { name: case.case.clone(), bytes: parts.write()?, changes, inputs, weights }))
}

/// A changed archive.
pub(crate) struct Changed {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) changes: Vec<String>,
    inputs: Vec<Tensor>,
    weights: FormulaWeights,
}

fn one(loader: &mut Loader, cases: &[Case], seed: u64, backend: &str) -> (Outcome, String) {
    let mut rng = Rng::new(seed);
    let changed = match changed(loader, cases, seed, &mut rng) {
        Ok(Some(changed)) => changed,
        Ok(None) => return (Outcome::LeftOut, String::new()),
        Err(error) => return (Outcome::LeftOut, format!("{error:#}")),
    };
    let ran = catch_unwind(AssertUnwindSafe(|| run(&changed, &mut rng, backend)));
    let (outcome, detail) = ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        (Outcome::Panicked, text.to_owned())
    });
    (outcome, format!("{} [{}]: {detail}", changed.name, changed.changes.join("; ")))
}

fn run(changed: &Changed, rng: &mut Rng, backend: &str) -> (Outcome, String) {
    let mut program = match Program::from_bytes(changed.bytes.clone()) {
        Ok(program) => program,
        Err(error) => return (Outcome::NotRead, error.to_string()),
    };
    if let Err(error) = program.fill_weights(&changed.weights) {
        return (Outcome::NotRead, error.to_string());
    }
    let options = |name: &str| Options::new().backend(name).seed(1);
    let eager = program.compile(&options("eager"));
    let other = program.compile(&options(backend));
    let (eager, other) = match (eager, other) {
        (Ok(eager), Ok(other)) => (eager, other),
        (Err(error), _) | (_, Err(error)) => return refused(&error.to_string()),
    };
    let mut last = (Outcome::LeftOut, String::new());
    for _ in 0..CALLS {
        let Some(inputs) = inputs::inputs(&program, &changed.inputs, rng) else { continue };
        last = match (eager.call(&inputs), other.call(&inputs)) {
            (Ok(a), Ok(b)) => match difference(&a, &b, signs_are_open(&changed.name)) {
                None => (Outcome::Equal, String::new()),
                Some(what) => return (Outcome::Differs, what),
            },
            (Err(a), Err(b)) if panicked(&a.to_string()) || panicked(&b.to_string()) => {
                return (Outcome::Panicked, format!("{a} / {b}"));
            }
            (Err(a), Err(_)) => (Outcome::Refused, a.to_string()),
            (Ok(_), Err(error)) => return (Outcome::OneSided, format!("{backend} alone says: {error}")),
            (Err(error), Ok(_)) => return (Outcome::OneSided, format!("eager alone says: {error}")),
        };
    }
    last
}

/// Whether an error is a panic that a boundary caught.
fn panicked(error: &str) -> bool {
    error.contains("panic")
}

fn refused(error: &str) -> (Outcome, String) {
    let outcome = if panicked(error) { Outcome::Panicked } else { Outcome::Refused };
    (outcome, error.to_owned())
}

/// Factors of these are unique up to the sign of their columns, which roundings of the product before them decide.
const OPEN_SIGNS: [&str; 2] = ["svd_lowrank", "pca_lowrank"];

fn signs_are_open(name: &str) -> bool {
    OPEN_SIGNS.iter().any(|operator| name.starts_with(operator))
}

/// Where the two differ by more than roundings of ill-conditioned programs can explain.
fn difference(a: &[Tensor], b: &[Tensor], open_signs: bool) -> Option<String> {
    if a.len() != b.len() {
        return Some(format!("{} outputs and {}", a.len(), b.len()));
    }
    for (n, (a, b)) in a.iter().zip(b).enumerate() {
        if a.dtype() != b.dtype() || a.sizes() != b.sizes() {
            return Some(format!(
                "output {n} is {}{:?} and {}{:?}",
                a.dtype(),
                a.sizes(),
                b.dtype(),
                b.sizes()
            ));
        }
        let scale = a.iter_f64().filter(|x| x.is_finite()).fold(1.0f64, |m, x| m.max(x.abs()));
        let exact = !a.dtype().is_inexact();
        let allowed = if exact { 0.0 } else { 0.02 * scale };
        let sign = |x: f64| if open_signs { x.abs() } else { x };
        let far =
            |(x, y): &(f64, f64)| x.is_finite() && y.is_finite() && (sign(*x) - sign(*y)).abs() > allowed;
        if let Some((x, y)) = a.iter_f64().zip(b.iter_f64()).find(far) {
            return Some(format!("output {n} has {x} and {y}"));
        }
    }
    None
}
