//! Matrix cores of AMD's GPUs: every instruction's fragments against plain sums, and products of every layout by each way of several
//! architectures. Attention by them is among the candidates of `variants`, its gradients are in `attention_gradient`.
#![allow(clippy::unwrap_used)] // a failing test may panic

use std::collections::BTreeMap;

use gpu_codegen::{Prelude, Target, Variant, variants};
use gpu_emulator::Emulator;
use gpu_runtime::{Arguments, Driver, Grid, Module};
use ir_core::DType;
use kernel_ir::{Program, Step};

use crate::steps::product_on;
use DType::{BF16, F16, F32};

/// The architectures whose instructions differ.
const ARCHITECTURES: [&str; 4] = ["gfx90a", "gfx942", "gfx1100", "gfx1201"];

fn target(name: &str) -> Target {
    Target::of_architecture(name).unwrap()
}

/// Runs a kernel of one wave over two row-major matrices of `m x k`, the second one by its columns; the result `[m, m]`.
fn run(target: &Target, body: &str, a: &[f32], b: &[f32], m: usize) -> Option<Vec<f32>> {
    if let Err(why) = gpu_emulator::available() {
        eprintln!("skipped: {why}");
        return None;
    }
    let device = Emulator::new(target.clone());
    let head = "extern \"C\" __global__ void k(const float *a, const float *b, float *out)";
    let kernel = format!("{head} {{\nconst int lane = threadIdx.x;\n{body}\n}}\n");
    let module = Module::new(&Prelude::new(&device.target()), kernel, vec!["k".into()]);
    let functions = device.compile(&[module]).unwrap();
    let mut out = vec![0f32; m * m];
    let at = |n: usize| device.allocate(4 * n as u64).unwrap();
    let (pa, pb, po) = (at(a.len()), at(b.len()), at(out.len()));
    // SAFETY: the buffers are as long as what is copied, and the kernel takes three addresses.
    unsafe {
        device.upload(pa, a.as_ptr().cast(), 4 * a.len()).unwrap();
        device.upload(pb, b.as_ptr().cast(), 4 * b.len()).unwrap();
        let grid = Grid { blocks: [1; 3], threads: target.wave, shared: 32 * 1024 };
        device.launch_checked(&functions[0][0], grid, Arguments::plain(&[pa, pb, po])).unwrap();
        device.download(out.as_mut_ptr().cast(), po, 4 * out.len()).unwrap();
    }
    [pa, pb, po].into_iter().for_each(|p| device.free(p));
    Some(out)
}

fn number(i: usize) -> f32 {
    ((i * 29 + 7) % 31) as f32 - 15.0
}

/// `D = A Bᵀ` by one step, and `A Bᵀ` turned into a factor: `E = Dᵀ D` of small whole numbers.
#[test]
fn fragments_lie_as_the_manuals_say() {
    for architecture in ARCHITECTURES {
        let target = target(architecture);
        let sizes: &[usize] = if target.features.mfma { &[16, 32] } else { &[16] };
        for (&m, ty) in sizes.iter().flat_map(|m| [(m, "bf16"), (m, "f16")]) {
            fragments(&target, m, ty);
        }
    }
}

fn fragments(target: &Target, m: usize, ty: &str) {
    // Inner points of a step, as many as fragments and factors of the second product need.
    let depth = 32;
    let (a, b): (Vec<f32>, Vec<f32>) = (
        (0..m * depth).map(|i| number(i) / 8.0).collect(),
        (50..50 + m * depth).map(|i| number(i) / 8.0).collect(),
    );
    let load = format!(
        "DYNAMIC_SHARED(pool);
typedef Core<{ty}, {m}> C;
constexpr int PITCH = {depth} + 8;
{ty} *sa = ({ty} *)pool, *sb = sa + {m} * PITCH, *st = sb + {m} * PITCH;
for (int i = lane; i < {m} * {depth}; i += WAVE) {{
sa[i / {depth} * PITCH + i % {depth}] = to<{ty}>(a[i]);
sb[i / {depth} * PITCH + i % {depth}] = to<{ty}>(b[i]);
}}
wave_sync();
"
    );
    let product = format!(
        "{load}C::Sums d = {{}};
for (int k = 0; k < {depth}; k += C::K)
C::run(d, C::row_at(sa + lane % {m} * PITCH + k, lane), C::row_at(sb + lane % {m} * PITCH + k, lane));
for (int e = 0; e < C::PARTS; ++e) out[C::row(lane, e) * {m} + lane % {m}] = d[e];"
    );
    let Some(out) = run(target, &product, &a, &b, m) else { return };
    let sum = |x: &[f32], y: &[f32], i: usize| -> f32 {
        (0..depth).map(|k| x[i / m * depth + k] * y[i % m * depth + k]).sum()
    };
    let expected: Vec<f32> = (0..m * m).map(|i| sum(&a, &b, i)).collect();
    assert_eq!(out, expected, "{ty} {m} of {target:?}");

    // The rows of D, whole numbers here, are inner points of the next product; its left factor lies turned in memory.
    let whole: Vec<f32> = (0..m * depth).map(|i| (number(i) / 8.0).round()).collect();
    let unit: Vec<f32> = (0..m * depth).map(|i| f32::from(u8::from(i / depth == i % depth))).collect();
    let again = format!(
        "{load}C::Sums d[{depth} / {m}] = {{}}, x = {{}};
for (int n = 0; n < {depth} / {m}; ++n)
for (int e = 0; e < C::PARTS; ++e) d[n][e] = a[lane % {m} * {depth} + n * {m} + C::row(lane, e)];
for (int i = lane; i < {m} * {depth}; i += WAVE) st[turned_place<{depth}>(i / {depth}, i % {depth})] = sa[i / {depth} * PITCH + i % {depth}];
wave_sync();
for (int s = 0; s < {depth} / C::K; ++s) C::run(x, C::turned<{depth}>(st, lane % {m}, s * C::K, lane), C::made(d, s, lane));
for (int e = 0; e < C::PARTS; ++e) out[C::row(lane, e) * {m} + lane % {m}] = x[e];"
    );
    let Some(out) = run(target, &again, &whole, &unit, m) else { return };
    let expected: Vec<f32> = (0..m * m).map(|i| sum(&whole, &whole, i)).collect();
    assert_eq!(out, expected, "made of {ty} {m} of {target:?}");
}

/// All ways by tiles; `tf32` says that float32 may be rounded.
fn all(program: &Program, step: &Step, target: &Target) -> BTreeMap<String, Variant> {
    let ways = variants(program, step, target).unwrap();
    let tiles = ways.into_iter().filter(|way| !way.name.starts_with("gemv"));
    let tiles: BTreeMap<String, Variant> = tiles.map(|way| (way.name.clone(), way)).collect();
    assert!(!tiles.is_empty());
    tiles
}

macro_rules! ways_of {
    ($($name:ident: $architecture:literal),*) => {
        $(fn $name(program: &Program, step: &Step) -> BTreeMap<String, Variant> {
            all(program, step, &target($architecture))
        })*
    };
}
ways_of!(of_gfx90a: "gfx90a", of_gfx942: "gfx942", of_gfx1100: "gfx1100", of_gfx1201: "gfx1201");

fn rounded(program: &Program, step: &Step) -> BTreeMap<String, Variant> {
    all(program, step, &Target { tf32: true.into(), ..Target::CDNA })
}

#[test]
fn products_of_every_layout() {
    let choose = [of_gfx90a, of_gfx942, of_gfx1100, of_gfx1201];
    for (architecture, choose) in ARCHITECTURES.into_iter().zip(choose) {
        let device = || Emulator::new(target(architecture));
        let product = |name: &str, dtype: DType, shapes| product_on(device(), name, dtype, shapes, choose);
        for dtype in [BF16, F16] {
            let names =
                product("rows by columns", dtype, ([1, 100, 72, 200], [0, 200, 1], [0, 1, 200], None));
            let cores = if architecture.starts_with("gfx9") { "mfma_" } else { "wmma_" };
            assert!(names.iter().all(|name| name.starts_with(cores)), "{names:?}");
        }
        for dtype in [BF16, F32] {
            product("a batch", dtype, ([2, 70, 136, 96], [70 * 96, 96, 1], [96 * 136, 136, 1], None));
            product("both transposed", dtype, ([1, 72, 48, 333], [0, 1, 72], [0, 48, 1], None));
            product("odd sizes", dtype, ([3, 37, 51, 77], [37 * 77, 77, 1], [77 * 51, 51, 1], None));
            product("columns", dtype, ([1, 64, 40, 128], [0, 128, 1], [0, 1, 128], Some([0, 1, 64])));
            product("no unit stride", dtype, ([1, 33, 20, 40], [0, 80, 2], [0, 3, 120], None));
        }
        product("a shared inner dimension", BF16, ([1, 49, 64, 1152], [0, 1152, 1], [0, 1, 1152], None));
    }
    let device = Emulator::new(Target { tf32: true.into(), ..Target::CDNA });
    let names = product_on(device, "rounded", F32, ([1, 70, 40, 96], [0, 96, 1], [0, 1, 96], None), rounded);
    assert!(names.iter().all(|name| name.starts_with("mfma_xf32_")), "{names:?}");
}
