//! `xtask gpu-suite decode`: attention of one new position over caches of keys and values, in bf16, for several numbers of sequences, heads
//! and cached positions: the time of a layer, and the bytes of its cache that it reads in a second.
//!
//! A program is a chain of layers, each with a cache of its own, so that the caches do not stay in the device's own cache. The mask is
//! `arange(positions) <= position`, with a position that a call gives, as models with caches of a fixed size have it. Some results are
//! compared with double precision. Not here: how programs are compiled and timed (`small`).

use anyhow::{Context, Result, bail};
use plugin_sdk::bf16;
use tensor::Tensor;

use super::small::{Compilation, Measured, measure, number};

/// Bytes of the caches of a program, and most layers.
const BYTES: usize = 200 << 20;
const MAX_LAYERS: usize = 64;
/// Rows of the result that are compared.
const ROWS: usize = 8;
/// Largest difference from double precision: results are means of numbers up to 1 and rounded to bf16, and so are weights.
const ALLOWED: f64 = 2e-2;

/// Arguments of `xtask gpu-suite decode`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    compilation: Compilation,
    /// The share of the cached positions that are visible.
    #[arg(long, default_value_t = 0.684)]
    visible: f64,
}

/// A case.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    heads: usize,
    /// Heads of keys and values.
    shared: usize,
    positions: usize,
    elements: usize,
    /// Positions that are visible.
    visible: usize,
}

impl Case {
    /// Bytes of `positions` of a layer's cache.
    fn bytes(&self, positions: usize) -> usize {
        2 * 2 * self.batch * self.shared * positions * self.elements
    }

    fn layers(&self) -> usize {
        (BYTES / self.bytes(self.positions)).clamp(1, MAX_LAYERS)
    }

    fn name(&self) -> String {
        let Case { batch, heads, shared, positions, elements, .. } = self;
        format!("{batch}×{heads} ({shared} of keys)×{positions}×{elements}")
    }

    /// The graph: results of a layer are the queries of the next one.
    fn text(&self) -> String {
        let Case { batch: b, heads: h, shared: s, positions: n, elements: e, .. } = *self;
        let (cache, row) = (format!("bf16[{b}, {s}, {n}, {e}]"), format!("bf16[{b}, {h}, 1, {e}]"));
        let scale = 1.0 / (e as f64).sqrt();
        let (mut inputs, mut layers) = (String::new(), String::new());
        for layer in 0..self.layers() {
            inputs += &format!(
                "  %k{layer}: {cache} = input \"k{layer}\"\n  %v{layer}: {cache} = input \"v{layer}\"\n"
            );
            layers += &format!(
                "  %attention{next}: {row} = aten.scaled_dot_product_attention.default(%attention{layer}, %k{layer}, %v{layer}, %m, 0.0, false, {scale:?}, {})\n",
                s < h,
                next = layer + 1,
            );
        }
        format!(
            "fx 1.0\ngraph \"{}\" {{\n  %attention0: {row} = input \"q\"\n  %position: i64[1, 1, 1, 1] = input \"position\"\n{inputs}\n  \
             %ar: i64[{n}] = aten.arange.default({n}, none, none, @cpu, false)\n  \
             %at: i64[1, 1, 1, {n}] = aten.reshape.default(%ar, [1, 1, 1, {n}])\n  \
             %m: bool[1, 1, 1, {n}] = aten.le.Tensor(%at, %position)\n{layers}  return %attention{}\n}}\n",
            self.name(),
            self.layers(),
        )
    }

    /// Queries, the position, keys and values of each layer.
    fn inputs(&self) -> Result<Vec<Tensor>> {
        let Case { batch, heads, shared, positions, elements, visible } = *self;
        let random = |shape: [usize; 4], seed: u64| {
            let count = shape.iter().product();
            let values: Vec<bf16> = (0..count).map(|i| bf16::from_f32(number(i, seed))).collect();
            Tensor::from_vec(values, &shape)
        };
        let mut all = vec![random([batch, heads, 1, elements], 1)?];
        all.push(Tensor::from_vec(vec![visible as i64 - 1], &[1, 1, 1, 1])?);
        for layer in 0..2 * self.layers() {
            all.push(random([batch, shared, positions, elements], 2 + layer as u64)?);
        }
        Ok(all)
    }

    /// The largest difference of some rows of the result from the layers in double precision.
    fn difference(&self, inputs: &[Tensor], output: &Tensor) -> Result<f64> {
        let Case { batch, heads, shared, positions, elements: e, visible } = *self;
        let slice = |t: &Tensor| t.to_vec::<bf16>().context("a tensor of bf16");
        let (queries, results) = (slice(&inputs[0])?, slice(output)?);
        let caches: Vec<Vec<bf16>> = inputs[2..].iter().map(slice).collect::<Result<_>>()?;
        let mut worst = 0.0f64;
        for n in 0..ROWS {
            let (b, h) = (n % batch, n * 5 % heads);
            let at = (b * heads + h) * e;
            let mut row: Vec<f64> = queries[at..at + e].iter().map(|x| x.to_f64()).collect();
            for cache in caches.chunks(2) {
                let first = (b * shared + h / (heads / shared)) * positions * e;
                let line = |x: &[bf16], j: usize| {
                    x[first + j * e..first + (j + 1) * e].iter().map(|x| x.to_f64()).collect::<Vec<f64>>()
                };
                let dot = |j: usize| line(&cache[0], j).iter().zip(&row).map(|(a, b)| a * b).sum::<f64>();
                let weights: Vec<f64> = (0..visible).map(|j| (dot(j) / (e as f64).sqrt()).exp()).collect();
                let total: f64 = weights.iter().sum();
                let mut next = vec![0.0; e];
                for (j, w) in weights.iter().enumerate() {
                    next.iter_mut().zip(line(&cache[1], j)).for_each(|(x, v)| *x += w / total * v);
                }
                row = next;
            }
            for (x, y) in row.iter().zip(&results[at..at + e]) {
                let error = (x - y.to_f64()).abs();
                worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
            }
        }
        Ok(worst)
    }
}

/// Sequences, heads, heads of keys, cached positions, elements.
const CASES: [[usize; 5]; 14] = [
    [1, 32, 32, 1024, 128],
    [16, 32, 32, 1024, 64],
    [1, 32, 8, 1024, 64],
    [4, 32, 8, 1024, 64],
    [16, 32, 8, 512, 64],
    [16, 32, 8, 1024, 64],
    [16, 32, 8, 4096, 64],
    [64, 32, 8, 1024, 64],
    [1, 32, 8, 32768, 128],
    [16, 32, 8, 1024, 128],
    [4, 32, 8, 4096, 128],
    [16, 32, 2, 4096, 128],
    [16, 32, 4, 2048, 80],
    [4, 16, 4, 4096, 256],
];

/// Runs all cases and prints a table; an error names the first wrong result.
pub(super) fn run(args: &Args) -> Result<()> {
    println!(
        "| sequences × heads × positions × elements | µs a layer | visible, TB/s | whole cache, TB/s | difference |\n|---|--:|--:|--:|--:|"
    );
    for [batch, heads, shared, positions, elements] in CASES {
        let visible = ((positions as f64 * args.visible) as usize).clamp(1, positions);
        let case = Case { batch, heads, shared, positions, elements, visible };
        if !case.name().contains(&args.compilation.filter) {
            continue;
        }
        let given = case.inputs()?;
        let graph = case.text().parse().with_context(|| case.name())?;
        let code = args.compilation.compile(graph).with_context(|| case.name())?;
        let measured = measure(&code, &given).with_context(|| case.name())?;
        let error = case.difference(&given, &measured.outputs[0])?;
        println!("{}", row(&case, &measured, error));
        if error > ALLOWED {
            bail!("{}: a row differs by {error:.1e} from double precision", case.name());
        }
    }
    Ok(())
}

fn row(case: &Case, measured: &Measured, error: f64) -> String {
    let steps = measured.steps.iter().filter(|s| s.name.contains("attention"));
    let seconds = steps.map(|s| s.seconds).sum::<f64>() / case.layers() as f64;
    let rate = |positions: usize| case.bytes(positions) as f64 / seconds / 1e12;
    format!(
        "| {} | {:.1} | {:.2} | {:.2} | {error:.0e} |",
        case.name(),
        1e6 * seconds,
        rate(case.visible),
        rate(case.positions),
    )
}
