//! Convolutions by loops in double precision, in all three directions.
//!
//! Not here: the functions of MIOpen that ask for them (`miopen`).

use crate::blas::{read, write};

/// A tensor as `miopenSetTensorDescriptor` describes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tensor {
    /// `hipDataType`.
    pub(crate) kind: i32,
    pub(crate) sizes: Vec<i64>,
    pub(crate) strides: Vec<i64>,
}

/// A convolution as `miopenInitConvolutionNdDescriptor` describes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window {
    pub(crate) padding: Vec<i64>,
    pub(crate) stride: Vec<i64>,
    pub(crate) dilation: Vec<i64>,
    pub(crate) groups: i64,
}

/// What is unknown in `y = x * w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Data,
    Weights,
}

/// A convolution with its tensors and addresses: the input, the weight and the output of the plain one.
#[derive(Clone, Debug)]
pub(crate) struct Convolution {
    pub(crate) direction: Direction,
    pub(crate) window: Window,
    pub(crate) tensors: [Tensor; 3],
    pub(crate) addresses: [u64; 3],
}

impl Tensor {
    /// The place of an element in memory.
    fn at(&self, index: &[i64]) -> i64 {
        index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum()
    }

    /// The number of an element.
    fn number(&self, index: &[i64]) -> usize {
        index.iter().zip(&self.sizes).fold(0, |n, (i, size)| n * size + i) as usize
    }

    fn elements(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// The index of an element by its number.
    fn index(&self, number: i64) -> Vec<i64> {
        let mut rest = number;
        let mut index: Vec<i64> = Vec::new();
        for size in self.sizes.iter().rev() {
            index.push(rest % size);
            rest /= size;
        }
        index.reverse();
        index
    }
}

impl Convolution {
    /// Whether the tensors fit to each other.
    pub(crate) fn fits(&self) -> bool {
        let [x, w, y] = self.tensors.each_ref();
        let spatial = self.window.stride.len();
        let ranks = [x, w, y].iter().all(|t| t.sizes.len() == spatial + 2 && t.kind == x.kind);
        let groups = self.window.groups;
        ranks
            && groups > 0
            && x.sizes[1] == w.sizes[1] * groups
            && w.sizes[0] == y.sizes[1]
            && w.sizes[0] % groups == 0
            && x.sizes[0] == y.sizes[0]
            && (0..spatial).all(|d| {
                let reach = (w.sizes[d + 2] - 1) * self.window.dilation[d] + 1;
                let room = x.sizes[d + 2] + 2 * self.window.padding[d] - reach;
                room >= 0 && room / self.window.stride[d] + 1 == y.sizes[d + 2]
            })
    }

    /// The element of the input that a window's point reads for an output; none where it is padding.
    fn source(&self, y: &[i64], w: &[i64]) -> Option<Vec<i64>> {
        let [input, weight, output] = self.tensors.each_ref();
        let group = y[1] / (output.sizes[1] / self.window.groups);
        let mut index = vec![y[0], group * weight.sizes[1] + w[1]];
        for d in 0..self.window.stride.len() {
            let at = y[d + 2] * self.window.stride[d] + w[d + 2] * self.window.dilation[d];
            let at = at - self.window.padding[d];
            if !(0..input.sizes[d + 2]).contains(&at) {
                return None;
            }
            index.push(at);
        }
        Some(index)
    }

    /// Computes it.
    ///
    /// # Safety
    /// The addresses are of tensors as they are described.
    pub(crate) unsafe fn run(&self) {
        let [x, w, y] = self.tensors.each_ref();
        let [at_x, at_w, at_y] = self.addresses;
        let unknown = match self.direction {
            Direction::Data => 0,
            Direction::Weights => 1,
            Direction::Forward => 2,
        };
        let result = &self.tensors[unknown];
        let mut sums = vec![0.0; result.elements() as usize];
        for of_y in (0..y.elements()).map(|n| y.index(n)) {
            // The weights of this output channel.
            let points = w.elements() / w.sizes[0];
            for of_w in (0..points).map(|n| w.index(of_y[1] * points + n)) {
                let Some(of_x) = self.source(&of_y, &of_w) else { continue };
                // SAFETY: the caller's promise.
                let (number, value) = unsafe {
                    let x_value = || read(x.kind, at_x, x.at(&of_x));
                    let w_value = || read(w.kind, at_w, w.at(&of_w));
                    let y_value = || read(y.kind, at_y, y.at(&of_y));
                    match self.direction {
                        Direction::Forward => (y.number(&of_y), x_value() * w_value()),
                        Direction::Data => (x.number(&of_x), y_value() * w_value()),
                        Direction::Weights => (w.number(&of_w), x_value() * y_value()),
                    }
                };
                sums[number] += value;
            }
        }
        for (n, sum) in sums.into_iter().enumerate() {
            let at = result.at(&result.index(n as i64));
            // SAFETY: the caller's promise.
            unsafe { write(result.kind, self.addresses[unknown], at, sum) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window of two points over three numbers with a zero before and behind them.
    fn small(direction: Direction, addresses: [u64; 3]) -> Convolution {
        let tensor = |n: i64| Tensor { kind: 1, sizes: vec![1, 1, 1, n], strides: vec![n, n, n, 1] };
        let window = Window { padding: vec![0, 1], stride: vec![1, 1], dilation: vec![1, 1], groups: 1 };
        Convolution { direction, window, tensors: [tensor(3), tensor(2), tensor(4)], addresses }
    }

    #[test]
    fn all_directions_by_hand() {
        let (mut x, mut w, mut y) = ([1.0f64, 2.0, 3.0], [10.0f64, 1.0], [0.0f64; 4]);
        let at = [x.as_mut_ptr() as u64, w.as_mut_ptr() as u64, y.as_mut_ptr() as u64];
        let forward = small(Direction::Forward, at);
        assert!(forward.fits());
        // SAFETY: the addresses are of these numbers, in double precision.
        unsafe { forward.run() };
        assert_eq!(y, [1.0, 12.0, 23.0, 30.0]);
        // SAFETY: the numbers live as long as this test.
        unsafe { small(Direction::Weights, at).run() };
        assert_eq!(w, [1.0 * 12.0 + 2.0 * 23.0 + 3.0 * 30.0, 1.0 + 2.0 * 12.0 + 3.0 * 23.0]);
        w = [10.0, 1.0];
        // SAFETY: the numbers live as long as this test.
        unsafe { small(Direction::Data, at).run() };
        assert_eq!(x, [1.0 + 120.0, 12.0 + 230.0, 23.0 + 300.0]);
        let wrong = Window { padding: vec![0, 0], ..forward.window.clone() };
        assert!(!Convolution { window: wrong, ..forward }.fits());
        assert_eq!(w, [10.0, 1.0]);
    }
}
