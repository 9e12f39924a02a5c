//! Sample calls that the table-driven tests run through every entry: meta against reference, backend against `interp`.

use fx_ir::Arg;
use tensor::Tensor;

/// A call to test with: tensors are in `tensors`, and `Arg::Value(ValueId(n))` in `args` names the n-th of them.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Operands.
    pub tensors: Vec<Tensor>,
    /// Arguments.
    pub args: Vec<Arg>,
}

/// Collects an entry's samples.
#[derive(Default)]
pub struct Samples {
    /// The samples so far.
    pub list: Vec<Sample>,
}

impl Samples {
    /// Adds a call.
    pub fn add(&mut self, tensors: Vec<Tensor>, args: Vec<Arg>) {
        self.list.push(Sample { tensors, args });
    }
    /// A float tensor in [-2, 2) that depends on `name` and the sizes alone.
    pub fn float(&self, name: &str, sizes: &[usize]) -> Tensor {
        // The sizes of samples are small: neither can fail.
        tensor::formula::fill(name, sizes, 2.0, 0.0).expect("a sample fits memory")
    }
    /// An integer tensor in `0..bound`.
    pub fn ints(&self, name: &str, sizes: &[usize], bound: i64) -> Tensor {
        let n: usize = sizes.iter().product();
        let at = |i: usize| ((tensor::formula::uniform(name, i as u64) + 1.0) / 2.0 * bound as f32) as i64;
        Tensor::from_vec((0..n).map(at).collect::<Vec<i64>>(), sizes).expect("a sample fits memory")
    }
    /// A `bool` tensor.
    pub fn bools(&self, name: &str, sizes: &[usize]) -> Tensor {
        let n: usize = sizes.iter().product();
        let at = |i: usize| tensor::Bool::from(tensor::formula::uniform(name, i as u64) > 0.0);
        Tensor::from_vec((0..n).map(at).collect::<Vec<tensor::Bool>>(), sizes).expect("a sample fits memory")
    }
    /// An `i32` tensor of words of bits.
    pub fn words(&self, name: &str, sizes: &[usize]) -> Tensor {
        let n: usize = sizes.iter().product();
        let at = |i: usize| {
            (f64::from(tensor::formula::uniform(name, i as u64)) * f64::from(u32::MAX)) as i64 as i32
        };
        Tensor::from_vec((0..n).map(at).collect::<Vec<i32>>(), sizes).expect("a sample fits memory")
    }
}

/// For composites that the golden corpus covers.
pub(crate) fn golden(_: &mut Samples) {}
