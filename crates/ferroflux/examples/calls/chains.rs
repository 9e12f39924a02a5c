//! Elementwise chains as a program writes them, without `compile`: what this project records, fuses and runs when the result is
//! wanted, beside what PyTorch runs operator by operator.

use std::hint::black_box;

use ferroflux::prelude::*;

use super::peer::Peer;
use super::{Outcome, Time, timed};

/// How often the sides take turns.
const ROUNDS: usize = 5;

/// A chain in Rust, and the same in Python.
struct Chain {
    name: &'static str,
    rust: fn(&Tensor, &Tensor) -> Tensor,
    python: &'static str,
}

const CHAINS: [Chain; 7] = [
    Chain { name: "x + y", rust: |x, y| x + y, python: "x + y" },
    Chain { name: "relu(2x + y)", rust: |x, y| (x * 2.0 + y).relu(), python: "(x * 2.0 + y).relu()" },
    Chain {
        name: "sin²x + cos²x",
        rust: |x, _| x.sin().square() + x.cos().square(),
        python: "x.sin().square() + x.cos().square()",
    },
    Chain { name: "SwiGLU", rust: |x, y| x.sigmoid() * x * y, python: "x.sigmoid() * x * y" },
    Chain {
        name: "GELU by tanh",
        rust: |x, _| 0.5 * x * (((x + x * x * x * 0.044_715) * 0.797_884_56).tanh() + 1.0),
        python: "0.5 * x * (((x + x * x * x * 0.044715) * 0.79788456).tanh() + 1.0)",
    },
    Chain {
        name: "16 steps of 0.9h + y",
        rust: |x, y| (0..8).fold(x.clone(), |h, _| h * 0.9 + y),
        python: "steps(x, y)",
    },
    Chain {
        name: "softplus of a distance",
        rust: |x, y| (((x - y).square() + 1e-6).sqrt().exp() + 1.0).log(),
        python: "(((x - y).square() + 1e-6).sqrt().exp() + 1.0).log()",
    },
];

const SIZES: [i64; 4] = [100, 10_000, 300_000, 4_000_000];

/// The median over rounds of medians, and the best of all.
fn summary(rounds: &mut [Time]) -> (f64, f64) {
    rounds.sort_by(|a, b| a.median.total_cmp(&b.median));
    let best = rounds.iter().map(|t| t.best).fold(f64::INFINITY, f64::min);
    (rounds[rounds.len() / 2].median, best)
}

/// Prints a row for each chain and size; ratios below 1 mean that this project is faster.
pub(super) fn compare(python: Option<&str>) -> Outcome<()> {
    println!(
        "\nelementwise chains that are not compiled by hand, float32 (µs, median of medians and best, {ROUNDS} turns)"
    );
    println!("| chain | elements | median | best | PyTorch | its best | median ÷ | best ÷ |");
    println!("|---|--:|--:|--:|--:|--:|--:|--:|");
    let mut peer = python.map(Peer::start).transpose()?;
    let (mut product, mut count) = (0.0f64, 0u32);
    for chain in &CHAINS {
        for size in SIZES {
            let (x, y) = (Tensor::rand(&[size]), Tensor::rand(&[size]));
            x.compute()?;
            y.compute()?;
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                ours.push(timed(&mut || {
                    (chain.rust)(black_box(&x), black_box(&y)).compute()?;
                    Ok(())
                })?);
                if let Some(peer) = &mut peer {
                    theirs.push(peer.timed(chain.python, size)?);
                }
            }
            let (median, best) = summary(&mut ours);
            print!("| {} | {size} | {:.2} | {:.2} |", chain.name, median / 1e3, best / 1e3);
            if theirs.is_empty() {
                println!(" – | – | – | – |");
                continue;
            }
            let (their_median, their_best) = summary(&mut theirs);
            let (a, b) = (median / their_median, best / their_best);
            println!(" {:.2} | {:.2} | {a:.2} | {b:.2} |", their_median / 1e3, their_best / 1e3);
            product += a.ln();
            count += 1;
        }
    }
    if count > 0 {
        println!("geometric mean of the medians' ratios: {:.2}", (product / f64::from(count)).exp());
    }
    Ok(())
}
