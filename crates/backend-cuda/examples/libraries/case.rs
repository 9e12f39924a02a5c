//! One step with its operands: the program, the values in memory, and the expected result in double precision.

use ir_core::{DType, Scalar, Shape, SymExpr};
use kernel_ir::{
    BodyBuilder, BufId, Buffer, Conv, Epilogue, InstKind, Matmul, Operand, Program, ScalarOp, Step, Storage,
    StoreMode, Val,
};

/// The epilogue of the product or convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EpilogueKind {
    Plain,
    Bias,
    BiasRelu,
    Residual,
    ResidualBiasRelu,
    /// `x * (1 + erf(x / √2)) / 2 + bias`, which no library fuses.
    ErfBias,
}

impl EpilogueKind {
    fn has_bias(self) -> bool {
        !matches!(self, EpilogueKind::Plain | EpilogueKind::Residual)
    }
    fn has_residual(self) -> bool {
        matches!(self, EpilogueKind::Residual | EpilogueKind::ResidualBiasRelu)
    }
    fn apply(self, x: f64, bias: f64, residual: f64) -> f64 {
        match self {
            EpilogueKind::Plain => x,
            EpilogueKind::Bias => x + bias,
            EpilogueKind::BiasRelu => (x + bias).max(0.0),
            EpilogueKind::Residual => x + residual,
            EpilogueKind::ResidualBiasRelu => (x + residual + bias).max(0.0),
            EpilogueKind::ErfBias => x * (1.0 + libm_erf(x * std::f64::consts::FRAC_1_SQRT_2)) * 0.5 + bias,
        }
    }
}

/// The reference evaluation of the scalar operator.
fn libm_erf(x: f64) -> f64 {
    ScalarOp::Erf.eval(DType::F64, &[Scalar::Float(x)]).as_f64()
}

/// A tensor in memory.
pub(crate) struct Array {
    pub(crate) sizes: Vec<i64>,
    pub(crate) strides: Vec<i64>,
    /// Elements of memory, rounded to the dtype.
    pub(crate) data: Vec<f64>,
}

impl Array {
    pub(crate) fn at(&self, index: &[i64]) -> f64 {
        self.data[index.iter().zip(&self.strides).map(|(i, s)| i * s).sum::<i64>() as usize]
    }
}

/// A step to run.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) program: Program,
    pub(crate) step: Step,
    pub(crate) dtype: DType,
    pub tf32: bool,
    /// The buffers, by number; the last one is the result.
    pub(crate) arrays: Vec<Array>,
    pub(crate) epilogue_kind: EpilogueKind,
    /// Multiplications and additions.
    pub(crate) flops: f64,
}

/// Strides of dense memory whose dimensions are in `order`.
pub(crate) fn dense(sizes: &[i64], order: &[usize]) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    let mut step = 1;
    for &d in order.iter().rev() {
        strides[d] = step;
        step *= sizes[d];
    }
    strides
}

pub(crate) fn rows(sizes: &[i64]) -> Vec<i64> {
    dense(sizes, &(0..sizes.len()).collect::<Vec<_>>())
}

pub(crate) fn last(sizes: &[i64]) -> Vec<i64> {
    dense(sizes, &[0].into_iter().chain(2..sizes.len()).chain([1]).collect::<Vec<_>>())
}

pub(crate) fn round(x: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => x,
        DType::F32 => f64::from(x as f32),
        DType::F16 => plugin_sdk::f16::from_f64(x).to_f64(),
        _ => plugin_sdk::bf16::from_f64(x).to_f64(),
    }
}

fn shape(numbers: &[i64]) -> Shape {
    numbers.iter().map(|&n| SymExpr::from_i64(n)).collect()
}

/// A program under construction.
struct CaseBuilder {
    program: Program,
    arrays: Vec<Array>,
    dtype: DType,
}

impl CaseBuilder {
    fn buffer(&mut self, sizes: &[i64], strides: &[i64], filled: bool) -> BufId {
        let span = 1 + sizes.iter().zip(strides).map(|(n, s)| (n - 1) * s).sum::<i64>();
        let seed = self.arrays.len() as u64 + 1;
        // A multiplicative hash gives uncorrelated numbers between -1 and 1.
        let number = |i: u64| {
            let h = (i * 64 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((h ^ (h >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f64 / f64::from(1 << 23) - 1.0
        };
        let data = if filled {
            (0..span as u64).map(|i| round(number(i), self.dtype)).collect()
        } else {
            vec![0.0; span as usize]
        };
        self.arrays.push(Array { sizes: sizes.to_vec(), strides: strides.to_vec(), data });
        self.program.buffers.push(Buffer {
            name: format!("b{seed}"),
            dtype: self.dtype,
            sizes: shape(sizes),
            strides: shape(strides),
            offset: SymExpr::ZERO,
            storage: Storage::Arena,
        })
    }

    fn operand(&self, buf: BufId) -> Operand {
        let b = &self.program.buffers[buf];
        Operand { buf, sizes: b.sizes.clone(), strides: b.strides.clone(), offset: SymExpr::ZERO }
    }

    /// The epilogue over a result of these sizes; its last store is to the last buffer.
    fn epilogue(
        &mut self,
        epilogue_kind: EpilogueKind,
        sizes: &[i64],
        strides: &[i64],
        channel: usize,
    ) -> Epilogue {
        let mut one = vec![0; sizes.len()];
        one[channel] = 1;
        let wide = if self.dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let mut body = BodyBuilder::new();
        let at: Shape = (0..sizes.len() as u32).map(SymExpr::loop_var).collect();
        let mut x = body.push(wide, InstKind::Template);
        let half = |b: &mut BodyBuilder, n: f64| b.constant(Scalar::Float(n), wide);
        if epilogue_kind == EpilogueKind::ErfBias {
            let root = half(&mut body, std::f64::consts::FRAC_1_SQRT_2);
            let scaled = body.op(ScalarOp::Mul, &[x, root]);
            let erf = body.op(ScalarOp::Erf, &[scaled]);
            let (unit, two) = (half(&mut body, 1.0), half(&mut body, 0.5));
            let sum = body.op(ScalarOp::Add, &[erf, unit]);
            let product = body.op(ScalarOp::Mul, &[x, sum]);
            x = body.op(ScalarOp::Mul, &[product, two]);
        }
        if epilogue_kind.has_residual() {
            let buf = self.buffer(sizes, strides, true);
            x = added(&mut body, x, buf, self.dtype, at.clone(), wide);
        }
        if epilogue_kind.has_bias() {
            let buf = self.buffer(&sizes[channel..=channel], &[1], true);
            let index: Shape = [SymExpr::loop_var(channel as u32)].into_iter().collect();
            x = added(&mut body, x, buf, self.dtype, index, wide);
        }
        if matches!(epilogue_kind, EpilogueKind::BiasRelu | EpilogueKind::ResidualBiasRelu) {
            let zero = half(&mut body, 0.0);
            x = body.op(ScalarOp::Max, &[x, zero]);
        }
        let x = body.cast(x, self.dtype);
        let out = self.buffer(sizes, strides, false);
        body.store(out, at, x, StoreMode::Write);
        Epilogue { ranges: shape(sizes), insts: body.finish() }
    }
}

fn added(body: &mut BodyBuilder, x: Val, buf: BufId, dtype: DType, index: Shape, wide: DType) -> Val {
    let y = body.load(buf, dtype, index);
    let y = body.cast(y, wide);
    body.op(ScalarOp::Add, &[x, y])
}

/// A matrix product. Strides of `a`, `b` and the result are given, batch first.
pub(crate) struct Product<'a> {
    pub(crate) batch: &'a [i64],
    pub(crate) m: i64,
    pub(crate) n: i64,
    pub(crate) k: i64,
    pub(crate) a: Vec<i64>,
    pub(crate) b: Vec<i64>,
    pub(crate) out: Vec<i64>,
}

pub(crate) fn matmul(
    name: &str,
    dtype: DType,
    tf32: bool,
    p: &Product<'_>,
    epilogue_kind: EpilogueKind,
) -> Case {
    let mut maker = CaseBuilder { program: Program::default(), arrays: Vec::new(), dtype };
    let with = |r: i64, c: i64| -> Vec<i64> { p.batch.iter().copied().chain([r, c]).collect() };
    let a = maker.buffer(&with(p.m, p.k), &p.a, true);
    let b = maker.buffer(&with(p.k, p.n), &p.b, true);
    let (a, b) = (maker.operand(a), maker.operand(b));
    let sizes = with(p.m, p.n);
    let epilogue = maker.epilogue(epilogue_kind, &sizes, &p.out, sizes.len() - 1);
    let acc = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let step = Step::Matmul(Matmul {
        name: "matmul".into(),
        origins: Vec::new(),
        a,
        b,
        acc,
        zero: 0,
        dequant: None,
        groups: None,
        epilogue,
    });
    let flops = 2.0 * p.batch.iter().product::<i64>() as f64 * (p.m * p.n * p.k) as f64;
    Case {
        name: name.into(),
        program: maker.program,
        step,
        dtype,
        tf32,
        arrays: maker.arrays,
        epilogue_kind,
        flops,
    }
}

/// A convolution; `result` gives the sizes of the output.
pub(crate) struct Window<'a> {
    pub(crate) input: (&'a [i64], Vec<i64>),
    pub(crate) weight: (&'a [i64], Vec<i64>),
    pub(crate) result: (&'a [i64], Vec<i64>),
    pub(crate) stride: &'a [i64],
    pub(crate) padding: &'a [(i64, i64)],
    pub(crate) dilation: &'a [i64],
    pub(crate) groups: i64,
    pub(crate) transposed: bool,
}

pub(crate) fn conv(
    name: &str,
    dtype: DType,
    tf32: bool,
    w: &Window<'_>,
    epilogue_kind: EpilogueKind,
) -> Case {
    let mut maker = CaseBuilder { program: Program::default(), arrays: Vec::new(), dtype };
    let input = maker.buffer(w.input.0, &w.input.1, true);
    let weight = maker.buffer(w.weight.0, &w.weight.1, true);
    let (input, weight) = (maker.operand(input), maker.operand(weight));
    let epilogue = maker.epilogue(epilogue_kind, w.result.0, &w.result.1, 1);
    let per_point = w.weight.0[1..].iter().product::<i64>() as f64;
    let flops = match w.transposed {
        true => 2.0 * w.input.0.iter().product::<i64>() as f64 * per_point,
        false => 2.0 * w.result.0.iter().product::<i64>() as f64 * per_point,
    };
    let step = Step::Conv(Conv {
        name: "conv".into(),
        origins: Vec::new(),
        input,
        weight,
        stride: w.stride.to_vec(),
        padding: w.padding.to_vec(),
        dilation: w.dilation.to_vec(),
        groups: w.groups,
        transposed: w.transposed,
        acc: DType::F32,
        zero: 0,
        epilogue,
    });
    Case {
        name: name.into(),
        program: maker.program,
        step,
        dtype,
        tf32,
        arrays: maker.arrays,
        epilogue_kind,
        flops,
    }
}

impl Case {
    /// The result at a point in double precision, and the sum of the magnitudes of its terms.
    pub(crate) fn expected(&self, at: &[i64]) -> (f64, f64) {
        let (sum, size) = match &self.step {
            Step::Matmul(_) => self.product_at(at),
            Step::Conv(c) => self.conv_at(c, at),
            _ => (0.0, 0.0),
        };
        let mut extra = self.arrays[2..self.arrays.len() - 1].iter();
        let residual =
            if self.epilogue_kind.has_residual() { extra.next().map_or(0.0, |a| a.at(at)) } else { 0.0 };
        let channel = if matches!(self.step, Step::Conv(_)) { 1 } else { at.len() - 1 };
        let bias = if self.epilogue_kind.has_bias() {
            extra.next().map_or(0.0, |a| a.at(&at[channel..=channel]))
        } else {
            0.0
        };
        (self.epilogue_kind.apply(sum, bias, residual), size + residual.abs() + bias.abs())
    }

    fn product_at(&self, at: &[i64]) -> (f64, f64) {
        let (a, b) = (&self.arrays[0], &self.arrays[1]);
        let rank = at.len();
        let (mut ia, mut ib) = (at.to_vec(), at.to_vec());
        let (mut sum, mut size) = (0.0, 0.0);
        for q in 0..a.sizes[rank - 1] {
            ia[rank - 1] = q;
            ib[rank - 2] = q;
            let x = a.at(&ia) * b.at(&ib);
            sum += x;
            size += x.abs();
        }
        (sum, size)
    }

    fn conv_at(&self, c: &Conv, at: &[i64]) -> (f64, f64) {
        let (x, w) = (&self.arrays[0], &self.arrays[1]);
        let spatial = c.stride.len();
        let taps: i64 = w.sizes[2..].iter().product();
        let out = &self.arrays[self.arrays.len() - 1];
        let (per_in, per_out) = (x.sizes[1] / c.groups, out.sizes[1] / c.groups);
        let group = at[1] / per_out;
        let (mut sum, mut size) = (0.0, 0.0);
        let (mut ix, mut iw) = (at.to_vec(), at.to_vec());
        'taps: for tap in 0..taps {
            let mut rest = tap;
            for d in (0..spatial).rev() {
                let q = rest % w.sizes[d + 2];
                rest /= w.sizes[d + 2];
                let from = if c.transposed {
                    let t = at[d + 2] + c.padding[d].0 - q * c.dilation[d];
                    if t < 0 || t % c.stride[d] != 0 {
                        continue 'taps;
                    }
                    t / c.stride[d]
                } else {
                    at[d + 2] * c.stride[d] - c.padding[d].0 + q * c.dilation[d]
                };
                if !(0..x.sizes[d + 2]).contains(&from) {
                    continue 'taps;
                }
                (ix[d + 2], iw[d + 2]) = (from, q);
            }
            for channel in 0..per_in {
                ix[1] = group * per_in + channel;
                (iw[0], iw[1]) = if c.transposed { (ix[1], at[1] % per_out) } else { (at[1], channel) };
                let y = x.at(&ix) * w.at(&iw);
                sum += y;
                size += y.abs();
            }
        }
        (sum, size)
    }
}
