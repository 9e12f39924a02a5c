//! `xtask gpu-suite rows`: kernels over the rows of large tensors, among them rows that are not whole vectors, beside the time that
//! the bytes they must move take. No kernel is made for one of these programs.
//!
//! The first rows of each result are compared with double precision, computed from the inputs as they are rounded. What a result may
//! deviate follows from where it is rounded and from the size of the terms that may cancel. Not here: how programs are compiled and
//! timed (`small`).

use anyhow::{Context, Result, ensure};
use ferroflux::fx_ir::Graph;
use ir_core::DType;
use rayon::prelude::*;
use tensor::Tensor;

use super::small::{Compilation, Measured, measure, number};

/// Rows that are compared.
const COMPARED: usize = 3;
/// What kernels deviate, which compute in single precision, relative to the size of the terms: some tens of roundings, and a function
/// of numbers with a rounding error of their own.
const COMPUTED: f64 = 64.0 / (1 << 24) as f64;

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
    operators: Operators,
}

/// The operators of a program, with `{r}`, `{c}` and `{d}` for rows, columns and dtype; `%x` is the matrix, `%w` a row, `%v` a column.
#[derive(Clone, Copy)]
struct Operators {
    /// How the result `%y` is computed.
    text: &'static str,
    /// How the size `%t` of the terms is computed whose sum each element of the result is.
    terms: &'static str,
    /// Whether these terms are values of the program, which rounds them to its dtype.
    rounded: bool,
}

const SOFTMAX: Operators = Operators {
    text: "  %y: {d}[{r}, {c}] = aten.softmax.int(%x, 1, none)\n",
    terms: "  %t: {d}[{r}, {c}] = aten.abs.default(%y)\n",
    rounded: false,
};
/// A number less than the logarithm of a sum.
const LOG_SOFTMAX: Operators = Operators {
    text: "  %y: {d}[{r}, {c}] = aten.log_softmax.int(%x, 1, none)\n",
    terms: "  %a: {d}[{r}, {c}] = aten.abs.default(%x)\n  %b: {d}[{r}, {c}] = aten.sub.Tensor(%x, %y, 1)\n  \
            %e: {d}[{r}, {c}] = aten.abs.default(%b)\n  %t: {d}[{r}, {c}] = aten.add.Tensor(%a, %e, 1)\n",
    rounded: false,
};
const LOG_SUM: Operators = Operators {
    text: "  %y: {d}[{r}] = aten.logsumexp.default(%x, [1], false)\n",
    terms: "  %t: {d}[{r}] = aten.abs.default(%y)\n",
    rounded: false,
};
/// Roundings of a sum go up and down, and so do the terms: both grow with the root of their number.
const SUM: Operators = Operators {
    text: "  %y: {d}[{r}] = aten.sum.dim_IntList(%x, [1], false, none)\n",
    terms: "  %a: {d}[{r}, {c}] = aten.mul.Tensor(%x, %x)\n  \
            %b: {d}[{r}] = aten.sum.dim_IntList(%a, [1], false, none)\n  %t: {d}[{r}] = aten.sqrt.default(%b)\n",
    rounded: false,
};
/// A product and a number of the column.
const NORM: Operators = Operators {
    text: "  %y: {d}[{r}, {c}] = aten.layer_norm.default(%x, [{c}], %w, %w, 1e-5, true)\n",
    terms: "  %a: {d}[{c}] = aten.abs.default(%w)\n  %b: {d}[{r}, {c}] = aten.sub.Tensor(%y, %w, 1)\n  \
            %e: {d}[{r}, {c}] = aten.abs.default(%b)\n  %t: {d}[{r}, {c}] = aten.add.Tensor(%e, %a, 1)\n",
    rounded: false,
};
/// The product is a value of the program.
const POINTS: Operators = Operators {
    text: "  %z: {d}[{r}, {c}] = aten.mul.Tensor(%x, %v)\n  %y: {d}[{r}, {c}] = aten.add.Tensor(%z, %w, 1)\n",
    terms: "  %t: {d}[{r}, {c}] = aten.abs.default(%z)\n",
    rounded: true,
};

const fn case(
    name: &'static str,
    dtype: &'static str,
    [rows, columns]: [usize; 2],
    moves: usize,
    operators: Operators,
) -> Case {
    Case { name, dtype, rows, columns, moves, operators }
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
        self.filled(self.dtype, rows, &format!("{}  return %y\n", self.operators.text))
    }

    /// In double precision the result of the compared rows, and the size of its terms.
    fn truth(&self) -> Result<[Tensor; 2]> {
        let Operators { text, terms, .. } = self.operators;
        let graph = self.filled("f64", COMPARED, &format!("{text}{terms}  return %y\n  return %t\n"))?;
        let program = ferroflux::Program::from_graph(graph, &std::collections::BTreeMap::new())?;
        let wide = self.inputs(COMPARED)?.map(|t| t.to_dtype(DType::F64));
        let wide: Vec<Tensor> = wide.into_iter().collect::<Result<_, _>>()?;
        let results = interp::run(&program.prims()?, &wide)?;
        results.try_into().map_err(|all: Vec<Tensor>| anyhow::anyhow!("there are {} results", all.len()))
    }

    fn filled(&self, dtype: &str, rows: usize, body: &str) -> Result<Graph> {
        let head = "fx 1.0\ngraph \"rows\" {\n  %x: {d}[{r}, {c}] = input \"x\"\n  %w: {d}[{c}] = input \"w\"\n  \
                    %v: {d}[{r}, 1] = input \"v\"\n";
        let filled = format!("{head}{body}}}\n")
            .replace("{d}", dtype)
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

    /// Half a unit in the last place, relative to a number of the dtype.
    fn unit(&self) -> f64 {
        if self.dtype == "f32" { 1.0 / (1 << 24) as f64 } else { 1.0 / 256.0 }
    }

    /// Compares the first rows with double precision.
    fn compare(&self, got: &Tensor) -> Result<()> {
        let [truth, terms] = self.truth()?;
        let of_terms = COMPUTED + if self.operators.rounded { self.unit() } else { 0.0 };
        for (i, ((g, t), size)) in got.iter_f64().zip(truth.iter_f64()).zip(terms.iter_f64()).enumerate() {
            // What is rounded last deviates already.
            let before = of_terms * size;
            let allowed = before + self.unit() * (t.abs() + before);
            ensure!(
                (g - t).abs() <= allowed,
                "element {i} is {g}, {t} in double precision, which allows {allowed:.1e}"
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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a failing test may panic
mod tests {
    use super::*;

    /// What rounds where the program does passes; one element that is a little larger does not.
    #[test]
    fn what_is_allowed() {
        for case in &CASES {
            let graph = case.graph(COMPARED).unwrap();
            let program = ferroflux::Program::from_graph(graph, &std::collections::BTreeMap::new()).unwrap();
            let results = interp::run(&program.prims().unwrap(), &case.inputs(COMPARED).unwrap()).unwrap();
            case.compare(&results[0]).with_context(|| case.label()).unwrap();
            let mut values: Vec<f64> = results[0].iter_f64().collect();
            let largest = values.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap();
            *largest *= 1.0 + 4.0 * case.unit().max(COMPUTED);
            let wrong = Tensor::from_vec(values, results[0].sizes()).unwrap();
            assert!(case.compare(&wrong).is_err(), "{}", case.label());
        }
    }
}
