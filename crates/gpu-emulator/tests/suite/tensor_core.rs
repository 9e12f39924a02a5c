//! The collectives of tensor-core kernels against plain sums: every fragment layout that `matrix.cu` documents.
#![allow(clippy::unwrap_used)] // a failing test may panic

use gpu_codegen::Prelude;
use gpu_emulator::Emulator;
use gpu_runtime::{Arguments, Driver, Grid, Module};

/// Runs a kernel of one warp over three buffers of floats, the last of which is the result.
fn run(body: &str, a: &[f32], b: &[f32], result: usize) -> Option<Vec<f32>> {
    if let Err(why) = gpu_emulator::available() {
        eprintln!("skipped: {why}");
        return None;
    }
    let device = Emulator::default();
    let head = "extern \"C\" __global__ void k(const float *a, const float *b, float *out)";
    let kernel = format!("{head} {{\nconst int lane = threadIdx.x;\n{body}\n}}\n");
    let module = Module::new(&Prelude::new(&device.target()), kernel, vec!["k".into()]);
    let functions = device.compile(&[module]).unwrap();
    let mut out = vec![0f32; result];
    let at = |n: usize| device.allocate(4 * n as u64).unwrap();
    let (pa, pb, po) = (at(a.len()), at(b.len()), at(result));
    // SAFETY: the buffers are as long as the copies, and the kernel takes three addresses.
    unsafe {
        device.upload(pa, a.as_ptr().cast(), 4 * a.len()).unwrap();
        device.upload(pb, b.as_ptr().cast(), 4 * b.len()).unwrap();
        let grid = Grid { blocks: [1; 3], threads: 32, shared: 4096 };
        device.launch_checked(&functions[0][0], grid, Arguments::plain(&[pa, pb, po])).unwrap();
        device.download(out.as_mut_ptr().cast(), po, 4 * result).unwrap();
    }
    [pa, pb, po].into_iter().for_each(|p| device.free(p));
    Some(out)
}

fn number(i: usize) -> f32 {
    ((i * 29 + 7) % 31) as f32 - 15.0
}

/// `A[16, depth] B[depth, 8]`, both row-major.
fn product(a: &[f32], b: &[f32], depth: usize) -> Vec<f32> {
    let element = |i: usize| (0..depth).map(|k| a[i / 8 * depth + k] * b[8 * k + i % 8]).sum();
    (0..128).map(element).collect()
}

const STORE: &str = "out[lane / 4 * 8 + lane % 4 * 2] = d[0]; out[lane / 4 * 8 + lane % 4 * 2 + 1] = d[1];\n\
     out[(lane / 4 + 8) * 8 + lane % 4 * 2] = d[2]; out[(lane / 4 + 8) * 8 + lane % 4 * 2 + 1] = d[3];\n";

/// Operands loaded by `ldmatrix` from shared memory, with row-major `A` and `B`.
#[test]
fn products_of_16_bit_floats() {
    let (a, b): (Vec<f32>, Vec<f32>) = ((0..256).map(number).collect(), (50..178).map(number).collect());
    for ty in ["bf16", "f16"] {
        let body = format!(
            "DYNAMIC_SHARED(pool);
{ty} *sa = ({ty} *)pool, *sb = sa + 256;
for (int i = lane; i < 256; i += 32) sa[i] = to<{ty}>(a[i]);
for (int i = lane; i < 128; i += 32) sb[i] = to<{ty}>(b[i]);
__syncwarp();
u32 fa[4], fb[2];
ldmatrix_x4(fa, sa + (lane % 16) * 16 + lane / 16 * 8);
ldmatrix_x2_trans(fb, sb + (lane % 16) * 8);
float d[4] = {{}};
mma_{ty}(d, fa, fb);
{STORE}"
        );
        let Some(out) = run(&body, &a, &b, 128) else { return };
        assert_eq!(out, product(&a, &b, 16), "{ty}");
    }
}

/// A column-major `B` needs no transposition, and a product accumulates.
#[test]
fn products_of_columns_add_up() {
    let (a, b): (Vec<f32>, Vec<f32>) = ((0..256).map(number).collect(), (50..178).map(number).collect());
    let body = format!(
        "DYNAMIC_SHARED(pool);
bf16 *sa = (bf16 *)pool, *sb = sa + 256;
for (int i = lane; i < 256; i += 32) sa[i] = to<bf16>(a[i]);
for (int i = lane; i < 128; i += 32) sb[i % 8 * 16 + i / 8] = to<bf16>(b[i]);
__syncwarp();
u32 fa[4], fb[2], one[1];
ldmatrix_x4(fa, sa + (lane % 16) * 16 + lane / 16 * 8);
ldmatrix_x2(fb, sb + (lane % 8) * 16 + lane / 8 % 2 * 8);
ldmatrix_x1(one, sb + (lane % 8) * 16);
float d[4] = {{1, 2, 3, 4}};
if (one[0] == fb[0]) mma_bf16(d, fa, fb);
{STORE}"
    );
    let Some(out) = run(&body, &a, &b, 128) else { return };
    let before = |i: usize| 1.0 + (i % 2) as f32 + 2.0 * (i / 64) as f32;
    let expected: Vec<f32> = product(&a, &b, 16).iter().enumerate().map(|(i, x)| x + before(i)).collect();
    assert_eq!(out, expected);
}

/// `to_tf32` rounds away the low 13 bits of a float's mantissa.
#[test]
fn products_of_tf32() {
    let fine = |i: usize| number(i) + number(3 * i) / 4096.0;
    let (a, b): (Vec<f32>, Vec<f32>) = ((0..128).map(fine).collect(), (50..114).map(fine).collect());
    let body = format!(
        "u32 fa[4], fb[2];
for (int r = 0; r < 4; ++r) fa[r] = to_tf32(a[(lane / 4 + 8 * (r & 1)) * 8 + lane % 4 + 4 * (r >> 1)]);
for (int r = 0; r < 2; ++r) fb[r] = to_tf32(b[(lane % 4 + 4 * r) * 8 + lane / 4]);
float d[4] = {{}};
mma_tf32(d, fa, fb);
{STORE}"
    );
    let Some(out) = run(&body, &a, &b, 128) else { return };
    let round = |x: &f32| {
        let step = 2f32.powi(x.abs().log2().floor() as i32 - 10);
        if *x == 0.0 { 0.0 } else { (x / step).round() * step }
    };
    let (ra, rb): (Vec<f32>, Vec<f32>) = (a.iter().map(round).collect(), b.iter().map(round).collect());
    let expected = product(&ra, &rb, 8);
    assert!(ra.iter().zip(&a).any(|(x, y)| x != y), "nothing was rounded");
    for (got, want) in out.iter().zip(&expected) {
        assert!((got - want).abs() <= 1e-4, "{got} {want}");
    }
}

#[test]
fn shuffles_and_votes() {
    let body = "float x = a[lane];
out[lane] = __shfl_xor_sync(0xffffffffu, x, 5);
out[32 + lane] = __shfl_down_sync(0xffffffffu, x, 3);
out[64 + lane] = __shfl_up_sync(0xffffffffu, x, 2, 8);
out[96 + lane] = __shfl_sync(0xffffffffu, x, 9, 16);
out[128 + lane] = (float)__popc(__ballot_sync(0xffffffffu, lane % 3 == 0));
out[160 + lane] = (float)__popc(__match_any_sync(0xffffffffu, lane / 5));";
    let a: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let Some(out) = run(body, &a, &a, 192) else { return };
    let of = |part: usize, f: &dyn Fn(usize) -> usize| {
        let expected: Vec<f32> = (0..32).map(|i| f(i) as f32).collect();
        assert_eq!(out[32 * part..32 * part + 32], expected, "part {part}");
    };
    of(0, &|i| i ^ 5);
    of(1, &|i| if i + 3 < 32 { i + 3 } else { i });
    of(2, &|i| if i % 8 >= 2 { i - 2 } else { i });
    of(3, &|i| i / 16 * 16 + 9);
    of(4, &|_| 11);
    of(5, &|i| if i < 30 { 5 } else { 2 });
}
