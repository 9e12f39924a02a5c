//! Every path against plain f64 loops, on every instruction set of this machine. Tolerances are the forward error
//! bounds of a sum of k products in f32, never fitted.

mod attention;
mod attention_backward;
mod conv;
mod matmul;
mod narrow;
mod quantized;
mod threads;

use super::{Activation, Epilogue, EpilogueBlock, Hook, Isa, Residual};
use std::sync::Mutex;

/// Numbers in -1 .. 1 that depend on the seed only.
fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The variants that this machine can run.
fn isas() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.detected()).collect()
}

/// A value and the sum of the magnitudes that went into it.
#[derive(Clone, Copy, Default)]
struct Sum {
    value: f64,
    magnitude: f64,
    terms: usize,
}

impl Sum {
    fn add(&mut self, a: f32, b: f32) {
        let p = f64::from(a) * f64::from(b);
        self.value += p;
        self.magnitude += p.abs();
        self.terms += 1;
    }

    /// (n + 4) u sum |a b|: n - 1 additions, a product, and up to four steps of the epilogue, each rounding once.
    fn bound(&self) -> f64 {
        (self.terms + 4) as f64 * f64::from(f32::EPSILON) / 2.0 * self.magnitude + 1e-30
    }
}

/// An epilogue with data of its own, and its reference.
struct TestEpilogue {
    scale: Option<Vec<f32>>,
    shift: Option<Vec<f32>>,
    residual: Option<(Vec<f32>, usize, usize)>,
    activation: Activation,
}

impl TestEpilogue {
    /// One of a few kinds for `[batch, m, n]`.
    fn new(kind: usize, batch: usize, m: usize, n: usize) -> TestEpilogue {
        let stride = n + kind % 3;
        TestEpilogue {
            scale: (kind & 1 == 1).then(|| random(71, n)),
            shift: (kind & 2 == 2).then(|| random(72, n)),
            residual: (kind & 4 == 4).then(|| (random(73, batch * m * stride), stride, m * stride)),
            activation: match kind % 3 {
                0 => Activation::None,
                1 => Activation::Relu,
                _ => Activation::Clamp(-0.5, 0.75),
            },
        }
    }

    fn borrow(&self) -> Epilogue<'_> {
        Epilogue {
            scale: self.scale.as_deref(),
            shift: self.shift.as_deref(),
            residual: self.residual.as_ref().map(|(v, row_stride, batch_stride)| Residual {
                ptr: v.as_ptr(),
                row_stride: *row_stride,
                batch_stride: *batch_stride,
            }),
            activation: self.activation,
            ..Epilogue::default()
        }
    }

    fn apply(&self, sum: &mut Sum, batch: usize, m: usize, n: usize) {
        let scale = self.scale.as_ref().map_or(1.0, |s| f64::from(s[n]));
        let shift = self.shift.as_ref().map_or(0.0, |s| f64::from(s[n]));
        let residual = self.residual.as_ref().map_or(0.0, |(v, r, b)| f64::from(v[batch * b + m * r + n]));
        sum.value = sum.value * scale + shift + residual;
        sum.magnitude = sum.magnitude * scale.abs() + shift.abs() + residual.abs();
        sum.value = match self.activation {
            Activation::None => sum.value,
            Activation::Relu => sum.value.max(0.0),
            Activation::Clamp(lo, hi) => sum.value.clamp(f64::from(lo), f64::from(hi)),
        };
    }
}

/// Counts how often each element is handed to a hook, and doubles it.
struct Counter {
    seen: Mutex<Vec<u8>>,
    rows: usize,
    cols: usize,
}

impl Counter {
    fn new(batch: usize, rows: usize, cols: usize) -> Counter {
        Counter { seen: Mutex::new(vec![0; batch * rows * cols]), rows, cols }
    }

    fn visit(&self, b: &EpilogueBlock) {
        let mut seen = self.seen.lock().unwrap();
        for i in b.row0..b.row1 {
            for j in b.col0..b.col1 {
                seen[(b.batch * self.rows + i) * self.cols + j] += 1;
                // SAFETY: the block describes memory that this call may write.
                unsafe { *b.ptr.add((i - b.row0) * b.row_stride + j - b.col0) *= 2.0 };
            }
        }
    }

    fn assert_once(&self, what: &str) {
        assert!(
            self.seen.lock().unwrap().iter().all(|n| *n == 1),
            "{what}: some element was not visited exactly once"
        );
    }
}

/// A hook around a closure.
fn hook<'a>(f: &'a (dyn Fn(&EpilogueBlock) + Sync)) -> Option<Hook<'a>> {
    Some(Hook::Closure(f))
}

#[track_caller]
fn assert_close(got: f32, want: &Sum, what: &str) {
    assert_within(got, want, want.bound(), what);
}

#[track_caller]
fn assert_within(got: f32, want: &Sum, bound: f64, what: &str) {
    let error = (f64::from(got) - want.value).abs();
    assert!(error <= bound, "{what}: got {got}, want {}, error {error:.2e} > {bound:.2e}", want.value);
}
