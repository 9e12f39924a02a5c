//! Products of a mixture of experts: rows, or parts of the depth, of groups that data tells, on all backends against sums in double
//! precision that are written out here.

use std::collections::BTreeMap;

use ferroflux::ir_core::DType;
use ferroflux::kernel_ir::Step;
use ferroflux::{Options, Program, Tensor};

/// Reproducible numbers.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: i64) -> i64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % n.max(1) as u64) as i64
    }
    fn tensor(&mut self, sizes: &[usize], dtype: DType) -> Tensor {
        let n = sizes.iter().product();
        let values: Vec<f64> = (0..n).map(|_| (self.below(2001) - 1000) as f64 / 1000.0).collect();
        Tensor::from_vec(values, sizes).unwrap().to_dtype(dtype).unwrap()
    }
}

/// Ends of `g` groups of `m` places: sorted ones with empty groups, all places in one group, places without a group, and numbers that are
/// no ends at all.
fn all_ends(rng: &mut Rng, g: usize, m: usize) -> Vec<Vec<i64>> {
    let m = m as i64;
    let mut sorted = |last: i64| {
        let mut ends: Vec<i64> = (0..g).map(|_| rng.below(last + 1)).collect();
        ends.sort_unstable();
        ends
    };
    let mut whole = sorted(m);
    whole[g - 1] = m;
    let (some, short) = (sorted(m), sorted(m / 2));
    let mut last = vec![0; g];
    last[g - 1] = m;
    let wild = (0..g).map(|i| [m + 7, -3, i64::from(i32::MIN), 1][(i + g) % 4]).collect();
    vec![whole, some, short, vec![m; g], vec![0; g], last, wild]
}

/// The group of each place.
fn owners(ends: &[i64], m: usize) -> Vec<Option<usize>> {
    (0..m as i64).map(|p| ends.iter().position(|e| *e > p)).collect()
}

fn numbers(t: &Tensor) -> Vec<f64> {
    t.iter_f64().collect()
}

fn by_rows(x: &Tensor, w: &Tensor, ends: &[i64]) -> Vec<f64> {
    let (m, k, n) = (x.sizes()[0], x.sizes()[1], w.sizes()[2]);
    let (x, w) = (numbers(x), numbers(w));
    let element = |row: usize, own: Option<usize>, c: usize| {
        own.map_or(0.0, |g| (0..k).map(|i| x[row * k + i] * w[(g * k + i) * n + c]).sum())
    };
    let owners = owners(ends, m);
    (0..m * n).map(|at| element(at / n, owners[at / n], at % n)).collect()
}

fn by_depth(x: &Tensor, w: &Tensor, ends: &[i64]) -> Vec<f64> {
    let (m, k, n) = (x.sizes()[0], x.sizes()[1], w.sizes()[1]);
    let (x, w) = (numbers(x), numbers(w));
    let owners = owners(ends, k);
    let element = |g: usize, r: usize, c: usize| -> f64 {
        (0..k).filter(|i| owners[*i] == Some(g)).map(|i| x[r * k + i] * w[i * n + c]).sum()
    };
    (0..ends.len() * m * n).map(|at| element(at / (m * n), at / n % m, at % n)).collect()
}

fn close(got: &[f64], wanted: &[f64], dtype: DType, what: &str) {
    let largest = wanted.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    let tolerance = if dtype == DType::F32 { 1e-5 } else { 1e-2 } * largest;
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (place, (g, w)) in got.iter().zip(wanted).enumerate() {
        assert!((g - w).abs() <= tolerance, "{what}: element {place} is {g}, not {w}");
    }
}

/// These backends, each compiled; the emulator of GPUs needs a C++ compiler.
fn compiled(
    lines: &str,
    weights: &[(&str, Tensor)],
    backends: &[&'static str],
) -> Vec<(&'static str, ferroflux::Compiled)> {
    let weights: BTreeMap<String, Tensor> =
        weights.iter().map(|(n, t)| ((*n).to_owned(), t.clone())).collect();
    let graph = format!("fx 1.0\ngraph \"g\" {{\n{lines}\n}}\n").parse().unwrap();
    let program = Program::from_graph(graph, &weights).unwrap();
    let kernels = program.kernels().unwrap();
    let grouped = kernels.steps.iter().filter(|s| matches!(s, Step::Matmul(m) if m.groups.is_some()));
    assert_eq!(grouped.count(), 1, "one product: {kernels}");
    let of = |backend| (backend, program.compile(&Options::new().backend(backend)).unwrap());
    let emulated = gpu_emulator::available().is_ok();
    backends.iter().copied().filter(|b| emulated || *b != "gpu-emulator").map(of).collect()
}

const BACKENDS: [&str; 3] = ["eager", "oracle", "cpu"];
const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

fn ends_of(ends: &[i64]) -> Tensor {
    let short: Vec<i32> = ends.iter().map(|e| *e as i32).collect();
    Tensor::from_vec(short, &[ends.len()]).unwrap()
}

#[test]
fn rows_of_any_groups_by_their_matrices() {
    let mut rng = Rng(7);
    for (m, k, n, g) in [(13, 16, 24, 4), (2, 32, 8, 8), (40, 24, 40, 1), (70, 7, 5, 3), (1, 16, 16, 2)] {
        for dtype in DTYPES {
            let (x, w) = (rng.tensor(&[m, k], dtype), rng.tensor(&[g, k, n], dtype));
            // Stored as `[g, n, k]`, as transformers has them.
            let turned = w.permute(&[0, 2, 1]).unwrap().copied().unwrap();
            let call = |operand: &str| {
                format!(
                    "%y: {dtype}[{m}, {n}] = aten._grouped_mm.default(%x, {operand}, %e, none, none)\nreturn %y"
                )
            };
            let input = format!("%x: {dtype}[{m}, {k}] = input \"x\"\n%e: i32[{g}] = input \"e\"");
            let forms = [
                (format!("{input}\n%w: {dtype}[{g}, {k}, {n}] = input \"w\"\n\n{}", call("%w")), true),
                (format!("%w: {dtype}[{g}, {k}, {n}] = parameter \"w\"\n{input}\n\n{}", call("%w")), false),
                (
                    format!(
                        "%t: {dtype}[{g}, {n}, {k}] = parameter \"t\"\n{input}\n\n%w: {dtype}[{g}, {k}, {n}] = aten.permute.default(%t, [0, 2, 1])\n{}",
                        call("%w")
                    ),
                    false,
                ),
            ];
            for (lines, given) in forms {
                let backends = compiled(&lines, &[("w", w.clone()), ("t", turned.clone())], &BACKENDS);
                for ends in all_ends(&mut rng, g, m) {
                    let wanted = by_rows(&x, &w, &ends);
                    let mut inputs = vec![x.clone(), ends_of(&ends)];
                    inputs.extend(given.then(|| w.clone()));
                    for (backend, program) in &backends {
                        let got = numbers(&program.call(&inputs).unwrap()[0]);
                        close(&got, &wanted, dtype, &format!("{backend} {dtype} {m}x{k}x{n} {ends:?}"));
                    }
                }
            }
        }
    }
}

#[test]
fn sums_of_any_groups_of_the_depth() {
    let mut rng = Rng(11);
    for (m, k, n, g) in [(9, 17, 24, 4), (16, 64, 8, 3), (5, 3, 40, 6), (24, 40, 1, 1)] {
        for dtype in DTYPES {
            let (x, w) = (rng.tensor(&[k, m], dtype), rng.tensor(&[k, n], dtype));
            let turned = x.permute(&[1, 0]).unwrap();
            let lines = format!(
                "%x: {dtype}[{k}, {m}] = input \"x\"\n%w: {dtype}[{k}, {n}] = input \"w\"\n%e: i32[{g}] = input \"e\"\n
%t: {dtype}[{m}, {k}] = aten.permute.default(%x, [1, 0])
%y: {dtype}[{g}, {m}, {n}] = aten._grouped_mm.default(%t, %w, %e, none, none)\nreturn %y"
            );
            let backends = compiled(&lines, &[], &BACKENDS);
            for ends in all_ends(&mut rng, g, k) {
                let wanted = by_depth(&turned, &w, &ends);
                for (backend, program) in &backends {
                    let inputs = [x.clone(), w.clone(), ends_of(&ends)];
                    let got = numbers(&program.call(&inputs).unwrap()[0]);
                    close(&got, &wanted, dtype, &format!("{backend} {dtype} {m}x{k}x{n} {ends:?}"));
                }
            }
        }
    }
}

#[test]
fn any_number_of_rows_and_an_epilogue() {
    let mut rng = Rng(13);
    let (k, n, g) = (24, 16, 5);
    let w = rng.tensor(&[g, k, n], DType::F32);
    let lines = format!(
        "  symbol s0 \"m\" 0..=512
%w: f32[{g}, {k}, {n}] = parameter \"w\"
%x: f32[s0, {k}] = input \"x\"
%e: i64[{g}] = input \"e\"

%p: f32[s0, {n}] = transformers.grouped_mm_fallback.default(%x, %w, %e)
%y: f32[s0, {n}] = aten.relu.default(%p)
return %y"
    );
    let all = [&BACKENDS[..], &["gpu-emulator"]].concat();
    let backends = compiled(&lines, &[("w", w.clone())], &all);
    for m in [0, 1, 2, 7, 33, 200] {
        let x = rng.tensor(&[m, k], DType::F32);
        for ends in all_ends(&mut rng, g, m) {
            let wanted: Vec<f64> = by_rows(&x, &w, &ends).into_iter().map(|x| x.max(0.0)).collect();
            let given = Tensor::from_vec(ends.clone(), &[g]).unwrap();
            for (backend, program) in &backends {
                let got = numbers(&program.call(&[x.clone(), given.clone()]).unwrap()[0]);
                close(&got, &wanted, DType::F32, &format!("{backend} of {m} rows {ends:?}"));
            }
        }
    }
}
