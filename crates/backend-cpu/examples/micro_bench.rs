//! Times the compute templates on the layers of real networks and prints microseconds and GFLOP/s for each. Cases come from the command
//! line (`conv 1 64 56 56 64 3 1 1 1`, one argument each) or, without any, from the list below. Measures only; the tests
//! check results.

use std::time::Instant;

use backend_cpu::micro::narrow::{self, Narrow, NarrowConv, NarrowMatmul, NarrowWeights};
use backend_cpu::micro::quantized::{self, Columns, Floats, QuantizedMatmul, QuantizedWeights, Source};
use backend_cpu::micro::{
    Attention, BatchDim, COut, ConvPlan, ConvShape, Dropout, EmptyRow, Epilogue, EpilogueBlock, Hook, Isa,
    Mask, MatRef, MatmulPacked, MatmulStrided, MicroError, PackedB, Strides5, attention, matmul_packed,
    matmul_strided, team,
};

/// `conv N C H W O K STRIDE PAD GROUPS` channels-last, `convf` the same with channels-first input and output, `convp` with weights that are
/// read as they lie in each call, `wgrad N C H W O K STRIDE PAD` the gradient to the weight of such a convolution, `mm M N K` packed
/// weight, `mm8`, `mm16`, `conv8` and `conv16` the same of 8-bit integers and `bf16` without an epilogue
/// (`mm16 M N K COPIES` takes turns with copies of the weight), `q4` and `q8 M N K GROUPS COPIES` weights of four and eight bits, `lin M N K` weight `[N, K]` unpacked, `bmm B M N K` both row-major, `attn B H Lq Lk D CAUSAL`,
/// `attnd` the same with weights that are dropped.
const CASES: &[&str] = &[
    // resnet50
    "convf 1 3 224 224 64 7 2 3 1",
    "conv 1 64 56 56 64 1 1 0 1",
    "conv 1 64 56 56 64 3 1 1 1",
    "conv 1 64 56 56 256 1 1 0 1",
    "conv 1 256 56 56 64 1 1 0 1",
    "conv 1 256 56 56 128 1 1 0 1",
    "conv 1 128 56 56 128 3 2 1 1",
    "conv 1 256 56 56 512 1 2 0 1",
    "conv 1 128 28 28 512 1 1 0 1",
    "conv 1 512 28 28 128 1 1 0 1",
    "conv 1 128 28 28 128 3 1 1 1",
    "conv 1 512 28 28 1024 1 2 0 1",
    "conv 1 256 28 28 256 3 2 1 1",
    "conv 1 256 14 14 256 3 1 1 1",
    "conv 1 256 14 14 1024 1 1 0 1",
    "conv 1 1024 14 14 256 1 1 0 1",
    "conv 1 1024 14 14 2048 1 2 0 1",
    "conv 1 512 14 14 512 3 2 1 1",
    "conv 1 512 7 7 512 3 1 1 1",
    "conv 1 512 7 7 2048 1 1 0 1",
    "conv 1 2048 7 7 512 1 1 0 1",
    "mm 1 1000 2048",
    // mobilenet_v2
    "convf 1 3 224 224 32 3 2 1 1",
    "conv 1 32 112 112 32 3 1 1 32",
    "conv 1 32 112 112 16 1 1 0 1",
    "conv 1 16 112 112 96 1 1 0 1",
    "conv 1 96 112 112 96 3 2 1 96",
    "conv 1 96 56 56 24 1 1 0 1",
    "conv 1 24 56 56 144 1 1 0 1",
    "conv 1 144 56 56 144 3 1 1 144",
    "conv 1 192 28 28 32 1 1 0 1",
    "conv 1 192 28 28 192 3 1 1 192",
    "conv 1 384 14 14 384 3 1 1 384",
    "conv 1 384 14 14 64 1 1 0 1",
    "conv 1 576 14 14 96 1 1 0 1",
    "conv 1 960 7 7 960 3 1 1 960",
    "conv 1 160 7 7 960 1 1 0 1",
    "conv 1 960 7 7 160 1 1 0 1",
    "conv 1 320 7 7 1280 1 1 0 1",
    // resnext50, digits
    "conv 1 128 56 56 128 3 1 1 32",
    "conv 360 1 8 8 32 3 1 1 1",
    "conv 360 32 8 8 64 3 1 1 1",
    // vit_b_16
    "convf 1 3 224 224 768 16 16 0 1",
    "mm 197 768 768",
    "mm 197 2304 768",
    "mm 197 3072 768",
    "mm 197 768 3072",
    "attn 1 12 197 197 64 0",
    // BERT base, 128 and 512 tokens; tiny; MiniLM
    "mm 128 768 768",
    "mm 128 3072 768",
    "mm 128 768 3072",
    "mm 128 30522 768",
    "attn 1 12 128 128 64 0",
    "mm 512 768 768",
    "attn 1 12 512 512 64 0",
    "attn 1 12 512 512 64 1",
    "mm 64 64 64",
    "mm 64 128 64",
    "mm 64 64 128",
    "mm 64 512 64",
    "attn 2 4 32 32 16 0",
    "mm 32 384 384",
    "mm 32 1536 384",
    "mm 32 384 1536",
    "bmm 12 128 128 64",
    "bmm 12 128 64 128",
    "bmm 8 32 16 32",
    // Decoding
    "lin 1 768 768",
    "lin 1 3072 768",
    "lin 1 4096 4096",
    "lin 4 4096 4096",
    "lin 8 4096 4096",
    "mm 1 4096 4096",
    "mm 8 4096 4096",
    "attn 1 32 1 1024 128 0",
    // Square
    "mm 1024 1024 1024",
    "bmm 1 1024 1024 1024",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let cases: Vec<&str> =
        if args.is_empty() { CASES.to_vec() } else { args.iter().map(String::as_str).collect() };
    println!("# {:?}, {} threads", Isa::best(), rayon::current_num_threads());
    for case in cases {
        let mut words = case.split_whitespace();
        let kind = words.next().unwrap_or_default();
        let sizes = words.map(str::parse).collect::<Result<Vec<usize>, _>>()?;
        let (flops, seconds) = run(kind, &sizes)?;
        println!("{case}\t{:.2}\t{:.1}", seconds * 1e6, flops / seconds * 1e-9);
    }
    Ok(())
}

/// Floating-point operations and seconds of one call.
fn run(kind: &str, sizes: &[usize]) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    Ok(match (kind, sizes) {
        ("conv" | "convf" | "convp", &[n, c, h, w, o, k, s, p, g]) => {
            let shape = ConvShape {
                groups: g,
                stride: [1, s, s],
                pad_lo: [0, p, p],
                pad_hi: [0, p, p],
                ..ConvShape::conv2d(n, c, [h, w], o, [k, k])
            };
            conv(shape, kind == "convf", kind == "convp")?
        }
        ("wgrad", &[n, c, h, w, o, k, s, p]) => weight_gradient([n, c, h, w], [o, k, s, p])?,
        ("mm", &[m, n, k]) => packed(m, n, k)?,
        ("conv8" | "conv16", &[n, c, h, w, o, k, s, p, g]) => {
            let shape = ConvShape {
                groups: g,
                stride: [1, s, s],
                pad_lo: [0, p, p],
                pad_hi: [0, p, p],
                ..ConvShape::conv2d(n, c, [h, w], o, [k, k])
            };
            narrow_conv(shape, if kind == "conv8" { Narrow::U8 } else { Narrow::Bf16 })?
        }
        ("mm8", &[m, n, k]) => narrow_product([m, n, k], Narrow::U8, 1)?,
        ("mm16", &[m, n, k]) => narrow_product([m, n, k], Narrow::Bf16, 1)?,
        ("mm16", &[m, n, k, copies]) => narrow_product([m, n, k], Narrow::Bf16, copies)?,
        ("q4" | "q8", &[m, n, k, groups, copies]) => {
            quantized_product([m, n, k], groups, if kind == "q4" { 16 } else { 256 }, copies)?
        }
        ("lin", &[m, n, k]) => strided(1, [m, n, k], (false, true))?,
        ("lint", &[m, n, k]) => strided(1, [m, n, k], (true, false))?,
        ("bmm", &[b, m, n, k]) => strided(b, [m, n, k], (false, false))?,
        ("attn", &[b, h, lq, lk, d, causal]) => attend([b, h, lq, lk, d], causal != 0, false)?,
        ("attnd", &[b, h, lq, lk, d, causal]) => attend([b, h, lq, lk, d], causal != 0, true)?,
        _ => return Err(format!("no case {kind} with {} sizes", sizes.len()).into()),
    })
}

/// Best of repeated calls over a quarter of a second, in a team as an executor would.
fn time(mut f: impl FnMut() -> Result<(), MicroError> + Send) -> Result<f64, MicroError> {
    team::with(|| {
        f()?;
        let (start, mut best) = (Instant::now(), f64::INFINITY);
        while start.elapsed().as_secs_f64() < 0.25 {
            let t = Instant::now();
            f()?;
            best = best.min(t.elapsed().as_secs_f64());
        }
        Ok(best)
    })
}

/// A buffer at a cache-line boundary, as in an arena: vectors that straddle lines cost twice.
struct Buffer {
    data: Vec<f32>,
    start: usize,
    len: usize,
}

impl std::ops::Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.data[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.start..self.start + self.len]
    }
}

fn values(len: usize) -> Buffer {
    let data: Vec<f32> = (0..len + 16).map(|i| (i * 7919 % 1013) as f32 / 1013.0 - 0.5).collect();
    let start = data.as_ptr().align_offset(64);
    Buffer { data, start, len }
}

/// Memory of as many 32-bit words for narrow numbers: pairs of `bf16` of the size of [`values`]. Other bits would be subnormal numbers, which some
/// instructions take a hundred times as long for.
fn pairs(len: usize) -> Buffer {
    let mut buffer = values(len);
    buffer.iter_mut().for_each(|v| {
        let upper = v.to_bits() >> 16;
        *v = f32::from_bits(upper << 16 | upper);
    });
    buffer
}

fn conv(shape: ConvShape, first: bool, fresh: bool) -> Result<(f64, f64), MicroError> {
    let out = shape.output()?;
    let layout =
        |c, size| if first { Strides5::contiguous(c, size) } else { Strides5::channels_last(c, size) };
    let plan = ConvPlan::new(
        Isa::best(),
        shape,
        layout(shape.in_channels, shape.input),
        Strides5::channels_last(shape.out_channels, out),
    )?;
    let pixels: usize = out.iter().product();
    let inner = shape.in_channels / shape.groups * shape.kernel.iter().product::<usize>();
    let x = values(shape.batch * shape.in_channels * shape.input.iter().product::<usize>());
    let w = values(shape.out_channels * inner);
    let mut y = values(shape.batch * shape.out_channels * pixels);
    let (kh, kw) = (shape.kernel[1] as isize, shape.kernel[2] as isize);
    let per = (inner as isize, kh * kw);
    // SAFETY: the buffers are as large as the shape says.
    let strides = [per.0, per.1, kh * kw, kw, 1];
    // SAFETY: the buffers are as large as the shape says.
    let weights = unsafe { plan.pack_constant(w.as_ptr(), strides) };
    let seconds = time(|| {
        // SAFETY: the buffers are as large as the shape says.
        unsafe {
            if fresh {
                return plan.run_with(
                    x.as_ptr(),
                    (w.as_ptr(), strides),
                    y.as_mut_ptr(),
                    &Epilogue::default(),
                );
            }
            plan.run(x.as_ptr(), &weights, y.as_mut_ptr(), &Epilogue::default())
        }
    })?;
    Ok(((2 * shape.batch * pixels * shape.out_channels * inner) as f64, seconds))
}

/// The gradient to the weight of a convolution as a convolution over its batch: its window is what the output was.
fn weight_gradient([n, c, h, w]: [usize; 4], [o, k, s, p]: [usize; 4]) -> Result<(f64, f64), MicroError> {
    let [oh, ow] = [h, w].map(|size| (size + 2 * p - k) / s + 1);
    let back = |size: usize, out: usize| (out - 1) * s + k - size - p;
    let shape = ConvShape {
        dilation: [1, s, s],
        pad_lo: [0, p, p],
        pad_hi: [0, back(h, oh), back(w, ow)],
        ..ConvShape::conv2d(c, n, [h, w], o, [oh, ow])
    };
    let last = |channels: usize, size| Strides5::channels_last(channels, size);
    let (x, g) = (last(c, shape.input), last(o, [1, oh, ow]));
    let out = last(o, shape.output()?);
    let plan = ConvPlan::new(Isa::best(), shape, Strides5 { n: x.c, c: x.n, ..x }, out)?;
    let (input, gradient) = (values(n * c * h * w), values(n * o * oh * ow));
    let mut y = values(c * o * k * k);
    let strides = [g.c, g.n, g.d, g.h, g.w];
    let seconds = time(|| {
        let none = Epilogue::default();
        // SAFETY: the buffers are as large as the shape says.
        unsafe { plan.run_with(input.as_ptr(), (gradient.as_ptr(), strides), y.as_mut_ptr(), &none) }
    })?;
    Ok(((2 * n * oh * ow * c * o * k * k) as f64, seconds))
}

fn packed(m: usize, n: usize, k: usize) -> Result<(f64, f64), MicroError> {
    let (a, w, bias) = (values(m * k), values(n * k), values(n));
    let mut c = values(m * n);
    // SAFETY: w is [N, K].
    let b = unsafe { PackedB::pack(Isa::best(), w.as_ptr(), k, n, 1, k as isize)? };
    let seconds = time(|| {
        let call = MatmulPacked {
            m,
            a: MatRef { ptr: a.as_ptr(), row_stride: k as isize, col_stride: 1 },
            b: &b,
            c: COut::Memory { ptr: c.as_mut_ptr(), row_stride: n },
            epilogue: Epilogue { shift: Some(&bias), ..Epilogue::default() },
        };
        // SAFETY: the buffers are as large as the shape says.
        unsafe { matmul_packed(&call) }
    })?;
    Ok(((2 * m * n * k) as f64, seconds))
}

fn narrow_product([m, n, k]: [usize; 3], numbers: Narrow, copies: usize) -> Result<(f64, f64), MicroError> {
    let (a, w) = (pairs(m * k), pairs(n * k));
    let done = |block: &EpilogueBlock| {
        std::hint::black_box(block.ptr);
    };
    let (w, isa) = (w.as_ptr().cast(), Isa::best());
    // SAFETY: w is [N, K] of numbers of at most four bytes.
    let pack = || unsafe { NarrowWeights::pack((numbers, isa), w, [k, n], [1, k as isize], 0) };
    let all = (0..copies).map(|_| pack()).collect::<Result<Vec<_>, _>>()?;
    let mut turns = all.iter().cycle();
    let seconds = time(|| {
        let strides = [k as isize, 1];
        let Some(b) = turns.next() else { return Ok(()) };
        let call =
            NarrowMatmul { m, a: a.as_ptr().cast(), strides, b, batch: &[], hook: Hook::Closure(&done) };
        // SAFETY: the buffers are as large as the shape says.
        unsafe { narrow::matmul(&call) }
    })?;
    Ok(((2 * m * n * k) as f64, seconds))
}

/// Weights that have `numbers` values, multiplied with `bf16`.
fn quantized_product(
    [m, n, k]: [usize; 3],
    groups: usize,
    numbers: usize,
    copies: usize,
) -> Result<(f64, f64), MicroError> {
    let a = values(m * k);
    let w: Vec<u8> = (0..n * k).map(|i| ((i.wrapping_mul(2_654_435_761) >> 9) % numbers) as u8).collect();
    let factor = vec![0.01f32; groups * n];
    let source = Source {
        ptr: w.as_ptr(),
        signed: true,
        sizes: [k, n],
        strides: [1, k as isize],
        groups,
        factor: Columns { ptr: factor.as_ptr(), strides: [n as isize, 1] },
        zero: None,
    };
    let done = |block: &EpilogueBlock| {
        std::hint::black_box(block.ptr);
    };
    // SAFETY: the vectors have the sizes of the source.
    let pack = || unsafe { QuantizedWeights::pack(Isa::best(), &source) };
    let all = (0..copies).map(|_| pack()).collect::<Result<Vec<_>, _>>()?;
    let mut turns = all.iter().cycle();
    let seconds = time(|| {
        let Some(b) = turns.next() else { return Ok(()) };
        let call = QuantizedMatmul {
            m,
            a: a.as_ptr().cast(),
            floats: Floats::Bf16,
            strides: [k as isize, 1],
            b,
            batch: &[],
            hook: Hook::Closure(&done),
        };
        // SAFETY: the buffers are as large as the shape says.
        unsafe { quantized::matmul(&call) };
        Ok(())
    })?;
    Ok(((2 * m * n * k) as f64, seconds))
}

fn narrow_conv(shape: ConvShape, numbers: Narrow) -> Result<(f64, f64), MicroError> {
    let out = shape.output()?;
    let strides = Strides5::channels_last(shape.in_channels, shape.input);
    let plan = NarrowConv::new((Isa::best(), numbers), shape, strides, 3 * i32::from(numbers == Narrow::U8))?;
    let pixels: usize = out.iter().product();
    let taps: usize = shape.kernel.iter().product();
    let inner = shape.in_channels / shape.groups * taps;
    let x = pairs(shape.batch * shape.in_channels * shape.input.iter().product::<usize>());
    let w = pairs(shape.out_channels * inner);
    let (kh, kw) = (shape.kernel[1] as isize, shape.kernel[2] as isize);
    // SAFETY: the buffers are as large as the shape says.
    let weights = unsafe { plan.pack(w.as_ptr().cast(), [inner as isize, taps as isize, kh * kw, kw, 1])? };
    let done = |block: &EpilogueBlock| {
        std::hint::black_box(block.ptr);
    };
    // SAFETY: the buffers are as large as the shape says.
    let seconds = time(|| unsafe { plan.run(x.as_ptr().cast(), &weights, Hook::Closure(&done)) })?;
    Ok(((2 * shape.batch * pixels * shape.out_channels * inner) as f64, seconds))
}

/// `turned`: whether A and B are stored transposed.
fn strided(b: usize, [m, n, k]: [usize; 3], turned: (bool, bool)) -> Result<(f64, f64), MicroError> {
    let (x, w) = (values(b * m * k), values(b * n * k));
    let mut c = values(b * m * n);
    let batch = [BatchDim {
        size: b,
        a_stride: (m * k) as isize,
        b_stride: (n * k) as isize,
        c_stride: (m * n) as isize,
    }];
    let strides =
        |turned: bool, [rows, cols]: [usize; 2]| if turned { (1, rows as isize) } else { (cols as isize, 1) };
    let (a_strides, (row_stride, col_stride)) = (strides(turned.0, [m, k]), strides(turned.1, [k, n]));
    let seconds = time(|| {
        let call = MatmulStrided {
            isa: Isa::best(),
            m,
            n,
            k,
            a: MatRef { ptr: x.as_ptr(), row_stride: a_strides.0, col_stride: a_strides.1 },
            b: MatRef { ptr: w.as_ptr(), row_stride, col_stride },
            c: c.as_mut_ptr(),
            c_row_stride: n as isize,
            c_col_stride: 1,
            batch: &batch,
            epilogue: Epilogue::default(),
        };
        // SAFETY: the buffers are as large as the shape says.
        unsafe { matmul_strided(&call) }
    })?;
    Ok(((2 * b * m * n * k) as f64, seconds))
}

fn attend([b, h, lq, lk, d]: [usize; 5], causal: bool, drops: bool) -> Result<(f64, f64), MicroError> {
    let (q, k, v) = (values(b * h * lq * d), values(b * h * lk * d), values(b * h * lk * d));
    let mut o = values(b * h * lq * d);
    let row = lk.div_ceil(32);
    let words: Vec<i32> = (0..(b * h * lq * row) as i32).map(|n| n.wrapping_mul(0x09e3_779b)).collect();
    let strides_of_words = [h * lq * row, lq * row, row, 1].map(|s| s as isize);
    // [B, L, H, D] in memory, as a projection writes it.
    let strides = |l: usize| [(h * l * d) as isize, d as isize, (h * d) as isize, 1];
    let call = Attention {
        isa: Isa::best(),
        batch: b,
        q_heads: h,
        kv_heads: h,
        q_len: lq,
        kv_len: lk,
        head_dim: d,
        v_dim: d,
        q: q.as_ptr(),
        q_strides: strides(lq),
        k: k.as_ptr(),
        k_strides: strides(lk),
        v: v.as_ptr(),
        v_strides: strides(lk),
        o: o.as_mut_ptr(),
        o_strides: strides(lq),
        sums: None,
        scale: 1.0 / (d as f32).sqrt(),
        mask: Mask::None,
        dropout: drops.then_some(Dropout { words: words.as_ptr(), strides: strides_of_words, factor: 1.25 }),
        causal: causal.then_some(0),
        empty_row: EmptyRow::Zero,
    };
    // SAFETY: the buffers are as large as the shape says.
    let seconds = time(|| unsafe { attention(&call) })?;
    let share = if causal { 0.5 } else { 1.0 };
    Ok(((4 * b * h * lq * lk * d) as f64 * share, seconds))
}
