//! Attention whose weights are dropped after the softmax, and its gradients, as whole steps in every dtype: masks, limits, shared heads,
//! words with fewer than 32 keys, words that are broadcast and apart. The oracle is the definition in `f64` on the rounded operands,
//! written out here.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use backend_cpu::exec::{Compiled, ExecOptions};
use ir_core::{DType, Scalar, SymExpr};
use kernel_ir::{
    Attention, BodyBuilder, BufId, Dropout, Epilogue, ExternCall, ExternOp, InstKind, Operand, Program,
    ScalarOp, Step, StoreMode,
};

const DTYPES: [DType; 4] = [DType::F32, DType::BF16, DType::F16, DType::F64];
/// Batch, heads of queries and of keys, queries, keys, widths of keys and of values.
const SIZES: [i64; 7] = [2, 4, 2, 6, 70, 8, 5];
const WORDS: i64 = 3;
const SCALE: f64 = 0.5;
const FACTOR: f64 = 4.0 / 3.0;

/// Operands of a step: queries, keys, values, the mask `[lq, lk]` and the words.
struct Problem {
    dtype: DType,
    qkv: [Data; 3],
    mask: Option<Data>,
    kept: Data,
    kept_strides: [i64; 4],
    causal: bool,
}

fn floats(dtype: DType, sizes: &[i64], seed: u64) -> Data {
    let rng = std::cell::RefCell::new(Rng(seed));
    let mut d = Data::floats(dtype, sizes, |_| rng.borrow_mut().unit());
    d.values.iter_mut().for_each(|v| *v = round(dtype, *v));
    d
}

/// A mask that hides some keys, and all of them from the last query.
fn mask(dtype: DType) -> Data {
    let [.., lq, lk, _, _] = SIZES;
    let mut m = floats(if dtype == DType::Bool { DType::F32 } else { dtype }, &[lq, lk], 8);
    for (n, v) in m.values.iter_mut().enumerate() {
        let hidden = n % 5 == 0 || n as i64 / lk == lq - 1;
        *v = match dtype {
            DType::Bool => Scalar::Bool(!hidden),
            _ if hidden => Scalar::Float(f64::NEG_INFINITY),
            _ => *v,
        };
    }
    Data { dtype, ..m }
}

/// Words of which about three of four bits are set: of each row, or every second one of what a head has for all its rows.
fn kept(broadcast: bool) -> (Data, [i64; 4]) {
    let [b, h, _, lq, ..] = SIZES;
    let (sizes, strides) = match broadcast {
        false => (vec![b, h, lq, WORDS], [h * lq * WORDS, lq * WORDS, WORDS, 1]),
        true => (vec![h, 2 * WORDS], [0, 2 * WORDS, 0, 2]),
    };
    let mut rng = Rng(9);
    let mut word = || Scalar::Int(i64::from((rng.next() as u32 | rng.next() as u32).cast_signed()));
    let values = (0..sizes.iter().product::<i64>()).map(|_| word()).collect();
    (Data::new(DType::I32, &sizes, values), strides)
}

impl Problem {
    fn new(dtype: DType, mask_of: Option<DType>, causal: bool, broadcast: bool) -> Problem {
        let [b, h, g, lq, lk, d, dv] = SIZES;
        let qkv = [
            floats(dtype, &[b, h, lq, d], 1),
            floats(dtype, &[b, g, lk, d], 2),
            floats(dtype, &[b, g, lk, dv], 3),
        ];
        let (kept, kept_strides) = kept(broadcast);
        Problem { dtype, qkv, mask: mask_of.map(mask), kept, kept_strides, causal }
    }

    /// All kinds of mask, limit and layout of words of a dtype.
    fn all(dtype: DType) -> Vec<Problem> {
        [
            (None, false, true),
            (None, true, false),
            (Some(dtype), false, false),
            (Some(DType::Bool), true, true),
        ]
        .map(|(mask, causal, broadcast)| Problem::new(dtype, mask, causal, broadcast))
        .into()
    }

    fn scores(&self, [b, h, i]: [i64; 3]) -> Vec<f64> {
        let [.., lk, d, _] = SIZES;
        let [q, k, _] = &self.qkv;
        let score = |j: i64| {
            let dot: f64 = (0..d).map(|x| at(q, &[b, h, i, x]) * at(k, &[b, h / 2, j, x])).sum();
            let bias = match &self.mask {
                Some(m) if m.dtype != DType::Bool => at(m, &[i, j]),
                Some(m) if !m.values[(i * lk + j) as usize].as_bool() => f64::NEG_INFINITY,
                _ => 0.0,
            };
            if self.causal && j > i { f64::NEG_INFINITY } else { SCALE * dot + bias }
        };
        (0..lk).map(score).collect()
    }

    /// What a weight is multiplied by after the softmax.
    fn factor(&self, row: [i64; 3], j: i64) -> f64 {
        let [b, h, i] = row;
        let place = [b, h, i, j / 32].iter().zip(self.kept_strides).map(|(n, s)| n * s).sum::<i64>();
        let word = self.kept.values[place as usize].as_i64();
        if word >> (j % 32) & 1 == 1 { FACTOR } else { 0.0 }
    }

    /// Adds the operands to a program, with the inputs that they are.
    fn operands(&self, b: &mut Build) -> ([Operand; 3], Option<Operand>, Operand) {
        let [n, h, _, lq, lk, ..] = SIZES;
        let qkv = self.qkv.each_ref().map(|x| input(b, x));
        let mut seen_as = |x: &Data, last: i64, strides: [i64; 4]| Operand {
            sizes: shape(&[n, h, lq, last]),
            strides: shape(&strides),
            ..input(b, x)
        };
        let mask = self.mask.as_ref().map(|m| seen_as(m, lk, [0, 0, lk, 1]));
        let kept = seen_as(&self.kept, WORDS, self.kept_strides);
        (qkv, mask, kept)
    }

    fn inputs(&self) -> Vec<Data> {
        self.qkv.iter().chain(&self.mask).chain([&self.kept]).cloned().collect()
    }

    fn what(&self) -> String {
        let mask = self.mask.as_ref().map(|m| m.dtype);
        format!("{} mask {mask:?} causal {} words {:?}", self.dtype, self.causal, self.kept_strides)
    }
}

/// A value of a row-major tensor.
fn at(t: &Data, index: &[i64]) -> f64 {
    let offset = index.iter().zip(&t.sizes).fold(0, |o, (i, n)| o * n + i);
    t.values[offset as usize].as_f64()
}

fn input(b: &mut Build, x: &Data) -> Operand {
    let buf = b.input(x.dtype, shape(&x.sizes));
    operand(b, buf)
}

fn operand(b: &Build, buf: BufId) -> Operand {
    let d = &b.program.buffers[buf];
    Operand { buf, sizes: d.sizes.clone(), strides: d.strides.clone(), offset: SymExpr::ZERO }
}

/// All rows of queries.
fn rows() -> impl Iterator<Item = [i64; 3]> {
    let [b, h, _, lq, ..] = SIZES;
    (0..b * h * lq).map(move |n| [n / lq / h, n / lq % h, n % lq])
}

/// The logarithm of the sum of the scores' exponentials.
fn log_sum(scores: &[f64]) -> f64 {
    scores.iter().map(|s| s.exp()).sum::<f64>().ln()
}

/// Units in the last place and the absolute error of results that are sums of numbers below 2.
fn tolerance(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (4.0, 1e-13),
        DType::F32 => (4.0, 4e-6),
        // Where there are tiles each weight is off by 2⁻⁹ of itself.
        DType::BF16 => (1.0, FACTOR / 256.0),
        _ => (1.0, 1e-4),
    }
}

/// `template` or `template + 1`, stored in the dtype.
fn epilogue(b: &mut Build, dtype: DType, plus_one: bool) -> Epilogue {
    let [n, h, _, lq, _, _, dv] = SIZES;
    let (acc, sizes) = (dtype.compute(), shape(&[n, h, lq, dv]));
    let mut body = BodyBuilder::new();
    let mut v = body.push(acc, InstKind::Template);
    if plus_one {
        let one = body.constant(1.0, acc);
        v = body.op(ScalarOp::Add, &[v, one]);
    }
    if dtype != acc {
        v = body.cast(v, dtype);
    }
    let y = b.output(dtype, sizes.clone());
    body.store(y, (0..4).map(i).collect(), v, StoreMode::Write);
    Epilogue { ranges: sizes, insts: body.finish() }
}

fn attention(p: &Problem, plus_one: bool) -> Program {
    let mut b = Build::default();
    let ([q, k, v], mask, kept) = p.operands(&mut b);
    let epilogue = epilogue(&mut b, p.dtype, plus_one);
    let [n, h, _, lq, ..] = SIZES;
    let sums = b.output(p.dtype.compute(), shape(&[n, h, lq]));
    let sums = Some(operand(&b, sums));
    b.program.steps.push(Step::Attention(Attention {
        name: "sdpa".into(),
        origins: vec![],
        q,
        k,
        v,
        mask,
        sums,
        dropout: Some(Dropout { kept, factor: FACTOR }),
        visibility: None,
        causal: p.causal,
        scale: SCALE,
        acc: p.dtype.compute(),
        epilogue,
    }));
    b.finish()
}

/// The result and the sums of a problem.
fn expected(p: &Problem, plus_one: bool) -> [Data; 2] {
    let [n, h, _, lq, lk, _, dv] = SIZES;
    let (mut results, mut sums) = (Vec::new(), Vec::new());
    for row in rows() {
        let scores = p.scores(row);
        let sum = log_sum(&scores);
        sums.push(Scalar::Float(sum));
        for x in 0..dv {
            let value = |j: i64| {
                let weight = (scores[j as usize] - sum).exp() * p.factor(row, j);
                weight * at(&p.qkv[2], &[row[0], row[1] / 2, j, x])
            };
            let result = if sum == f64::NEG_INFINITY { 0.0 } else { (0..lk).map(value).sum() };
            results.push(Scalar::Float(result + f64::from(u8::from(plus_one))));
        }
    }
    [Data::new(p.dtype, &[n, h, lq, dv], results), Data::new(p.dtype.compute(), &[n, h, lq], sums)]
}

#[test]
fn weights_are_dropped_after_the_softmax() {
    for p in DTYPES.into_iter().flat_map(Problem::all) {
        for plus_one in [false, true] {
            let [result, sums] = expected(&p, plus_one);
            let got = run(attention(&p, plus_one), &p.inputs());
            let (ulps, abs) = tolerance(p.dtype);
            assert_close(&got[0], &result, ulps, abs, &p.what());
            let (ulps, abs) = tolerance(sums.dtype);
            assert_close(&got[1], &sums, ulps, abs, &format!("sums of {}", p.what()));
        }
    }
}

/// What the gradients are given: the cotangent, and sums and deltas of rows in the dtype of arithmetic.
fn given(p: &Problem) -> [Data; 3] {
    let [n, h, _, lq, lk, _, dv] = SIZES;
    let g = floats(p.dtype, &[n, h, lq, dv], 4);
    let (mut sums, mut deltas) = (Vec::new(), Vec::new());
    for row in rows() {
        let scores = p.scores(row);
        let sum = log_sum(&scores);
        let part = |j: i64| (scores[j as usize] - sum).exp() * p.factor(row, j) * cotangent(p, &g, row, j);
        let delta = if sum == f64::NEG_INFINITY { 0.0 } else { (0..lk).map(part).sum() };
        sums.push(round(p.dtype.compute(), Scalar::Float(sum)));
        deltas.push(round(p.dtype.compute(), Scalar::Float(delta)));
    }
    let of_rows = |values| Data::new(p.dtype.compute(), &[n, h, lq], values);
    [g, of_rows(sums), of_rows(deltas)]
}

/// The cotangent of a weight that is kept and not multiplied.
fn cotangent(p: &Problem, g: &Data, [b, h, i]: [i64; 3], j: i64) -> f64 {
    (0..SIZES[6]).map(|x| at(g, &[b, h, i, x]) * at(&p.qkv[2], &[b, h / 2, j, x])).sum()
}

/// The gradients of queries, keys and values.
fn gradients(p: &Problem, [g, sums, deltas]: &[Data; 3]) -> [Data; 3] {
    let [.., lk, d, dv] = SIZES;
    let mut all = p.qkv.each_ref().map(|x| vec![0.0; x.values.len()]);
    for row in rows() {
        let ([b, h, i], scores) = (row, p.scores(row));
        let (sum, delta) = (at(sums, &row), at(deltas, &row));
        for j in 0..if sum == f64::NEG_INFINITY { 0 } else { lk } {
            let (weight, factor) = ((scores[j as usize] - sum).exp(), p.factor(row, j));
            let ds = weight * (factor * cotangent(p, g, row, j) - delta) * SCALE;
            let key = (b * SIZES[2] + h / 2) * lk + j;
            let query = (b * SIZES[1] + h) * SIZES[3] + i;
            for x in 0..d {
                all[0][(query * d + x) as usize] += ds * at(&p.qkv[1], &[b, h / 2, j, x]);
                all[1][(key * d + x) as usize] += ds * at(&p.qkv[0], &[b, h, i, x]);
            }
            for x in 0..dv {
                all[2][(key * dv + x) as usize] += weight * factor * at(g, &[b, h, i, x]);
            }
        }
    }
    let [dq, dk, dv] = all.map(|v| v.into_iter().map(Scalar::Float).collect::<Vec<_>>());
    let [q, k, v] = &p.qkv;
    [(q, dq), (k, dk), (v, dv)].map(|(of, values)| Data::new(p.dtype, &of.sizes, values))
}

/// The step that computes the gradients; what it is given comes last in the program's inputs.
fn backward(p: &Problem, given: &[Data; 3], words: bool) -> Program {
    let mut b = Build::default();
    let ([q, k, v], mask, kept) = p.operands(&mut b);
    let [g, sums, deltas] = given.each_ref().map(|x| input(&mut b, x));
    let outputs = p.qkv.each_ref().map(|x| {
        let y = b.output(p.dtype, shape(&x.sizes));
        operand(&b, y)
    });
    let inputs = [g, q, k, v, sums, deltas].into_iter().chain(mask).chain(words.then_some(kept));
    b.program.steps.push(Step::Extern(ExternCall {
        name: "gradients".into(),
        origins: vec![],
        op: ExternOp::AttentionBackward {
            causal: p.causal,
            scale: SCALE,
            dropout: Some(FACTOR),
            visibility: None,
        },
        inputs: inputs.collect(),
        outputs: outputs.into(),
    }));
    b.finish()
}

#[test]
fn gradients_know_which_weights_were_dropped() {
    for p in DTYPES.into_iter().flat_map(Problem::all) {
        let given = given(&p);
        let want = gradients(&p, &given);
        let inputs: Vec<Data> = p.inputs().into_iter().chain(given.clone()).collect();
        let got = run(backward(&p, &given, true), &inputs);
        // Gradients are not computed by tiles.
        let (ulps, abs) = if p.dtype == DType::BF16 { (1.0, 1e-4) } else { tolerance(p.dtype) };
        for (n, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_close(got, want, ulps, abs, &format!("gradient {n} of {}", p.what()));
        }
    }
}

#[test]
fn words_that_are_none_are_refused() {
    let refused =
        |p: Program| Compiled::new(p, ExecOptions { threads: 1, ..ExecOptions::default() }).is_err();
    let p = Problem::new(DType::F32, None, false, false);
    let given = given(&p);
    assert!(!refused(attention(&p, false)) && !refused(backward(&p, &given, true)));
    assert!(refused(backward(&p, &given, false)));
    let p = Problem { kept: Data { dtype: DType::I64, ..p.kept }, ..p };
    assert!(refused(attention(&p, false)) && refused(backward(&p, &given, true)));
}
