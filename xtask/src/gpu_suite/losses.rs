//! `xtask gpu-suite losses`: the cross entropy of bf16 scores with its gradient as one program, as the end of a language
//! model's training step has it, and the share of the device's bandwidth that two passes over the scores would be: one that
//! reads them, and one that reads them again and writes the gradient.
//!
//! The loss and rows of the gradient are compared with double precision. Not here: how programs are compiled and timed
//! (`small`).

use anyhow::{Context, Result, ensure};
use ferroflux::func::{self, Func, Types};
use ferroflux::fx_ir::Graph;
use plugin_sdk::bf16;
use rayon::prelude::*;
use tensor::Tensor;

use super::small::{Compilation, Measured, measure, number};

/// Rows and classes: language models with the vocabularies of GPT-2 and Llama 2, and one of a power of two.
const SIZES: [[usize; 2]; 3] = [[4096, 50_257], [4096, 32_000], [8192, 32_768]];
/// Scores are between minus this and this.
const SCALE: f32 = 4.0;
/// Rows of the gradient that are compared.
const ROWS: usize = 8;

/// Arguments of `xtask gpu-suite losses`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    compilation: Compilation,
    /// Bandwidth of the device's memory in 10¹² bytes a second.
    #[arg(long, default_value_t = 4.2)]
    bandwidth: f64,
    /// Rows and classes of a single case, instead of the usual ones.
    #[arg(long, num_args = 2)]
    sizes: Vec<usize>,
}

/// The loss: with `wide` of scores that the model converts to float32 before, as Hugging Face's do.
fn text(rows: usize, classes: usize, wide: bool) -> String {
    let (scores, dtype) = if wide { ("%w", "f32") } else { ("%x", "bf16") };
    let convert = match wide {
        true => format!("  %w: f32[{rows}, {classes}] = aten.to.dtype(%x, f32, false, false, none)\n"),
        false => String::new(),
    };
    format!(
        "fx 1.0\ngraph \"loss\" {{\n  %x: bf16[{rows}, {classes}] = input \"scores\"\n  %t: i64[{rows}] = input \"classes\"\n\n{convert}  \
         %y: {dtype}[] = aten.cross_entropy_loss.default({scores}, %t, none, 1, -100, 0.0)\n  return %y\n}}\n"
    )
}

/// The graph of the loss and its gradient to the scores.
fn graph(rows: usize, classes: usize, wide: bool, inputs: &[Tensor]) -> Result<Graph> {
    let loss = Func::from_graph(text(rows, classes, wide).parse()?);
    Ok(func::value_and_grad(&loss).graph(&Types::of(inputs))?)
}

fn inputs(rows: usize, classes: usize) -> Result<[Tensor; 2]> {
    let scores: Vec<bf16> =
        (0..rows * classes).into_par_iter().map(|i| bf16::from_f32(SCALE * number(i, 1))).collect();
    let targets: Vec<i64> = (0..rows).map(|i| (i * 7919 % classes) as i64).collect();
    Ok([Tensor::from_vec(scores, &[rows, classes])?, Tensor::from_vec(targets, &[rows])?])
}

/// Compares the loss, and rows of the gradient, with double precision. The gradient is a probability divided by the number
/// of rows and rounded to bf16, the loss is rounded to its dtype.
fn compare(sizes: [usize; 2], [scores, targets]: &[Tensor; 2], outputs: &[Tensor]) -> Result<()> {
    let [rows, classes] = sizes;
    let (scores, targets) = (scores.to_vec::<bf16>()?, targets.to_vec::<i64>()?);
    let target = |n: usize| targets[n] as usize;
    let row = |n: usize| scores[n * classes..][..classes].iter().map(|x| x.to_f64());
    let totals: Vec<f64> = (0..rows).into_par_iter().map(|n| row(n).map(f64::exp).sum()).collect();
    let of_row = |n: usize| totals[n].ln() - scores[n * classes + target(n)].to_f64();
    let expected = (0..rows).map(of_row).sum::<f64>() / rows as f64;
    let loss = outputs[0].iter_f64().next().context("the loss is missing")?;
    ensure!(
        (loss - expected).abs() < 5e-3 * expected.abs(),
        "the loss is {loss}, {expected} in double precision"
    );
    let gradient = outputs[1].to_vec::<bf16>()?;
    for n in (0..ROWS).map(|n| n * rows / ROWS) {
        for (j, x) in row(n).enumerate() {
            let own = x.exp() / totals[n] - f64::from(u8::from(j == target(n)));
            let (got, wanted) = (gradient[n * classes + j].to_f64() * rows as f64, own);
            ensure!(
                (got - wanted).abs() <= 1.2e-2 * wanted.abs(),
                "the gradient at {n}, {j} is {got} / {rows}, {wanted} / {rows} in double precision"
            );
        }
    }
    Ok(())
}

/// Runs all cases and prints a table; an error names the first wrong result.
pub(super) fn run(args: &Args) -> Result<()> {
    println!(
        "| cross entropy, forward and backward | µs | two passes at {} TB/s | share | call µs | steps |\n|---|--:|--:|--:|--:|---|",
        args.bandwidth
    );
    let single = args.sizes.chunks_exact(2).map(|s| [s[0], s[1]]);
    let sizes: Vec<[usize; 2]> = if args.sizes.is_empty() { SIZES.into() } else { single.collect() };
    for [rows, classes] in sizes {
        let given = inputs(rows, classes)?;
        for wide in [false, true] {
            let name = format!("{rows}×{classes} bf16{}", if wide { ", converted to f32" } else { "" });
            if !name.contains(&args.compilation.filter) {
                continue;
            }
            let graph = graph(rows, classes, wide, &given).with_context(|| name.clone())?;
            let code = args.compilation.compile(graph).with_context(|| name.clone())?;
            let measured = measure(&code, &given).with_context(|| name.clone())?;
            println!("{}", row(&name, [rows, classes], &measured, args.bandwidth));
            compare([rows, classes], &given, &measured.outputs).with_context(|| name)?;
        }
    }
    Ok(())
}

fn row(name: &str, [rows, classes]: [usize; 2], measured: &Measured, bandwidth: f64) -> String {
    let all: f64 = measured.steps.iter().map(|s| s.seconds).sum();
    // Scores are read twice and written once, two bytes each.
    let least = 6.0 * (rows * classes) as f64 / (1e12 * bandwidth);
    let steps: Vec<String> =
        measured.steps.iter().map(|s| format!("{} {:.1}", s.name, 1e6 * s.seconds)).collect();
    format!(
        "| {name} | {:.1} | {:.1} | {:.2} | {:.1} | {} |",
        1e6 * all,
        1e6 * least,
        least / all,
        1e6 * measured.call,
        steps.join(", ")
    )
}
