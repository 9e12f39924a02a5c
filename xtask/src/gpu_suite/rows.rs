//! `xtask gpu-suite rows`: kernels over the rows of large tensors, among them rows that are not whole vectors, beside the time that
//! the bytes they must move take. No kernel is made for one of these programs.
//!
//! The first rows of each result are compared with double precision. Not here: how programs are compiled and timed (`small`).

use anyhow::{Context, Result, ensure};
use ferroflux::fx_ir::Graph;
use ir_core::DType;
use rayon::prelude::*;
use tensor::Tensor;

use super::small::{Compilation, Measured, measure, number};

/// Rows that are compared.
const COMPARED: usize = 3;

/// Arguments of `xtask gpu-suite rows`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    compilation: Compilation,
    /// Bandwidth of the device's memory in 10¹² bytes a second.
    #[arg(long, default_value_t = 4.2)]
    bandwidth: f64,
}

/// A program of rows.
struct Case {
    name: &'static str,
    dtype: &'static str,
    rows: usize,
    columns: usize,
    /// How often each element is read and written at least.
    moves: usize,
    /// The operators, with `{r}`, `{c}` and `{d}` for rows, columns and dtype; `%x` is the matrix, `%w` a row, `%v` a column.
    text: &'static str,
}

const SOFTMAX: &str = "  %y: {d}[{r}, {c}] = aten.softmax.int(%x, 1, none)\n";
const LOG_SOFTMAX: &str = "  %y: {d}[{r}, {c}] = aten.log_softmax.int(%x, 1, none)\n";
const LOG_SUM: &str = "  %y: {d}[{r}] = aten.logsumexp.default(%x, [1], false)\n";
const SUM: &str = "  %y: {d}[{r}] = aten.sum.dim_IntList(%x, [1], false, none)\n";
const NORM: &str = "  %y: {d}[{r}, {c}] = aten.layer_norm.default(%x, [{c}], %w, %w, 1e-5, true)\n";
const POINTS: &str =
    "  %z: {d}[{r}, {c}] = aten.mul.Tensor(%x, %v)\n  %y: {d}[{r}, {c}] = aten.add.Tensor(%z, %w, 1)\n";

const fn case(
    name: &'static str,
    dtype: &'static str,
    [rows, columns]: [usize; 2],
    moves: usize,
    text: &'static str,
) -> Case {
    Case { name, dtype, rows, columns, moves, text }
}

const CASES: [Case; 14] = [
    case("softmax", "bf16", [65_536, 1000], 2, SOFTMAX),
    case("softmax", "bf16", [65_536, 1001], 2, SOFTMAX),
    case("softmax", "f32", [65_536, 1000], 2, SOFTMAX),
    case("softmax", "bf16", [2048, 50_257], 2, SOFTMAX),
    case("log_softmax", "bf16", [2048, 50_257], 2, LOG_SOFTMAX),
    case("log_softmax", "bf16", [4096, 32_000], 2, LOG_SOFTMAX),
    case("logsumexp", "bf16", [4096, 50_257], 1, LOG_SUM),
    case("logsumexp", "f32", [2048, 50_257], 1, LOG_SUM),
    case("sum", "bf16", [4096, 50_257], 1, SUM),
    case("sum", "f32", [4096, 32_000], 1, SUM),
    case("layer_norm", "bf16", [65_536, 1001], 2, NORM),
    case("layer_norm", "bf16", [16_384, 4099], 2, NORM),
    case("points", "bf16", [65_536, 1001], 2, POINTS),
    case("points", "f32", [4096, 25_001], 2, POINTS),
];

impl Case {
    fn label(&self) -> String {
        format!("{} {}×{} {}", self.name, self.rows, self.columns, self.dtype)
    }

    /// The program for this many rows.
    fn graph(&self, rows: usize) -> Result<Graph> {
        let head = "fx 1.0\ngraph \"rows\" {\n  %x: {d}[{r}, {c}] = input \"x\"\n  %w: {d}[{c}] = input \"w\"\n  \
                    %v: {d}[{r}, 1] = input \"v\"\n";
        let text = format!("{head}{}  return %y\n}}\n", self.text);
        let filled = text
            .replace("{d}", self.dtype)
            .replace("{r}", &rows.to_string())
            .replace("{c}", &self.columns.to_string());
        Ok(filled.parse()?)
    }

    /// Its inputs for the first `rows` rows.
    fn inputs(&self, rows: usize) -> Result<[Tensor; 3]> {
        let dtype = if self.dtype == "f32" { DType::F32 } else { DType::BF16 };
        let of = |sizes: &[usize], seed: u64| -> Result<Tensor> {
            let count: usize = sizes.iter().product();
            let values: Vec<f32> = (0..count).into_par_iter().map(|i| 4.0 * number(i, seed)).collect();
            Ok(Tensor::from_vec(values, sizes)?.to_dtype(dtype)?)
        };
        Ok([of(&[rows, self.columns], 1)?, of(&[self.columns], 2)?, of(&[rows, 1], 3)?])
    }

    /// Compares the first rows with double precision.
    fn compare(&self, got: &Tensor) -> Result<()> {
        let double = Case { dtype: "f64", ..*self };
        let program =
            ferroflux::Program::from_graph(double.graph(COMPARED)?, &std::collections::BTreeMap::new())?;
        let graph = program.prims()?;
        let wide = self.inputs(COMPARED)?.map(|t| t.to_dtype(DType::F64));
        let wide: Vec<Tensor> = wide.into_iter().collect::<Result<_, _>>()?;
        let truth = interp::run(&graph, &wide)?.into_iter().next().context("the result is missing")?;
        let allowed = if self.dtype == "f32" { 2e-5 } else { 1e-2 };
        let scale = truth.iter_f64().fold(0.0f64, |m, t| m.max(t.abs()));
        for (i, (g, t)) in got.iter_f64().zip(truth.iter_f64()).enumerate() {
            ensure!(
                (g - t).abs() <= allowed * (t.abs() + 1e-2 * scale),
                "element {i} is {g}, {t} in double precision"
            );
        }
        Ok(())
    }
}

/// Runs all cases and prints a table; an error names the first wrong result.
pub(super) fn run(args: &Args) -> Result<()> {
    println!(
        "| rows | µs | bytes at {} TB/s | share | call µs | steps |\n|---|--:|--:|--:|--:|---|",
        args.bandwidth
    );
    for case in CASES.iter().filter(|c| c.label().contains(&args.compilation.filter)) {
        let label = case.label();
        let given = case.inputs(case.rows).with_context(|| label.clone())?;
        let code = args.compilation.compile(case.graph(case.rows)?).with_context(|| label.clone())?;
        let measured = measure(&code, &given).with_context(|| label.clone())?;
        println!("{}", row(case, &measured, args.bandwidth));
        let result = measured.outputs.first().context("the result is missing")?;
        case.compare(result).with_context(|| label)?;
    }
    Ok(())
}

fn row(case: &Case, measured: &Measured, bandwidth: f64) -> String {
    let all: f64 = measured.steps.iter().map(|s| s.seconds).sum();
    let width = if case.dtype == "f32" { 4 } else { 2 };
    let least = (case.moves * width * case.rows * case.columns) as f64 / (1e12 * bandwidth);
    let steps: Vec<String> =
        measured.steps.iter().map(|s| format!("{} {:.1}", s.name, 1e6 * s.seconds)).collect();
    format!(
        "| {} | {:.1} | {:.1} | {:.2} | {:.1} | {} |",
        case.label(),
        1e6 * all,
        1e6 * least,
        least / all,
        1e6 * measured.call,
        steps.join(", ")
    )
}
