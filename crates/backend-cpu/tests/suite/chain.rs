//! Convolutions that are computed together, a product of pixels and the depthwise one behind it: they give what both give one after
//! the other, need less memory, and stay apart where one may not wait for the other.

// A helper of tests may fail as a test does.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs)]
use crate::common::*;
use backend_cpu::exec::{Compiled, ExecOptions};
use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{
    ArenaPlan, BodyBuilder, BufId, Const, Conv, Epilogue, InstKind, Operand, Program, ScalarOp, Step,
    Storage, StoreMode,
};
use plugin_sdk::TensorView;

const NARROW: i64 = 8;
const WIDE: i64 = 48;
/// Lines of an image, so that more than a mebibyte is between both convolutions; in the last case less.
const PIXELS: i64 = 80;

fn channels_last([n, c, h, w]: [i64; 4]) -> (Shape, Shape) {
    (shape(&[n, c, h, w]), shape(&[c * h * w, 1, w * c, c]))
}

fn whole(b: &Build, buf: BufId) -> Operand {
    let d = &b.program.buffers[buf];
    Operand { buf, sizes: d.sizes.clone(), strides: d.strides.clone(), offset: SymExpr::ZERO }
}

fn constant(b: &mut Build, name: &str, sizes: &[i64]) -> BufId {
    let strides = ir_core::contiguous_strides(&shape(sizes));
    let storage = Storage::Constant(b.program.constants.len() as u32);
    let buf = b.buffer(DType::F32, shape(sizes), strides, storage);
    b.program.constants.push(Const { name: name.into(), buf, range: None });
    buf
}

/// `[N, C, H, W]` points: the result, by an activation that no kernel has of its own where `hook` is set, plus what `added` has.
fn epilogue(b: &Build, to: BufId, hook: bool, added: Option<BufId>) -> Epilogue {
    let sizes = b.program.buffers[to].sizes.clone();
    let mut body = BodyBuilder::new();
    let at = || (0..4).map(i).collect();
    let mut v = body.push(DType::F32, InstKind::Template);
    if hook {
        v = body.op(ScalarOp::Tanh, &[v]);
    }
    if let Some(added) = added {
        let other = body.load(added, DType::F32, at());
        v = body.op(ScalarOp::Add, &[v, other]);
    }
    body.store(to, at(), v, StoreMode::Write);
    Epilogue { ranges: sizes, insts: body.finish() }
}

fn conv(b: &Build, name: &str, (input, weight): (BufId, BufId), window: i64, e: Epilogue) -> Step {
    let depthwise = b.program.buffers[weight].sizes[1] == SymExpr::ONE;
    Step::Conv(Conv {
        name: name.into(),
        origins: vec![],
        input: whole(b, input),
        weight: whole(b, weight),
        stride: vec![1; 2],
        padding: vec![(window / 2, window / 2); 2],
        dilation: vec![1; 2],
        groups: if depthwise { WIDE } else { 1 },
        transposed: false,
        acc: DType::F32,
        zero: 0,
        epilogue: e,
    })
}

/// What makes a difference to chains.
#[derive(Clone, Copy, Debug)]
struct Case {
    pixels: i64,
    hooks: [bool; 2],
    /// The second reads what the first reads, or what lies between them twice.
    also: Option<Also>,
    chained: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Also {
    /// The second's epilogue reads the pixels that its windows read.
    Between,
    /// A later step does.
    Later,
    /// The second stores where the first reads.
    InPlace,
    /// What the first reads ends there and is as large as what the second stores: both are temporaries.
    AsLarge,
}

impl Case {
    /// Channels of the first one's input.
    fn depth(self) -> i64 {
        if matches!(self.also, Some(Also::InPlace | Also::AsLarge)) { WIDE } else { NARROW }
    }
    /// One image is shared by both threads.
    fn images(self) -> i64 {
        if self.also == Some(Also::AsLarge) { 1 } else { 2 }
    }
}

/// A step that stores the negative of each element; where it does.
fn negated(b: &mut Build, from: BufId, to: BufId) -> BufId {
    let sizes = b.program.buffers[to].sizes.clone();
    let mut body = BodyBuilder::new();
    let at = || (0..4).map(i).collect();
    let v = body.load(from, DType::F32, at());
    let v = body.op(ScalarOp::Neg, &[v]);
    body.store(to, at(), v, StoreMode::Write);
    b.kernel(sizes, vec![], vec![kernel_ir::Stage { inner: shape(&[]), insts: body.finish() }]);
    to
}

fn program(case: Case) -> Program {
    let mut b = Build::default();
    let image = |c: i64| channels_last([case.images(), c, case.pixels, case.pixels]);
    let depth = case.depth();
    let (sizes, strides) = image(depth);
    let mut x = b.input_strided(DType::F32, sizes.clone(), strides.clone());
    if case.also == Some(Also::AsLarge) {
        let copy = b.buffer(DType::F32, sizes.clone(), strides, Storage::Arena);
        x = negated(&mut b, x, copy);
    }
    let (widen, filter) =
        (constant(&mut b, "widen", &[WIDE, depth, 1, 1]), constant(&mut b, "filter", &[WIDE, 1, 3, 3]));
    let (sizes, strides) = image(WIDE);
    let between = b.buffer(DType::F32, sizes.clone(), strides.clone(), Storage::Arena);
    let y = match case.also {
        Some(Also::InPlace) => b.buffer(DType::F32, sizes.clone(), strides.clone(), Storage::View(x)),
        Some(Also::AsLarge) => b.buffer(DType::F32, sizes.clone(), strides.clone(), Storage::Arena),
        _ => b.output_strided(DType::F32, sizes.clone(), strides.clone()),
    };
    let first = epilogue(&b, between, case.hooks[0], None);
    let second = epilogue(&b, y, case.hooks[1], (case.also == Some(Also::Between)).then_some(between));
    let steps = [conv(&b, "widen", (x, widen), 1, first), conv(&b, "filter", (between, filter), 3, second)];
    b.program.steps.extend(steps);
    if case.also == Some(Also::Later) {
        let z = b.output_strided(DType::F32, sizes, strides);
        let again = epilogue(&b, z, true, None);
        let step = conv(&b, "again", (between, filter), 3, again);
        b.program.steps.push(step);
    }
    if case.also == Some(Also::InPlace) {
        b.program.inputs[0].written = true;
    }
    if case.also == Some(Also::AsLarge) {
        let (sizes, strides) = image(WIDE);
        let z = b.output_strided(DType::F32, sizes, strides);
        negated(&mut b, y, z);
    }
    b.finish()
}

fn floats(sizes: &[i64], seed: u64) -> Vec<f32> {
    let mut rng = Rng(seed);
    (0..sizes.iter().product::<i64>()).map(|_| rng.unit() as f32 - 0.5).collect()
}

fn bound(program: Program, depth: i64, searches: bool) -> Compiled {
    let mut compiled = Compiled::new(program, ExecOptions { threads: 2, searches }).unwrap();
    let (widen, filter) = (floats(&[WIDE, depth], 1), floats(&[WIDE, 9], 2));
    let (sizes, strides) = ([WIDE, depth, 1, 1], [depth, 1, 1, 1]);
    let widen = TensorView::from_slice(&widen, DType::F32, &sizes, &strides).unwrap();
    let filter = TensorView::from_slice(&filter, DType::F32, &[WIDE, 1, 3, 3], &[9, 9, 3, 1]).unwrap();
    // SAFETY: both weights are packed, so that nothing reads them afterwards.
    unsafe { compiled.bind(&[("widen", widen), ("filter", filter)]) }.unwrap();
    compiled
}

/// The program with a step between both that changes nothing, so that they are apart.
fn parted(mut program: Program) -> Program {
    let mut b = Build::default();
    std::mem::swap(&mut b.program, &mut program);
    let nothing = b.output(DType::F32, shape(&[1]));
    let mut body = BodyBuilder::new();
    let zero = body.constant(0.0, DType::F32);
    body.store(nothing, shape(&[0]), zero, StoreMode::Write);
    b.kernel(shape(&[1]), vec![], vec![kernel_ir::Stage { inner: shape(&[]), insts: body.finish() }]);
    let step = b.program.steps.pop().unwrap();
    let second = b.program.steps.iter().position(|s| s.name() == "filter").unwrap();
    b.program.steps.insert(second, step);
    b.program.plan = ArenaPlan::of(&b.program);
    b.finish()
}

#[test]
fn convolutions_in_a_chain_compute_the_same() {
    let alone = Case { pixels: PIXELS, hooks: [false; 2], also: None, chained: true };
    let cases = [
        alone,
        Case { hooks: [true, false], ..alone },
        Case { hooks: [false, true], ..alone },
        Case { hooks: [true; 2], ..alone },
        Case { also: Some(Also::Between), hooks: [false, true], chained: false, ..alone },
        Case { also: Some(Also::Later), chained: false, ..alone },
        Case { also: Some(Also::AsLarge), ..alone },
        Case { also: Some(Also::AsLarge), hooks: [true; 2], ..alone },
        Case { pixels: 20, chained: false, ..alone },
    ];
    for case in cases {
        let image = [case.images(), case.depth(), case.pixels, case.pixels];
        let values = floats(&image, 3).into_iter().map(|v| Scalar::Float(v.into())).collect();
        let inputs = [Data::new(DType::F32, &image, values)];
        let wanted = execute(&bound(parted(program(case)), case.depth(), false), &inputs).unwrap();
        for searches in [false, true] {
            let compiled = bound(program(case), case.depth(), searches);
            // The arena of chained convolutions has no place for what is between them.
            let lives = program(case).plan.lives.len() - compiled.program().plan.lives.len();
            assert_eq!(lives, usize::from(case.chained), "{case:?}");
            let got = execute(&compiled, &inputs).unwrap();
            for (got, wanted) in got.iter().zip(&wanted) {
                assert!(got.values == wanted.values, "{case:?}, searches {searches}");
            }
        }
    }
}

/// A second convolution that overwrites what the first one reads has to wait for all of it.
#[test]
fn what_is_overwritten_was_read_before() {
    let case = Case { pixels: PIXELS, hooks: [false; 2], also: Some(Also::InPlace), chained: false };
    let compiled = bound(program(case), case.depth(), false);
    assert_eq!(compiled.program().plan.lives.len(), 1);
}
