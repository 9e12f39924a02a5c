//! `xtask gpu-suite masks`: attention with the masks that Hugging Face's models build, forward, in bf16, beside the causal
//! kernel without a mask: the time of the attention, and of the steps that write the mask or note what it hides.
//!
//! The programs are captured graphs of ATen operators, with queries, keys and values as projections leave them ([batch,
//! length, heads, elements], transposed), so everything from the passes on decides as in a model. Rows of the result are
//! compared with double precision. Not here: how programs are compiled and timed (`small`).

use anyhow::{Context, Result, bail};
use ir_core::DType;
use plugin_sdk::bf16;
use tensor::Tensor;

use super::small::{Compilation, Measured, measure, number};

/// Queries and keys of the blocks whose visible share is counted; kernels skip blocks of this size.
const BLOCK: usize = 64;
/// Rows of the result that are compared.
const ROWS: usize = 24;
/// Largest difference from double precision: results are means of numbers up to 1 and rounded to bf16, and so are weights.
const ALLOWED: f64 = 2e-2;

/// Arguments of `xtask gpu-suite masks`.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    compilation: Compilation,
    /// Queries and keys.
    #[arg(long, default_value_t = 2048)]
    length: usize,
    /// Heads of queries.
    #[arg(long, default_value_t = 16)]
    heads: usize,
    /// Elements of a head.
    #[arg(long, value_delimiter = ',', default_value = "64,128")]
    elements: Vec<usize>,
}

/// What hides scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Nothing.
    Full,
    /// The operator's flag.
    Flag,
    /// `arange`, `le`.
    Causal,
    /// The same as numbers that are added: 0 and the least finite one.
    CausalNumbers,
    /// Causal, and no more than a number of keys before.
    Window,
    /// A number of keys on both sides.
    Band,
    /// Positions of one document see one another.
    Documents,
    /// The same, and causal.
    CausalDocuments,
    /// Keys behind a sequence's end, of a batch with several lengths.
    Padding,
    /// The same, and causal.
    CausalPadding,
}

/// A case.
#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    batch: usize,
    length: usize,
    heads: usize,
    /// Heads of keys and values.
    shared: usize,
    elements: usize,
}

impl Case {
    /// Keys that a window shows: as many as show the share of blocks that a triangle shows (a band), or a quarter of the
    /// length, as models with windows have it at the lengths they are for.
    fn window(&self) -> usize {
        match self.kind {
            Kind::Band => self.length * 29 / 100,
            _ => self.length / 4,
        }
    }

    /// The document of a position: two documents show the share that a triangle shows, four are packed for training.
    fn document(&self, at: usize) -> i64 {
        let documents = if self.kind == Kind::Documents { 2 } else { 4 };
        (at * documents / self.length) as i64
    }

    /// The length of a sequence of the batch: the mean over four sequences is half of the longest, as is a triangle's share.
    fn real_length(&self, batch: usize) -> usize {
        [self.length, self.length / 2, self.length / 4, self.length / 4][batch % 4]
    }

    fn shows(&self, batch: usize, query: usize, key: usize) -> bool {
        let (causal, window) = (key <= query, self.window());
        let together = self.document(query) == self.document(key);
        match self.kind {
            Kind::Full => true,
            Kind::Flag | Kind::Causal | Kind::CausalNumbers => causal,
            Kind::Window => causal && key + window > query,
            Kind::Band => key + window > query && key < query + window,
            Kind::Documents => together,
            Kind::CausalDocuments => together && causal,
            Kind::Padding => key < self.real_length(batch),
            Kind::CausalPadding => causal && key < self.real_length(batch),
        }
    }

    /// The share of blocks in which at least one score is shown. Corners of a block suffice, and its diagonal for bands.
    fn visible(&self) -> f64 {
        let blocks = self.length.div_ceil(BLOCK);
        let end = |block: usize| (block * BLOCK + BLOCK).min(self.length) - 1;
        let shown = |b: usize, q: usize, k: usize| {
            let corners =
                [(q * BLOCK, k * BLOCK), (end(q), k * BLOCK), (q * BLOCK, end(k)), (end(q), end(k))];
            corners.iter().any(|&(i, j)| self.shows(b, i, j))
        };
        let all = self.batch * blocks * blocks;
        let count =
            (0..all).filter(|n| shown(n / (blocks * blocks), n / blocks % blocks, n % blocks)).count();
        count as f64 / all as f64
    }

    /// The case whose attention is the measure of this one: the flag's, with the same batch and heads.
    fn causal(self) -> Case {
        Case { kind: Kind::Flag, ..self }
    }

    fn name(&self) -> String {
        let Case { kind, batch, length, heads, shared, elements } = self;
        let grouped = if shared == heads { String::new() } else { format!(" ({shared} of keys)") };
        format!("{kind:?} {batch}×{heads}{grouped}×{length}×{elements}")
    }
}

/// The lines of a graph that compute a mask as models do; the value is `%m`.
fn mask_lines(case: &Case) -> (String, &'static str) {
    let Case { batch: b, length: n, kind, .. } = *case;
    let mut text = String::new();
    let full = format!("bool[{b}, 1, {n}, {n}]");
    let one = format!("bool[1, 1, {n}, {n}]");
    let mut line = |l: String| text.push_str(&format!("  {l}\n"));
    line(format!("%ar: i64[{n}] = aten.arange.default({n}, none, none, @cpu, false)"));
    line(format!("%qi: i64[1, 1, {n}, 1] = aten.reshape.default(%ar, [1, 1, {n}, 1])"));
    line(format!("%ki: i64[1, 1, 1, {n}] = aten.reshape.default(%ar, [1, 1, 1, {n}])"));
    line(format!("%bar: i64[{b}] = aten.arange.default({b}, none, none, @cpu, false)"));
    line(format!("%bi: i64[{b}, 1, 1, 1] = aten.reshape.default(%bar, [{b}, 1, 1, 1])"));
    line(format!("%le: {one} = aten.le.Tensor(%ki, %qi)"));
    let far = |line: &mut dyn FnMut(String)| {
        line(format!("%first: i64[1, 1, {n}, 1] = aten.sub.Tensor(%qi, {}, 1)", case.window()));
        line(format!("%gt: {one} = aten.gt.Tensor(%ki, %first)"));
    };
    let shown = match kind {
        Kind::Full | Kind::Flag => return (String::new(), "none"),
        Kind::Causal | Kind::CausalNumbers => "%le",
        Kind::Window => {
            far(&mut line);
            line(format!("%near: {one} = aten.__and__.Tensor(%gt, %le)"));
            "%near"
        }
        Kind::Band => {
            far(&mut line);
            line(format!("%last: i64[1, 1, {n}, 1] = aten.add.Tensor(%qi, {}, 1)", case.window()));
            line(format!("%lt: {one} = aten.lt.Tensor(%ki, %last)"));
            line(format!("%near: {one} = aten.__and__.Tensor(%gt, %lt)"));
            "%near"
        }
        Kind::Documents | Kind::CausalDocuments => {
            line(format!("%dq: i64[{b}, 1, {n}, 1] = aten.index.Tensor(%given, [%bi, %qi])"));
            line(format!("%dk: i64[{b}, 1, 1, {n}] = aten.index.Tensor(%given, [%bi, %ki])"));
            line(format!("%same: {full} = aten.eq.Tensor(%dq, %dk)"));
            "%same"
        }
        Kind::Padding | Kind::CausalPadding => {
            line(format!("%real: bool[{b}, 1, 1, {n}] = aten.index.Tensor(%given, [%bi, %ki])"));
            "%real"
        }
    };
    let mut shown = shown;
    if matches!(kind, Kind::CausalDocuments | Kind::CausalPadding) {
        line(format!("%both: {full} = aten.__and__.Tensor(%le, {shown})"));
        shown = "%both";
    }
    if kind == Kind::CausalNumbers {
        line("%zero: bf16[] = aten.full.default([], 0.0, bf16, none, @cpu, false)".to_owned());
        line(
            "%least: bf16[] = aten.full.default([], -3.3895313892515355e38, bf16, none, @cpu, false)"
                .to_owned(),
        );
        line(format!("%w: bf16[1, 1, {n}, {n}] = aten.where.self(%le, %zero, %least)"));
        line(format!(
            "%m: bf16[{b}, 1, {n}, {n}]{{0, 0, {n}, 1}} = aten.expand.default(%w, [{b}, -1, {n}, {n}], false)"
        ));
    } else {
        line(format!("%m: {full} = aten.expand.default({shown}, [{b}, -1, {n}, {n}], false)"));
    }
    (text, "%m")
}

/// The graph of a case.
fn text(case: &Case) -> String {
    let Case { kind, batch: b, length: n, heads: h, shared: s, elements: e, .. } = *case;
    let given = match kind {
        Kind::Documents | Kind::CausalDocuments => format!("  %given: i64[{b}, {n}] = input \"documents\"\n"),
        Kind::Padding | Kind::CausalPadding => format!("  %given: bool[{b}, {n}] = input \"padding\"\n"),
        _ => String::new(),
    };
    let (lines, mask) = mask_lines(case);
    let mut repeated = String::new();
    let repeat = h / s;
    for x in ["k", "v"] {
        let shape = format!("[{b}, {s}, {repeat}, {n}, {e}]");
        let lines = match repeat {
            1 => format!("  %{x}r: bf16[{b}, {h}, {n}, {e}] = aten.transpose.int(%{x}, 1, 2)\n"),
            _ => format!(
                "  %{x}t: bf16[{b}, {s}, {n}, {e}] = aten.transpose.int(%{x}, 1, 2)\n  \
                 %{x}u: bf16[{b}, {s}, 1, {n}, {e}] = aten.unsqueeze.default(%{x}t, 2)\n  \
                 %{x}e: bf16{shape} = aten.expand.default(%{x}u, {shape}, false)\n  \
                 %{x}r: bf16[{b}, {h}, {n}, {e}] = aten.reshape.default(%{x}e, [{b}, {h}, {n}, {e}])\n"
            ),
        };
        repeated.push_str(&lines);
    }
    let scale = 1.0 / (e as f64).sqrt();
    format!(
        "fx 1.0\ngraph \"{}\" {{\n  %q: bf16[{b}, {n}, {h}, {e}] = input \"q\"\n  %k: bf16[{b}, {n}, {s}, {e}] = input \"k\"\n  \
         %v: bf16[{b}, {n}, {s}, {e}] = input \"v\"\n{given}\n{lines}  \
         %qr: bf16[{b}, {h}, {n}, {e}] = aten.transpose.int(%q, 1, 2)\n{repeated}  \
         %attention: bf16[{b}, {h}, {n}, {e}] = aten.scaled_dot_product_attention.default(%qr, %kr, %vr, {mask}, 0.0, {}, {scale:?}, false)\n  \
         %t: bf16[{b}, {n}, {h}, {e}] = aten.transpose.int(%attention, 1, 2)\n  return %t\n}}\n",
        case.name(),
        kind == Kind::Flag,
    )
}

/// Queries, keys, values, and what the mask is computed from.
fn inputs(case: &Case) -> Result<Vec<Tensor>> {
    let Case { kind, batch, length, heads, shared, elements } = *case;
    let random = |heads: usize, seed: u64| {
        let count = batch * length * heads * elements;
        let values: Vec<bf16> = (0..count).map(|i| bf16::from_f32(number(i, seed))).collect();
        Tensor::from_vec(values, &[batch, length, heads, elements])
    };
    let mut all = vec![random(heads, 1)?, random(shared, 2)?, random(shared, 3)?];
    let positions = (0..batch).flat_map(|b| (0..length).map(move |i| (b, i)));
    match kind {
        Kind::Documents | Kind::CausalDocuments => {
            all.push(Tensor::from_vec(positions.map(|(_, i)| case.document(i)).collect(), &[batch, length])?);
        }
        Kind::Padding | Kind::CausalPadding => {
            let real = positions.map(|(b, i)| i64::from(i < case.real_length(b))).collect();
            all.push(Tensor::from_vec(real, &[batch, length])?.to_dtype(DType::Bool)?);
        }
        _ => {}
    }
    Ok(all)
}

/// The largest difference of some rows of the result from double precision. Keys are shown to every row that is compared.
fn difference(case: &Case, inputs: &[Tensor], output: &Tensor) -> Result<f64> {
    let slice = |t: &Tensor| -> Result<Vec<f64>> {
        let values = t.to_vec::<bf16>().context("a tensor of bf16")?;
        Ok(values.into_iter().map(bf16::to_f64).collect())
    };
    let [q, k, v, y] = [&inputs[0], &inputs[1], &inputs[2], output].map(slice);
    let (q, k, v, y) = (q?, k?, v?, y?);
    let Case { batch, length, heads, shared, elements: e, .. } = *case;
    let mut worst = 0.0f64;
    for n in 0..ROWS {
        let (b, h, i) = (n % batch, n * 5 % heads, n * 7919 % length);
        let other = h / (heads / shared);
        let row = |x: &[f64], at: usize, head: usize, heads: usize| {
            let start = ((b * length + at) * heads + head) * e;
            x[start..start + e].to_vec()
        };
        let query = row(&q, i, h, heads);
        let keys: Vec<usize> = (0..length).filter(|&j| case.shows(b, i, j)).collect();
        let dot = |j: usize| row(&k, j, other, shared).iter().zip(&query).map(|(a, b)| a * b).sum::<f64>();
        let weights: Vec<f64> = keys.iter().map(|&j| (dot(j) / (e as f64).sqrt()).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut expected = vec![0.0; e];
        for (&j, w) in keys.iter().zip(&weights) {
            expected.iter_mut().zip(row(&v, j, other, shared)).for_each(|(x, v)| *x += w / total * v);
        }
        let got = row(&y, i, h, heads);
        for (x, y) in expected.iter().zip(got) {
            let error = (x - y).abs();
            worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
        }
    }
    Ok(worst)
}

/// The cases of one number of elements.
fn cases(args: &Args, elements: usize) -> Vec<Case> {
    let (length, heads) = (args.length, args.heads);
    let case = |kind, batch, shared| Case { kind, batch, length, heads, shared, elements };
    let mut all: Vec<Case> = [
        Kind::Flag,
        Kind::Causal,
        Kind::CausalNumbers,
        Kind::Band,
        Kind::Window,
        Kind::Documents,
        Kind::CausalDocuments,
        Kind::Full,
    ]
    .map(|kind| case(kind, 1, heads))
    .into();
    all.extend([Kind::Flag, Kind::Causal, Kind::Window].map(|kind| case(kind, 1, (heads / 4).max(1))));
    all.extend([Kind::Flag, Kind::Padding, Kind::CausalPadding].map(|kind| case(kind, 4, heads)));
    all
}

/// Runs all cases and prints a table; an error names the first wrong result.
pub(super) fn run(args: &Args) -> Result<()> {
    if args.heads == 0 || args.length == 0 || !args.heads.is_multiple_of(args.heads.min(4)) {
        bail!("--heads must be less than 4 or a multiple of it, and --length at least 1");
    }
    println!(
        "| attention, batch × heads × length × elements | blocks shown | attention µs | mask µs | together | per shown block, of causal | call µs | difference | steps |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|---|"
    );
    for &elements in &args.elements {
        let mut causal: Vec<(String, f64)> = Vec::new();
        for case in cases(args, elements) {
            // The measure of others runs for every filter.
            if case.kind != Kind::Flag && !case.name().contains(&args.compilation.filter) {
                continue;
            }
            let given = inputs(&case)?;
            let graph = text(&case).parse().with_context(|| case.name())?;
            let code = args.compilation.compile(graph).with_context(|| case.name())?;
            let measured = measure(&code, &given).with_context(|| case.name())?;
            let error = difference(&case, &given, &measured.outputs[0])?;
            let per_block = attention(&measured) / case.visible();
            if case.kind == Kind::Flag {
                causal.push((case.name(), per_block));
            }
            let of = case.causal().name();
            let of = causal.iter().find(|(name, _)| *name == of).map_or(f64::NAN, |(_, t)| *t);
            println!("{}", row(&case, &measured, per_block / of, error));
            if error > ALLOWED {
                bail!("{}: a row differs by {error:.1e} from double precision", case.name());
            }
        }
    }
    Ok(())
}

/// Seconds of the attention's kernels: those of steps that are named for its value.
fn attention(measured: &Measured) -> f64 {
    measured.steps.iter().filter(|s| s.name.contains("attention")).map(|s| s.seconds).sum()
}

fn row(case: &Case, measured: &Measured, ratio: f64, error: f64) -> String {
    let all: f64 = measured.steps.iter().map(|s| s.seconds).sum();
    let own = attention(measured);
    let steps: Vec<String> =
        measured.steps.iter().map(|s| format!("{} {:.1}", s.name, 1e6 * s.seconds)).collect();
    format!(
        "| {} | {:.3} | {:.1} | {:.1} | {:.1} | {ratio:.2} | {:.1} | {error:.0e} | {} |",
        case.name(),
        case.visible(),
        1e6 * own,
        1e6 * (all - own),
        1e6 * all,
        1e6 * measured.call,
        steps.join(", ")
    )
}
