//! Tensors from data, numbers and random numbers.

use dynamo::{CaptureError, Size, Value, frame};
use ir_core::{DType, Scalar};
use tensor::{Element, Tensor as HostTensor};

use super::{Input, Tensor, call};

/// What a new tensor is filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
    /// A number.
    Full(f64),
    /// Uniform in `[0, 1)`.
    Uniform,
    /// Normally distributed with mean 0 and standard deviation 1.
    Normal,
}

fn list(sizes: &[impl Into<Size> + Clone]) -> Input {
    sizes.iter().cloned().map(Into::into).collect::<Vec<Size>>().as_slice().into()
}

impl Tensor {
    /// Elements in row-major order; there must be as many as `sizes` says, or the tensor holds an error.
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], sizes: &[usize]) -> Tensor {
        match HostTensor::from_slice(values, sizes) {
            Ok(host) => host.into(),
            Err(error) => Tensor::failed(CaptureError::Run(error.to_string())),
        }
    }

    /// A tensor without dimensions.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor::from_slice(&[value], &[])
    }

    /// Filled as `init` says, of this dtype.
    #[track_caller]
    pub fn filled(init: Init, sizes: &[impl Into<Size> + Clone], dtype: DType) -> Tensor {
        match init {
            Init::Zeros => call("aten.zeros.default", [list(sizes), dtype.into()]),
            Init::Ones => call("aten.ones.default", [list(sizes), dtype.into()]),
            Init::Full(x) => call("aten.full.default", [list(sizes), x.into(), dtype.into()]),
            Init::Uniform => call("aten.rand.default", [list(sizes), dtype.into()]),
            Init::Normal => call("aten.randn.default", [list(sizes), dtype.into()]),
        }
    }

    /// Zeros of dtype `f32`.
    #[track_caller]
    pub fn zeros(sizes: &[impl Into<Size> + Clone]) -> Tensor {
        Tensor::filled(Init::Zeros, sizes, DType::F32)
    }
    /// Ones of dtype `f32`.
    #[track_caller]
    pub fn ones(sizes: &[impl Into<Size> + Clone]) -> Tensor {
        Tensor::filled(Init::Ones, sizes, DType::F32)
    }
    /// One number everywhere, of dtype `f32`.
    #[track_caller]
    pub fn full(sizes: &[impl Into<Size> + Clone], value: f64) -> Tensor {
        Tensor::filled(Init::Full(value), sizes, DType::F32)
    }
    /// Uniform random numbers in `[0, 1)` of dtype `f32`.
    #[track_caller]
    pub fn rand(sizes: &[impl Into<Size> + Clone]) -> Tensor {
        Tensor::filled(Init::Uniform, sizes, DType::F32)
    }
    /// Normally distributed random numbers of dtype `f32`.
    #[track_caller]
    pub fn randn(sizes: &[impl Into<Size> + Clone]) -> Tensor {
        Tensor::filled(Init::Normal, sizes, DType::F32)
    }
    /// `0, 1, …, end - 1` as `i64`.
    #[track_caller]
    pub fn arange(end: impl Into<Size>) -> Tensor {
        call("aten.arange.default", [end.into().into()])
    }
    /// `start, …, end - 1` as `i64`.
    #[track_caller]
    pub fn arange_from(start: impl Into<Size>, end: impl Into<Size>) -> Tensor {
        call("aten.arange.start", [start.into().into(), end.into().into()])
    }
    /// The identity matrix `[n, n]` of dtype `f32`.
    #[track_caller]
    pub fn eye(n: i64) -> Tensor {
        call("aten.eye.default", [n.into()])
    }
    /// Filled as `init` says, of this tensor's sizes and dtype.
    #[track_caller]
    pub fn like(&self, init: Init) -> Tensor {
        match init {
            Init::Zeros => self.call("aten.zeros_like.default", []),
            Init::Ones => self.call("aten.ones_like.default", []),
            Init::Full(x) => self.call("aten.full_like.default", [x.into()]),
            Init::Uniform => self.call("aten.rand_like.default", []),
            Init::Normal => self.call("aten.randn_like.default", []),
        }
    }

    /// A tensor of one number, of this dtype.
    pub fn number(value: impl Into<Scalar>, dtype: DType) -> Tensor {
        match HostTensor::scalar(dtype, value.into()) {
            Ok(host) => host.into(),
            Err(error) => Tensor::failed(CaptureError::Run(error.to_string())),
        }
    }

    /// As a variable: gradients with respect to it are computed by [`Tensor::backward`].
    pub fn with_grad(self) -> Tensor {
        self.requires_grad_(true)
    }

    /// Whether gradients with respect to it, or through it, are recorded.
    pub fn requires_grad(&self) -> bool {
        self.value().is_ok_and(|v| v.is_tracked())
    }

    /// Makes it a variable, or no longer one. It forgets what it was computed from.
    pub fn requires_grad_(self, requires: bool) -> Tensor {
        if let (Ok(value), Ok(cell)) = (self.value(), self.cell()) {
            let slot = self.grad_cell().clone();
            let inexact = value.meta().dtype.is_inexact();
            let value = if requires && inexact { Value::variable(value, slot) } else { value.detached() };
            cell.set(Some(value));
        }
        self
    }

    /// The same values, through which nothing is differentiated.
    pub fn detach(&self) -> Tensor {
        Tensor::from_result(self.value().map(|v| v.detached()))
    }

    /// Its elements converted to memory of the host and back: the tensor without what it was computed from.
    ///
    /// # Errors
    /// As for [`Tensor::to_host`].
    #[track_caller]
    pub fn to_data(&self) -> Result<Tensor, crate::Error> {
        let value = Value::of(self.to_host()?);
        frame::adopt(&value);
        Ok(Tensor::new(value))
    }
}

/// Concatenates along a dimension.
#[track_caller]
pub fn cat(tensors: &[&Tensor], dim: i64) -> Tensor {
    call("aten.cat.default", [tensors.into(), dim.into()])
}

/// Concatenates along a new dimension.
#[track_caller]
pub fn stack(tensors: &[&Tensor], dim: i64) -> Tensor {
    call("aten.stack.default", [tensors.into(), dim.into()])
}
