//! Test values: the same on every machine, with the extreme and special values of each dtype, and tensors of them in any
//! layout.

use ir_core::{DType, Scalar};
use tensor::{Element, Storage, Tensor, TensorError, with_element};

/// A small generator (a linear congruence with mixed output); its sequence is determined by the seed.
pub struct Rng(u64);

impl Rng {
    /// Starts at a seed.
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }
    /// The next 64 bits.
    #[allow(clippy::should_implement_trait)] // It never ends, and is used by name.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let x = self.0 ^ (self.0 >> 29);
        x.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 16
    }
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    /// In `[-1, 1)`.
    pub fn unit(&mut self) -> f64 {
        self.below(1 << 24) as f64 / f64::from(1 << 23) - 1.0
    }
}

/// The element that `dtype` holds after `value` was stored in it.
pub fn rounded(dtype: DType, value: Scalar) -> Scalar {
    with_element!(dtype, T => T::from_scalar(value).to_scalar())
}

/// Ordinary values of a dtype, none far from 1.
pub fn ordinary(dtype: DType, count: usize, seed: u64) -> Vec<Scalar> {
    let mut rng = Rng::new(seed);
    let one = |_| {
        let value = match dtype {
            DType::Bool => Scalar::Bool(rng.below(2) == 0),
            DType::U8 => Scalar::Int(rng.below(20) as i64),
            d if d.is_int() => Scalar::Int(rng.below(20) as i64 - 10),
            _ => Scalar::Float(rng.unit() * 3.0),
        };
        rounded(dtype, value)
    };
    (0..count).map(one).collect()
}

/// The extreme, special and some ordinary values. Floats of 16 bits never reach an operator, so only the dtypes of
/// computation matter.
pub fn special(dtype: DType) -> Vec<Scalar> {
    let raw: Vec<Scalar> = match dtype {
        DType::Bool => vec![Scalar::Bool(false), Scalar::Bool(true)],
        d if d.is_int() => ints(d).into_iter().map(Scalar::Int).collect(),
        d => floats(d).into_iter().map(Scalar::Float).collect(),
    };
    raw.into_iter().map(|v| rounded(dtype, v)).collect()
}

fn ints(dtype: DType) -> Vec<i64> {
    let bits = dtype.size() as u32 * 8;
    let (low, high) = match dtype {
        DType::U8 => (0, 255),
        _ => (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits)),
    };
    let small = (-5..=9).chain([31, 32, 33, 63, 64, 65, 100]).filter(|x| (low..=high).contains(x));
    small.chain([low, low + 1, high - 1, high]).collect()
}

fn floats(dtype: DType) -> Vec<f64> {
    let (tiny, large) = match dtype {
        DType::F64 => (f64::MIN_POSITIVE, f64::MAX),
        _ => (f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)),
    };
    let fixed = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        -2.5,
        3.0,
        2.5,
        3.5,
        0.1,
        -0.1,
        1e-3,
        10.0,
        -10.0,
        0.25,
        0.62,
        0.9,
        4.0,
        8.0,
        16.0,
        87.0,
        -87.4,
        100.0,
        1e8,
        1e10,
        1e-30,
        1e30,
        0.999_999_9,
        1.000_000_1,
        1.570_796_4,
        127.5,
    ];
    let mut values = fixed.to_vec();
    values.extend([f64::NAN, f64::INFINITY, f64::NEG_INFINITY, tiny, -tiny, large, -large]);
    values
}

/// A tensor of numbers in row-major order, laid out with `strides` (none negative). Bytes between the elements and the
/// memory before the first one are filled with a pattern that no correct result contains.
///
/// # Errors
/// Where the shape overflows memory.
pub fn tensor_strided(
    dtype: DType,
    sizes: &[usize],
    strides: &[isize],
    values: &[Scalar],
) -> Result<Tensor, TensorError> {
    /// Elements before the first one: a consumer must add the offset.
    const BEFORE: usize = 3;
    let reach = sizes.iter().zip(strides).map(|(n, s)| n.saturating_sub(1) * s.unsigned_abs()).sum::<usize>();
    let elements = if sizes.contains(&0) { 0 } else { reach + 1 };
    let mut bytes = vec![0xff; (BEFORE + elements) * dtype.size()];
    let mut index = vec![0usize; sizes.len()];
    for value in values {
        let at: usize = BEFORE + index.iter().zip(strides).map(|(i, s)| i * s.unsigned_abs()).sum::<usize>();
        write(dtype, &mut bytes[at * dtype.size()..], *value);
        for d in (0..sizes.len()).rev() {
            index[d] += 1;
            if index[d] < sizes[d] {
                break;
            }
            index[d] = 0;
        }
    }
    Tensor::new(Storage::from_bytes(&bytes)?, dtype, sizes, strides, BEFORE as isize)
}

/// A row-major tensor of numbers.
///
/// # Errors
/// Where the shape overflows memory.
pub fn tensor(dtype: DType, sizes: &[usize], values: &[Scalar]) -> Result<Tensor, TensorError> {
    let mut bytes = vec![0; values.len() * dtype.size()];
    for (place, value) in bytes.chunks_exact_mut(dtype.size()).zip(values) {
        write(dtype, place, *value);
    }
    Tensor::new(Storage::from_bytes(&bytes)?, dtype, sizes, &tensor::contiguous_strides(sizes), 0)
}

/// A row-major tensor of ordinary numbers.
///
/// # Errors
/// Where the shape overflows memory.
pub fn filled(dtype: DType, sizes: &[usize], seed: u64) -> Result<Tensor, TensorError> {
    tensor(dtype, sizes, &ordinary(dtype, sizes.iter().product(), seed))
}

fn write(dtype: DType, place: &mut [u8], value: Scalar) {
    macro_rules! bytes {
        ($v:expr) => {{
            let bytes = $v.to_ne_bytes();
            place[..bytes.len()].copy_from_slice(&bytes);
        }};
    }
    match dtype {
        DType::Bool => place[0] = u8::from(value.as_bool()),
        DType::U8 => place[0] = value.as_i64() as u8,
        DType::I8 => place[0] = value.as_i64() as u8,
        DType::I16 => bytes!(i16::from_scalar(value)),
        DType::I32 => bytes!(i32::from_scalar(value)),
        DType::I64 => bytes!(i64::from_scalar(value)),
        DType::F16 => bytes!(tensor::f16::from_scalar(value)),
        DType::BF16 => bytes!(tensor::bf16::from_scalar(value)),
        DType::F32 => bytes!(f32::from_scalar(value)),
        DType::F64 => bytes!(f64::from_scalar(value)),
        // Kernels have no others; no check creates such a tensor.
        _ => place.fill(0),
    }
}
