//! Weights and inputs by formula: the same numbers as the corpus' Python, so that an archive without payloads can be
//! completed anywhere. A value is `offset + scale * u` in `f32`, `u` uniform in `[-1, 1)`.

use rayon::prelude::*;

use crate::{Tensor, TensorError};

/// FNV-1a, 64 bits.
pub fn fnv1a64(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

/// The output function of SplitMix64 at state `z`, its increment added.
pub fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stream of uniform numbers named `name`: element `i` depends on the name and `i` only.
#[derive(Clone, Copy, Debug)]
pub struct Stream(u64);

impl Stream {
    /// The stream of that name.
    pub fn new(name: &str) -> Stream {
        Stream(fnv1a64(name))
    }
    /// Element `i`, in `[-1, 1)`: the top 24 bits of SplitMix64.
    #[inline]
    pub fn at(self, i: u64) -> f32 {
        let bits = splitmix64(self.0.wrapping_add(i)) >> 40;
        bits as f32 * (1.0 / 8_388_608.0) - 1.0
    }
}

/// Element `i` of the stream `name`.
pub fn uniform(name: &str, i: u64) -> f32 {
    Stream::new(name).at(i)
}

/// A contiguous `f32` tensor of `offset + scale * uniform(name, i)`, `i` counting in row-major order.
pub fn fill(name: &str, sizes: &[usize], scale: f32, offset: f32) -> Result<Tensor, TensorError> {
    let stream = Stream::new(name);
    let mut tensor = Tensor::empty(ir_core::DType::F32, sizes)?;
    if let Some(all) = tensor.as_mut_slice::<f32>() {
        all.par_iter_mut().enumerate().for_each(|(i, x)| *x = offset + scale * stream.at(i as u64));
    }
    Ok(tensor)
}
