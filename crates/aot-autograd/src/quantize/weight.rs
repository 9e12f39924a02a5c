//! Weights as integers with symmetric factors.

use ir_core::DType;
use tensor::{Tensor, TensorError};

/// The integers of a weight, and what shares a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightForm {
    /// 8 bits, from -127 to 127, a factor for each output channel.
    PerChannel,
    /// 4 bits, from -8 to 7, a factor for so many neighbours along the sum.
    Groups(usize),
}

impl WeightForm {
    /// Smallest and largest integer.
    pub const fn range(self) -> (i64, i64) {
        match self {
            WeightForm::PerChannel => (-127, 127),
            WeightForm::Groups(_) => (-8, 7),
        }
    }
    /// Bits of a number.
    pub const fn bits(self) -> usize {
        match self {
            WeightForm::PerChannel => 8,
            WeightForm::Groups(_) => 4,
        }
    }
}

/// A quantized weight.
#[derive(Clone, Debug)]
pub struct QuantizedWeight {
    /// `i8`, of the weight's sizes.
    pub integers: Tensor,
    /// `f32`: `[channels]`, or `[rows, groups]`.
    pub scales: Tensor,
    share: Share,
}

/// Which elements, counted in rows, share a factor: runs of `length` neighbours, and after `count` runs the first factor again.
#[derive(Clone, Copy, Debug)]
struct Share {
    length: usize,
    count: usize,
}

impl QuantizedWeight {
    /// Quantizes a weight; groups lie along the last dimension and divide it.
    ///
    /// # Errors
    /// There is no memory for the results.
    pub fn of(weight: &Tensor, axis: usize, form: WeightForm) -> Result<QuantizedWeight, TensorError> {
        let sizes = weight.sizes();
        let share = match form {
            WeightForm::PerChannel => {
                Share { length: sizes[axis + 1..].iter().product::<usize>().max(1), count: sizes[axis] }
            }
            WeightForm::Groups(length) => {
                Share { length: length.max(1), count: weight.numel() / length.max(1) }
            }
        };
        let values: Vec<f32> = weight.to_dtype(DType::F32)?.to_vec()?;
        let run = |n: usize| n % share.count.max(1);
        let mut largest = vec![0.0f32; share.count];
        for (n, part) in values.chunks(share.length).enumerate() {
            let of_part = part.iter().filter(|x| x.is_finite()).fold(0.0f32, |m, x| m.max(x.abs()));
            largest[run(n)] = largest[run(n)].max(of_part);
        }
        let (low, high) = form.range();
        // All integers of the range are used: that of four bits has one more below 0.
        let half = (high - low) as f32 / 2.0;
        let scales: Vec<f32> = largest.iter().map(|x| (x / half).max(f32::MIN_POSITIVE)).collect();
        let mut integers: Vec<i8> = Vec::with_capacity(values.len());
        for (n, part) in values.chunks(share.length).enumerate() {
            let scale = scales[run(n)];
            let integer = |x: &f32| (x / scale).round_ties_even().clamp(low as f32, high as f32) as i8;
            integers.extend(part.iter().map(integer));
        }
        let of_scales = match form {
            WeightForm::PerChannel => vec![share.count],
            WeightForm::Groups(_) => vec![sizes[0], share.count / sizes[0].max(1)],
        };
        Ok(QuantizedWeight {
            integers: Tensor::from_vec(integers, sizes)?,
            scales: Tensor::from_vec(scales, &of_scales)?,
            share,
        })
    }

    /// The weight that the integers stand for, in `f64`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn values(&self) -> Result<Tensor, TensorError> {
        let (integers, scales): (Vec<i8>, Vec<f32>) = (self.integers.to_vec()?, self.scales.to_vec()?);
        let mut values = Vec::with_capacity(integers.len());
        for (n, part) in integers.chunks(self.share.length).enumerate() {
            let scale = f64::from(scales[n % scales.len().max(1)]);
            values.extend(part.iter().map(|x| f64::from(*x) * scale));
        }
        Tensor::from_vec(values, self.integers.sizes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_those_of_channels_or_groups() {
        let weight = Tensor::from_vec(vec![1.0f32, -12.7, 0.25, 0.0, 0.1, 6.35], &[2, 3]).unwrap();
        let q = QuantizedWeight::of(&weight, 0, WeightForm::PerChannel).unwrap();
        assert_eq!(q.integers.to_vec::<i8>().unwrap(), [10, -127, 2, 0, 2, 127]);
        assert_eq!(q.scales.sizes(), [2]);
        let q = QuantizedWeight::of(&weight, 1, WeightForm::PerChannel).unwrap();
        assert_eq!(q.scales.sizes(), [3]);
        assert_eq!(q.integers.to_vec::<i8>().unwrap(), [127, -127, 5, 0, 1, 127]);
        let q = QuantizedWeight::of(&weight, 0, WeightForm::Groups(3)).unwrap();
        assert_eq!(q.scales.sizes(), [2, 1]);
        for (value, x) in q.values().unwrap().iter_f64().zip(weight.iter_f64()) {
            assert!((value - x).abs() <= 12.7 / 15.0 + 1e-6, "{value} {x}");
        }
    }
}
