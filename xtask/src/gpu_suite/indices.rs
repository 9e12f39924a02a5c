//! `xtask gpu-suite indices`: indices from data that are out of bounds, on a real device. Rows that are read and rows that are
//! added to, with bad indices and with good ones, in every mode; then what the checks cost.
//!
//! The programs are in the words of kernel-ir, so that the same steps run with checks and without. Not here: which operators
//! ask for checks (`prims`, `inductor`), and the emulated device's own tests.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use plugin_host::{CompileArgs, KERNEL_IR, LoadedBackend, LoadedExecutable, Registry, Value};
use tensor::Tensor;

/// The modes in which calls run, by their names.
const MODES: [&str; 3] = ["default", "reduce-overhead", "max-autotune"];
/// Indices that no table has.
const BAD: [i64; 4] = [-1, 1_000_000_000, i64::MIN, i64::MAX];
/// Calls of which the median counts, and calls that are put on the stream at once.
const ROUNDS: usize = 15;

/// Arguments of `xtask gpu-suite indices`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The backend.
    #[arg(long, default_value = "cuda")]
    backend: String,
    /// Rows of the table.
    #[arg(long, default_value_t = 32_000)]
    rows: usize,
    /// Elements of a row.
    #[arg(long, default_value_t = 4096)]
    width: usize,
    /// Indices.
    #[arg(long, default_value_t = 2048)]
    count: usize,
    /// Calls that are timed together.
    #[arg(long, default_value_t = 200)]
    calls: usize,
}

/// Rows of a table: `y[i] = table[index[i]]`; with `add`: `y[index[i]] += table[i]`, where `y` begins with zeros.
fn text(args: &Args, add: bool, checked: bool) -> String {
    let Args { rows, width, count, .. } = args;
    let (check, flag, at) = match checked {
        true => (format!("check v0, [{rows}] at 0"), "", "v1"),
        false => ("const 0".to_owned(), "unchecked_indices\n", "v0"),
    };
    let (table, out) = if add { (count, rows) } else { (rows, count) };
    let zeros = match add {
        true => format!(
            "loop \"zeros\" outer [{out}, {width}]\n  stage []\n    v0: f32 = const 0.0\n    v1: f32 = store b2[i0, i1], v0\n"
        ),
        false => String::new(),
    };
    let body = match add {
        true => format!("v2: f32 = load b0[i0, i1]\n    v3: f32 = store_add b2[{at}, i1], v2"),
        false => format!("v2: f32 = load b0[{at}, i1]\n    v3: f32 = store b2[i0, i1], v2"),
    };
    format!(
        r#"kir 1.6
program "indices"
site "aten.embedding.default" "suite" dim 0
{flag}buffer b0 "table" f32[{table}, {width}]{{{width}, 1}}+0 input 0
buffer b1 "index" i64[{count}]{{1}}+0 input 1
buffer b2 "y" f32[{out}, {width}]{{{width}, 1}}+0 output
input "table" b0
input "index" b1
output "y" b2[{out}, {width}]{{{width}, 1}}+0
init:
steps:
{zeros}loop "rows" outer [{count}, {width}]
  stage []
    v0: i64 = load b1[i0]
    v1: i64 = {check}
    {body}
plan bytes 0:
"#
    )
}

/// Runs all; an error names the first thing that was not as it should be.
pub(super) fn run(args: &Args) -> Result<()> {
    let backend = Registry::from_env().load(&args.backend)?;
    for mode in MODES {
        for add in [false, true] {
            let code = compiled(&backend, &text(args, add, true), mode)?;
            outcomes(args, &code, add)?;
            println!("{mode}, {}: every bad index was named, every good call was right", what(add));
        }
    }
    for add in [false, true] {
        for mode in MODES {
            let [checked, unchecked] =
                [true, false].map(|checked| compiled(&backend, &text(args, add, checked), mode));
            check_cost(args, &backend, (&checked?, &unchecked?), add, mode)?;
        }
    }
    Ok(())
}

fn what(add: bool) -> &'static str {
    if add { "rows added to" } else { "rows read" }
}

fn compiled(backend: &LoadedBackend, text: &str, mode: &str) -> Result<LoadedExecutable> {
    let program: kernel_ir::Program = text.parse()?;
    let bytes = program.to_bytes();
    let mut code = backend.compile(&CompileArgs::new(KERNEL_IR, &bytes).mode(mode))?;
    code.bind_constants(&[])?;
    Ok(code)
}

/// A table, and indices of which one may be bad.
fn inputs(args: &Args, add: bool, bad: Option<i64>) -> Result<[Tensor; 2]> {
    let table = if add { args.count } else { args.rows };
    let values: Vec<f32> = (0..table * args.width).map(|i| (i % 251) as f32 - 125.0).collect();
    let mut index: Vec<i64> = (0..args.count).map(|i| (i * 7919 % args.rows) as i64).collect();
    if let (Some(bad), at) = (bad, args.count / 3) {
        index[at] = bad;
    }
    Ok([Tensor::from_vec(values, &[table, args.width])?, Tensor::from_vec(index, &[args.count])?])
}

/// What a good call gives.
fn right(args: &Args, add: bool, [table, index]: &[Tensor; 2]) -> Result<Vec<f32>> {
    let (Some(table), Some(index)) = (table.as_slice::<f32>(), index.as_slice::<i64>()) else {
        bail!("inputs are contiguous")
    };
    let width = args.width;
    if !add {
        return Ok(index.iter().flat_map(|i| &table[*i as usize * width..][..width]).copied().collect());
    }
    let mut sums = vec![0f32; args.rows * width];
    for (row, to) in index.iter().enumerate() {
        for w in 0..width {
            sums[*to as usize * width + w] += table[row * width + w];
        }
    }
    Ok(sums)
}

/// Good and bad calls in turn.
fn outcomes(args: &Args, code: &LoadedExecutable, add: bool) -> Result<()> {
    let good = inputs(args, add, None)?;
    let expected = right(args, add, &good)?;
    for bad in BAD.into_iter().chain([args.rows as i64]) {
        let [table, index] = inputs(args, add, Some(bad))?;
        let Err(error) = code.execute(&[&table, &index]) else { bail!("index {bad} gave a result") };
        let wanted = format!("index {bad} is out of bounds for dimension 0 with size {}", args.rows);
        ensure!(error.to_string().contains(&wanted), "index {bad}: {error}");
        for _ in 0..2 {
            let got = code.execute(&[&good[0], &good[1]])?;
            ensure!(
                got[0].as_slice::<f32>() == Some(&expected[..]),
                "a good call after index {bad} is wrong"
            );
        }
    }
    Ok(())
}

/// Seconds of a call with checks and of one without, in turn, and how much longer the former is.
fn check_cost(
    args: &Args,
    backend: &LoadedBackend,
    codes: (&LoadedExecutable, &LoadedExecutable),
    add: bool,
    mode: &str,
) -> Result<()> {
    let device = backend.devices()?.first().map(|d| d.device).ok_or_else(|| anyhow::anyhow!("no device"))?;
    let put = |t: &Tensor| -> Result<Value> { Ok(Value::Device(backend.to_device(t, device)?)) };
    let [table, index] = inputs(args, add, None)?;
    let given = [put(&table)?, put(&index)?];
    let given = [&given[0], &given[1]];
    let timed = |code: &LoadedExecutable| -> Result<f64> {
        let stream = if backend.has_streams() { Some(backend.create_stream(device)?) } else { None };
        let start = Instant::now();
        for _ in 0..args.calls {
            match &stream {
                Some(stream) => drop(code.execute_on(&given, stream)?),
                None => drop(code.execute_values(&given)?),
            }
        }
        if let Some(stream) = &stream {
            stream.synchronize()?;
        }
        Ok(start.elapsed().as_secs_f64() / args.calls as f64)
    };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(timed(codes.0)?);
        without.push(timed(codes.1)?);
    }
    let [with, without] = [with, without].map(median);
    let more = 100.0 * (with / without - 1.0);
    println!(
        "{mode}, {}: {:.2} µs checked, {:.2} µs not, {more:+.2} %",
        what(add),
        1e6 * with,
        1e6 * without
    );
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
