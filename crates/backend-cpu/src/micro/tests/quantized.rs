//! Products with quantized weights against sums in double precision.

use half::{bf16, f16};

use super::narrow::{Results, at, isas};
use crate::micro::quantized::{Columns, Floats, QuantizedMatmul, QuantizedWeights, Source, matmul};
use crate::micro::{BatchDim, EpilogueBlock, Hook, Isa};

/// A case: rows, columns, length of the sums and groups.
#[derive(Debug, Clone, Copy)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    groups: usize,
    /// Whether weights are `i8`.
    signed: bool,
    /// Numbers that weights may have, from the smallest on.
    numbers: (i32, i32),
    /// Zero points: none, one for all, or one for each group and column.
    zeros: Zeros,
    /// Whether weights lie as `[n, k]`.
    swapped: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Zeros {
    None,
    Common(f32),
    Each,
}

/// A number near 1 in size.
fn float(i: usize, salt: usize) -> f32 {
    (f32::from(at(i, salt)) - 120.0) / 64.0
}

impl Case {
    fn weight(&self, k: usize, n: usize) -> u8 {
        let (low, count) = self.numbers;
        (low + i32::from(at(k * self.n + n, 1)) % count) as u8
    }
    fn zero(&self, group: usize, n: usize) -> f32 {
        match self.zeros {
            Zeros::None => 0.0,
            Zeros::Common(zero) => zero,
            Zeros::Each => f32::from(at(group * self.n + n, 4) % 16),
        }
    }
    fn factor(&self, group: usize, n: usize) -> f32 {
        0.01 + f32::from(at(group * self.n + n, 5)) / 4096.0
    }
    /// The weight that element `(k, n)` stands for.
    fn value(&self, k: usize, n: usize) -> f64 {
        let byte = self.weight(k, n);
        let integer = if self.signed { f64::from(byte.cast_signed()) } else { f64::from(byte) };
        let group = k / (self.k / self.groups);
        (integer - f64::from(self.zero(group, n))) * f64::from(self.factor(group, n))
    }

    fn pack(&self, isa: Isa) -> QuantizedWeights {
        let (k, n) = (self.k, self.n);
        let strides = if self.swapped { [1, k] } else { [n, 1] };
        let mut integers = vec![0; k * n];
        (0..k * n)
            .for_each(|i| integers[i / n * strides[0] + i % n * strides[1]] = self.weight(i / n, i % n));
        let each = |f: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            (0..self.groups * n).map(|i| f(i / n, i % n)).collect()
        };
        let (factor, zero) = (each(&|g, n| self.factor(g, n)), each(&|g, n| self.zero(g, n)));
        let columns = |v: &[f32]| Columns { ptr: v.as_ptr(), strides: [n as isize, 1] };
        let source = Source {
            ptr: integers.as_ptr(),
            signed: self.signed,
            sizes: [k, n],
            strides: strides.map(|s| s as isize),
            groups: self.groups,
            factor: columns(&factor),
            zero: (self.zeros != Zeros::None).then(|| columns(&zero)),
        };
        // SAFETY: the source's vectors have its sizes.
        unsafe { QuantizedWeights::pack(isa, &source) }.unwrap()
    }

    /// Multiplies two entries of rows that are `stride` apart, and compares.
    fn check<T: Copy>(
        &self,
        isa: Isa,
        (floats, of, back): (Floats, fn(f32) -> T, fn(T) -> f64),
        stride: usize,
    ) {
        let (m, n, k) = (self.m, self.n, self.k);
        let a: Vec<T> = (0..2 * m * k * stride).map(|i| of(float(i, 2))).collect();
        let packed = self.pack(isa);
        let results = Results::new([2, m, n]);
        let store = |block: &EpilogueBlock| results.store(block);
        let entry = (m * k * stride) as isize;
        let batch = [BatchDim { size: 2, a_stride: entry, b_stride: 0, c_stride: 0 }];
        let call = QuantizedMatmul {
            m,
            a: a.as_ptr().cast(),
            floats,
            strides: [(k * stride) as isize, stride as isize],
            b: &packed,
            batch: &batch,
            hook: Hook::Closure(&store),
        };
        // SAFETY: A has these elements.
        unsafe { matmul(&call) };
        for (i, sum) in results.all().into_iter().enumerate() {
            let (mut wanted, mut size) = (0.0, 0.0);
            for t in 0..k {
                let x = back(a[i / n * k * stride + t * stride]);
                let term = x * self.value(t, i % n);
                // Zero points are multiplied with the sums of A, so that both parts round by themselves.
                let group = t / (k / self.groups);
                let parts = x * f64::from(self.factor(group, i % n)) * 255.0;
                (wanted, size) = (wanted + term, size + term.abs() + parts.abs());
            }
            let got = f64::from(f32::from_bits(sum));
            assert!((got - wanted).abs() <= 1e-6 * size, "{isa:?} {self:?}: {got} {wanted} at {i}");
        }
    }
}

/// Cases of every size of a tile, of groups that are no whole steps, of both sizes of numbers.
fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let sizes = [
        (1, 64, 64, 2),
        (2, 100, 96, 3),
        (3, 17, 30, 2),
        (5, 130, 40, 8),
        (13, 70, 77, 7),
        (6, 48, 33, 1),
        (40, 16, 128, 4),
    ];
    let weights = [
        (true, (-8, 16), Zeros::None),
        (false, (0, 16), Zeros::Common(8.0)),
        (false, (0, 16), Zeros::Each),
        (true, (-128, 256), Zeros::None),
        (true, (-128, 256), Zeros::Each),
        (false, (0, 256), Zeros::Common(128.0)),
        (false, (0, 200), Zeros::Common(3.0)),
    ];
    for (m, n, k, groups) in sizes {
        for (signed, numbers, zeros) in weights {
            let swapped = m % 2 == 1;
            all.push(Case { m, n, k, groups, signed, numbers, zeros, swapped });
        }
    }
    all
}

#[test]
fn products_with_quantized_weights_are_those_of_dequantized_ones() {
    for isa in isas() {
        for case in cases() {
            case.check(isa, (Floats::F32, |x| x, f64::from), 1);
            case.check(isa, (Floats::Bf16, bf16::from_f32, bf16::to_f64), 1);
            case.check(isa, (Floats::F16, f16::from_f32, f16::to_f64), 2);
        }
    }
}

#[test]
fn weights_of_sixteen_numbers_take_half_a_byte() {
    let case = Case {
        m: 1,
        n: 64,
        k: 256,
        groups: 2,
        signed: true,
        numbers: (-8, 16),
        zeros: Zeros::None,
        swapped: false,
    };
    let factors = 2 * 64 * size_of::<f32>();
    assert_eq!(case.pack(Isa::Portable).bytes(), 64 * 256 / 2 + factors);
    let wider = Case { numbers: (-8, 17), ..case };
    assert_eq!(wider.pack(Isa::Portable).bytes(), 64 * 256 + factors);
}
