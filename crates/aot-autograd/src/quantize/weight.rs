//! Weights as integers with symmetric factors.

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
    /// The weight that they stand for, in `f64`.
    pub values: Tensor,
}

impl QuantizedWeight {
    /// Quantizes a weight; groups lie along the last dimension and divide it.
    ///
    /// # Errors
    /// There is no memory for the results.
    pub fn of(weight: &Tensor, axis: usize, form: WeightForm) -> Result<QuantizedWeight, TensorError> {
        let sizes = weight.sizes();
        let inner: usize = sizes[axis + 1..].iter().product();
        let (count, part) = match form {
            WeightForm::PerChannel => (sizes[axis], 0),
            WeightForm::Groups(length) => (weight.numel() / length.max(1), length.max(1)),
        };
        let shared = |i: usize| match form {
            WeightForm::PerChannel => i / inner.max(1) % count.max(1),
            WeightForm::Groups(_) => i / part,
        };
        let mut largest = vec![0.0f64; count];
        for (i, x) in weight.iter_f64().enumerate().filter(|(_, x)| x.is_finite()) {
            largest[shared(i)] = largest[shared(i)].max(x.abs());
        }
        let (low, high) = form.range();
        // All integers of the range are used: that of four bits has one more below 0.
        let scale = |x: &f64| ((x / ((high - low) as f64 / 2.0)) as f32).max(f32::MIN_POSITIVE);
        let scales: Vec<f32> = largest.iter().map(scale).collect();
        let integer = |(i, x): (usize, f64)| {
            let n = (x / f64::from(scales[shared(i)])).round_ties_even();
            n.clamp(low as f64, high as f64) as i8
        };
        let integers: Vec<i8> = weight.iter_f64().enumerate().map(integer).collect();
        let value = |(i, n): (usize, &i8)| f64::from(*n) * f64::from(scales[shared(i)]);
        let values: Vec<f64> = integers.iter().enumerate().map(value).collect();
        let of_scales = match form {
            WeightForm::PerChannel => vec![count],
            WeightForm::Groups(_) => vec![sizes[0], count / sizes[0].max(1)],
        };
        Ok(QuantizedWeight {
            values: Tensor::from_vec(values, sizes)?,
            integers: Tensor::from_vec(integers, sizes)?,
            scales: Tensor::from_vec(scales, &of_scales)?,
        })
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
        for (value, x) in q.values.iter_f64().zip(weight.iter_f64()) {
            assert!((value - x).abs() <= 12.7 / 15.0 + 1e-6, "{value} {x}");
        }
    }
}
