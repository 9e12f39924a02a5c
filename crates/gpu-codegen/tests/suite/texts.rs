//! Properties of kernels that need no compiler: parameters, launches, equal texts. `xtask kernels` shows that they
//! compile, golden cases on a device what they compute.
#![allow(clippy::unwrap_used)]

use gpu_codegen::{Features, Kernel, LaunchGroup, Param, Target, Tf32, fuse_launches, variants};
use ir_core::{DType, Shape, SymExpr};
use kernel_ir::{
    AccDecl, AccId, BodyBuilder, BufId, Buffer, InstKind, LoopKernel, Program, ReduceOp, ScalarOp, Stage,
    Step, Storage, StoreMode,
};

fn buffer(program: &mut Program, sizes: &[i64], storage: Storage) -> BufId {
    let sizes: Shape = sizes.iter().map(|&n| SymExpr::from_i64(n)).collect();
    program.buffers.push(Buffer {
        name: "b".into(),
        dtype: DType::F32,
        strides: ir_core::contiguous_strides(&sizes),
        sizes,
        offset: SymExpr::ZERO,
        storage,
    })
}

fn store(b: &mut BodyBuilder, buf: BufId, index: Shape, value: kernel_ir::Val) {
    b.push(DType::F32, InstKind::Store { buf, index, value, mask: None, mode: StoreMode::Write });
}

/// The one kernel of a loop.
fn only(program: &Program, kernel: LoopKernel) -> Kernel {
    let first = variants(program, &Step::Loop(kernel), &Target::HOPPER).unwrap().swap_remove(0);
    let [kernel] = <[Kernel; 1]>::try_from(first.kernels).unwrap();
    kernel
}

/// `out[i] = exp(a[i])`.
fn pointwise(program: &Program, a: BufId, out: BufId, n: i64) -> Kernel {
    let mut b = BodyBuilder::new();
    let index: Shape = [SymExpr::loop_var(0)].into_iter().collect();
    let x = b.load(a, DType::F32, index.clone());
    let y = b.op(ScalarOp::Exp, &[x]);
    store(&mut b, out, index, y);
    let kernel = LoopKernel {
        name: "exp".into(),
        origins: Vec::new(),
        outer: [SymExpr::from_i64(n)].into_iter().collect(),
        accs: Vec::new(),
        stages: vec![Stage { inner: Shape::new(), insts: b.finish() }],
    };
    only(program, kernel)
}

#[test]
fn equal_kernels_have_equal_texts() {
    let mut p = Program::default();
    let bufs: Vec<BufId> = (0..4).map(|_| buffer(&mut p, &[1000], Storage::Arena)).collect();
    let (one, two) = (pointwise(&p, bufs[0], bufs[1], 1000), pointwise(&p, bufs[3], bufs[2], 1000));
    assert_eq!(one.source, two.source);
    assert_eq!(one.params, [Param::Buffer(bufs[0]), Param::Buffer(bufs[1])]);
    assert_eq!(two.params, [Param::Buffer(bufs[3]), Param::Buffer(bufs[2])]);
    assert_ne!(one.source, pointwise(&p, bufs[0], bufs[1], 999).source);
}

#[test]
fn launches_follow_the_domain() {
    let mut p = Program::default();
    let (a, out) = (buffer(&mut p, &[1000], Storage::Arena), buffer(&mut p, &[1000], Storage::Arena));
    let kernel = pointwise(&p, a, out, 1000);
    // Each thread computes four points.
    assert_eq!(kernel.launch.blocks[0].as_const(), Some(1));
    assert!(kernel.source.contains("Vec<float, 4>"), "{}", kernel.source);
    assert_eq!(kernel.launch.threads, 256);
    assert!(kernel.source.contains("const float *__restrict__ b0"), "{}", kernel.source);
}

/// The text of a kernel over the rows of a matrix: their sums, then `keep` with the sum, then `subtract`, each with its loop.
fn of_rows(p: &Program, a: BufId, keep: (i64, BodyBuilder), subtract: BodyBuilder) -> String {
    let mut sum = BodyBuilder::new();
    let x = sum.load(a, DType::F32, (0..2).map(SymExpr::loop_var).collect());
    sum.push(DType::F32, InstKind::Reduce { acc: AccId(0), value: x, position: None });
    let stage = |extent: i64, b: BodyBuilder| {
        let inner = (extent > 1).then(|| SymExpr::from_i64(extent)).into_iter().collect();
        Stage { inner, insts: b.finish() }
    };
    let kernel = LoopKernel {
        name: "center".into(),
        origins: Vec::new(),
        outer: [SymExpr::from_i64(4)].into_iter().collect(),
        accs: vec![AccDecl { op: ReduceOp::Sum, dtype: DType::F32 }],
        stages: vec![stage(4096, sum), stage(keep.0, keep.1), stage(4096, subtract)],
    };
    let source = only(p, kernel).source;
    assert_eq!(source.matches("team_combine<SUM, 1024>").count(), 1, "{source}");
    source
}

/// A value that one thread stores and others read after a barrier must not be `__restrict__`. One of the whole row is read by none.
#[test]
fn values_read_back_are_not_restrict() {
    let mut p = Program::default();
    let (a, mean) = (buffer(&mut p, &[4, 4096], Storage::Arena), buffer(&mut p, &[4], Storage::Arena));
    let [less, out] = [0; 2].map(|_| buffer(&mut p, &[4, 4096], Storage::Arena));
    let (row, at): (Shape, Shape) =
        ([SymExpr::loop_var(0)].into_iter().collect(), (0..2).map(SymExpr::loop_var).collect());
    let turned: Shape =
        [SymExpr::loop_var(0), SymExpr::from_i64(4095) - SymExpr::loop_var(1)].into_iter().collect();

    let (mut keep, mut subtract) = (BodyBuilder::new(), BodyBuilder::new());
    let (total, x) = (keep.push(DType::F32, InstKind::Acc(AccId(0))), keep.load(a, DType::F32, at.clone()));
    let y = keep.op(ScalarOp::Sub, &[x, total]);
    store(&mut keep, less, at.clone(), y);
    let (x, y) = (subtract.load(a, DType::F32, at.clone()), subtract.load(less, DType::F32, turned));
    let y = subtract.op(ScalarOp::Sub, &[x, y]);
    store(&mut subtract, out, at.clone(), y);
    let source = of_rows(&p, a, (4096, keep), subtract);
    assert!(source.contains("float *b1,"), "{source}");
    assert!(source.contains("float *__restrict__ b2"), "{source}");

    let (mut keep, mut subtract) = (BodyBuilder::new(), BodyBuilder::new());
    let total = keep.push(DType::F32, InstKind::Acc(AccId(0)));
    store(&mut keep, mean, row.clone(), total);
    let (x, m) = (subtract.load(a, DType::F32, at.clone()), subtract.load(mean, DType::F32, row));
    let y = subtract.op(ScalarOp::Sub, &[x, m]);
    store(&mut subtract, out, at, y);
    let source = of_rows(&p, a, (1, keep), subtract);
    assert!(source.contains("if (rank == 0) b1[i0] ="), "{source}");
    assert_eq!(source.matches("b1[").count(), 1, "{source}");
}

/// The program of a normalisation over all but the last dimension of `b0`, after a head that declares its buffers.
fn parsed(text: &str) -> (Program, Step) {
    let program: Program = text.parse().unwrap_or_else(|e| panic!("{e}"));
    let step = program.steps[0].clone();
    (program, step)
}

const NORMALISATION: &str = include_str!("../normalisation.kir");
const GRADIENT: &str = include_str!("../normalisation_gradient.kir");

/// Mean and variance take one pass, and a second one applies them; temporaries between the two are not stored.
#[test]
fn a_normalisation_is_two_kernels() {
    let (program, step) = parsed(NORMALISATION);
    let first = variants(&program, &step, &Target::HOPPER).unwrap().swap_remove(0);
    assert!(first.name.starts_with("columns"), "{}", first.name);
    assert_eq!(first.kernels.len(), 2);
    let names = |n: usize| -> Vec<&str> {
        let buffer = |p: &Param| match p {
            Param::Buffer(b) => Some(program.buffers[*b].name.as_str()),
            _ => None,
        };
        first.kernels[n].params.iter().filter_map(buffer).collect()
    };
    assert_eq!(names(0).iter().filter(|n| **n == "x").count(), 1);
    assert!(!names(0).contains(&"centred") && !names(1).contains(&"centred"));
    assert!(first.kernels[0].params.contains(&Param::Tickets));
    assert!(!first.kernels[1].params.contains(&Param::Tickets));
}

/// What is computed by columns takes sizes as arguments, so that other sizes need no other text.
#[test]
fn kernels_of_other_sizes_are_compiled_once() {
    let sizes = [("56, 56", "48, 48"), ("200704", "147456"), ("3584", "3072"), ("50176.0", "36864.0")];
    let other = sizes.iter().fold(NORMALISATION.to_owned(), |text, (from, to)| text.replace(from, to));
    let kernels = [NORMALISATION, &other].map(|text| {
        let (program, step) = parsed(text);
        variants(&program, &step, &Target::HOPPER).unwrap().swap_remove(0).kernels
    });
    for (one, two) in kernels[0].iter().zip(&kernels[1]) {
        assert_eq!(one.source, two.source);
        let numbers = |kernel: &Kernel| -> Vec<i64> {
            let number = |p: &Param| if let Param::Number(n) = p { Some(*n) } else { None };
            kernel.params.iter().filter_map(number).collect()
        };
        // The points of a column are a constant of neither.
        assert!(!one.source.contains("50176") && !one.source.contains("200704"), "{}", one.source);
        assert_ne!(numbers(one), numbers(two));
    }
}

/// The second sum of a gradient is computed from sums of the first pass.
#[test]
fn its_gradient_is_two_kernels() {
    let (program, step) = parsed(GRADIENT);
    let first = variants(&program, &step, &Target::HOPPER).unwrap().swap_remove(0);
    assert!(first.name.starts_with("columns"), "{}", first.name);
    assert_eq!(first.kernels.len(), 2);
}

/// One thread runs the loop over a window, and contiguous channels are vectors.
#[test]
fn windows_take_several_channels() {
    let (program, step) = parsed(include_str!("../window.kir"));
    let first = variants(&program, &step, &Target::HOPPER).unwrap().swap_remove(0);
    assert_eq!(first.name, "wide_4");
    assert!(first.kernels[0].source.contains("*(const Vec<float, 4> *)"));
}

#[test]
fn kernels_that_share_a_launch_are_functions_of_one_text() {
    let mut p = Program::default();
    let bufs: Vec<BufId> = (0..6).map(|_| buffer(&mut p, &[5000], Storage::Arena)).collect();
    let kernels = [
        pointwise(&p, bufs[0], bufs[1], 5000),
        pointwise(&p, bufs[2], bufs[3], 5000),
        pointwise(&p, bufs[0], bufs[5], 4999),
    ];
    let mut group = LaunchGroup::default();
    assert!(group.add(&p, &kernels[0], &Target::HOPPER));
    assert!(fuse_launches(&p, &group).unwrap().is_none(), "a single kernel is not fused");
    assert!(kernels[1..].iter().all(|k| group.add(&p, k, &Target::HOPPER)));
    let all = fuse_launches(&p, &group).unwrap().unwrap();
    assert_eq!(all.source.matches("static __device__ void member").count(), 2, "{}", all.source);
    assert_eq!(all.source.matches("launch_order();").count(), 1, "{}", all.source);
    let params: Vec<Param> = [0, 1, 2, 3, 5].iter().map(|n| Param::Buffer(bufs[*n])).collect();
    assert_eq!(all.params, params);
    let blocks = |k: &Kernel| k.launch.blocks[0].as_const().unwrap();
    assert_eq!(blocks(&all), kernels.iter().map(blocks).sum::<i64>());
    assert!(all.source.contains("const float *__restrict__ b0"), "{}", all.source);
}

#[test]
fn a_kernel_that_fills_the_device_keeps_its_launch() {
    let mut p = Program::default();
    let n = 1 << 26;
    let bufs: Vec<BufId> = (0..2).map(|_| buffer(&mut p, &[n], Storage::Arena)).collect();
    let large = pointwise(&p, bufs[0], bufs[1], n);
    assert!(!LaunchGroup::default().add(&p, &large, &Target::HOPPER));
}

/// A product of one row; its operands are constants or inputs.
fn of_one_row(storage: &str, declared: &str) -> String {
    let text = format!(
        "kir 1.5
program \"p\"
buffer b0 \"x\" bf16[1, 4096]{{4096, 1}}+0 input 0
buffer b1 \"w\" bf16[64, 4096]{{4096, 1}}+0 {storage}
buffer b2 \"y\" bf16[1, 64]{{64, 1}}+0 output
input \"x\" b0
{declared} \"w\" b1
output \"y\" b2[1, 64]{{64, 1}}+0
init:
steps:
matmul \"linear\" acc f32 from \"linear\"
  a b0[1, 4096]{{4096, 1}}+0
  b b1[4096, 64]{{1, 4096}}+0
  epilogue [1, 64]
    v0: f32 = template
    v1: bf16 = cast v0
    v2: bf16 = store b2[0, i1], v1
plan bytes 0:
"
    );
    let (program, step) = parsed(&text);
    let first = variants(&program, &step, &Target::HOPPER).unwrap().swap_remove(0);
    assert!(first.name.starts_with("gemv_rows"), "{}", first.name);
    first.kernels[0].source.clone()
}

/// Before a kernel has waited for earlier launches it reads only constants.
#[test]
fn constants_are_read_before_the_wait() {
    let source = of_one_row("constant 0", "constant");
    let (before, after) = source.split_once("launch_wait();").unwrap();
    let body = before.split_once("launch_next();").unwrap().1;
    assert!(body.contains("load_streaming(") && body.contains("b0["), "{source}");
    assert!(!body.contains("b1") && !body.contains("b2"), "{source}");
    assert!(after.contains("b1[") && after.contains("b2["), "{source}");
    let source = of_one_row("input 1", "input");
    assert!(source.contains("launch_order();") && !source.contains("launch_wait();"), "{source}");
}

/// A bf16 product that is large enough for every candidate.
fn product() -> (Program, Step) {
    let mut p = Program::default();
    let bufs: Vec<BufId> = (0..3)
        .map(|_| {
            let id = buffer(&mut p, &[512, 512], Storage::Arena);
            p.buffers[id].dtype = DType::BF16;
            id
        })
        .collect();
    let operand = |buf| kernel_ir::Operand {
        buf,
        sizes: [512, 512].map(SymExpr::from_i64).into_iter().collect(),
        strides: [512, 1].map(SymExpr::from_i64).into_iter().collect(),
        offset: SymExpr::ZERO,
    };
    let mut b = BodyBuilder::new();
    let sum = b.push(DType::F32, InstKind::Template);
    let y = b.push(DType::BF16, InstKind::Cast(sum));
    let index: Shape = (0..2).map(SymExpr::loop_var).collect();
    b.push(
        DType::BF16,
        InstKind::Store { buf: bufs[2], index, value: y, mask: None, mode: StoreMode::Write },
    );
    let step = Step::Matmul(kernel_ir::Matmul {
        name: "product".into(),
        origins: Vec::new(),
        a: operand(bufs[0]),
        b: operand(bufs[1]),
        acc: DType::F32,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue: kernel_ir::Epilogue {
            ranges: [512, 512].map(SymExpr::from_i64).into_iter().collect(),
            insts: b.finish(),
        },
    });
    (p, step)
}

/// Kernels use no feature that a device lacks.
#[test]
fn features_choose_the_candidates() {
    let (program, step) = product();
    let names = |target: &Target| -> Vec<String> {
        variants(&program, &step, target).unwrap().into_iter().map(|candidate| candidate.name).collect()
    };
    let has = |target: &Target, what: &str| names(target).iter().any(|name| name.contains(what));
    let without = |features| Target { features, ..Target::HOPPER };
    assert!(has(&Target::HOPPER, "wgmma") && has(&Target::HOPPER, "mma_") && has(&Target::HOPPER, "cluster"));
    let no_tma = without(Features { tma: false, ..Features::HOPPER });
    assert!(!has(&no_tma, "wgmma") && has(&no_tma, "cluster"));
    assert!(
        !has(&Target::AMPERE, "wgmma") && !has(&Target::AMPERE, "cluster") && has(&Target::AMPERE, "mma_")
    );
    assert!(names(&Target::CDNA).iter().all(|name| name.starts_with("mfma_")), "{:?}", names(&Target::CDNA));
    assert!(names(&Target::RDNA).iter().all(|name| name.starts_with("wmma_")), "{:?}", names(&Target::RDNA));
    assert_eq!(names(&Target { features: Features::NONE, ..Target::CDNA }), ["simple"]);
}

/// Whether candidates of a product and of a convolution of float32 are rounded.
fn rounded(tf32: Tf32) -> [bool; 2] {
    [include_str!("../product.kir"), include_str!("../convolution.kir")].map(|text| {
        let program: Program = text.parse().unwrap();
        let target = Target { tf32, ..Target::HOPPER };
        variants(&program, &program.steps[0], &target).unwrap().iter().any(|v| v.name.contains("tf32"))
    })
}

#[test]
fn products_and_convolutions_are_rounded_each_where_it_is_wanted() {
    let [off, convolutions, products, on] = Tf32::ALL.map(rounded);
    assert_eq!([off, on], [[false; 2], [true; 2]]);
    assert_eq!([products, convolutions], [[true, false], [false, true]]);
}
