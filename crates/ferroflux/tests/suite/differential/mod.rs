//! Differential tests of the whole middle and back: random well-typed graphs, and those that once failed, by `interp`,
//! by the fused program point by point, and by the `cpu` backend, with double precision as the judge.
//!
//! `FERROFLUX_FUZZ_CASES=100000` runs more cases, `FERROFLUX_FUZZ_SECONDS=600` longer, `FERROFLUX_FUZZ_SEED=17` another
//! first seed. A case that fails is made small and printed as a file for `tests/files`.

#![allow(clippy::unwrap_used, unreachable_pub, missing_docs)] // a failing test may panic

mod data;
mod files;
mod generate;
mod judge;
mod memory;
mod ops;
mod patterns;
pub(crate) mod rng;
mod shrink;

use std::time::{Duration, Instant};

use judge::Judge;

/// Cases of a plain `cargo test`.
const CASES: u64 = 250;
/// A plain run on a busy machine stops here.
const SECONDS: u64 = 20;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn what_once_failed_agrees() {
    let failures = files::run(&Judge::new());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn random_graphs_agree() {
    run(false);
}

#[test]
fn random_graphs_whose_values_share_memory_agree() {
    run(true);
    let joined = |seed: &u64| judge::has_parts(&generate::case(*seed, usize::MAX, true).graph);
    let count = (0..50).filter(joined).count();
    assert!(count > 5, "in {count} of 50 graphs a value is computed into its part of a concatenation");
}

fn run(sharing: bool) {
    let judge = Judge::new();
    let (first, cases) = (setting("FERROFLUX_FUZZ_SEED").unwrap_or(0), setting("FERROFLUX_FUZZ_CASES"));
    let seconds = setting("FERROFLUX_FUZZ_SECONDS").unwrap_or(if cases.is_some() { 3600 } else { SECONDS });
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let wanted = setting("FERROFLUX_FUZZ_FAILURES").unwrap_or(1) as usize;
    let mut reports = Vec::new();
    let mut done = 0;
    for seed in first..first + cases.unwrap_or(CASES) {
        if Instant::now() > deadline {
            break;
        }
        done += 1;
        if let Some(report) = one(&judge, seed, sharing) {
            eprintln!("{report}");
            reports.push(report);
            if reports.len() >= wanted {
                break;
            }
        }
    }
    eprintln!("{done} graphs");
    assert!(reports.is_empty(), "{} of {done} graphs fail", reports.len());
}

/// Runs the case of a seed; what failed, where it fails.
fn one(judge: &Judge, seed: u64, sharing: bool) -> Option<String> {
    let case = generate::case(seed, usize::MAX, sharing);
    let failure = judge.check(&case.graph, &case.symbols).err()?;
    // The same seed with small sizes often fails in the same way.
    let small = (2..4).map(|limit| generate::case(seed, limit, sharing)).find_map(|c| {
        let f = judge.check(&c.graph, &c.symbols).err()?;
        (f.stage == failure.stage).then_some((c, f))
    });
    let (case, failure) = small.unwrap_or((case, failure));
    let (graph, failure) = shrink::shrink(judge, &case.graph, &case.symbols, failure);
    let kernels = judge::kernels(&graph).map_or_else(|e| e.to_string(), |p| p.to_string());
    Some(format!(
        "seed {seed}, symbols {:?}, {}: {}\n{graph}\n{kernels}\n",
        case.symbols, failure.stage, failure.what
    ))
}
