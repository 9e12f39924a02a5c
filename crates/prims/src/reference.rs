//! What a reference implementation sees: arguments with tensors in place of values, and the types of the results.

use ir_core::{DType, Scalar};
use tensor::Tensor;

use crate::{Op, OpError};

/// Results of a reference.
pub type RefOut = Vec<Tensor>;

/// An argument with its value.
#[derive(Clone, Debug)]
pub enum RefArg {
    /// Absent.
    None,
    /// A tensor.
    Tensor(Tensor),
    /// A number.
    Scalar(Scalar),
    /// Text.
    Str(Box<str>),
    /// An element type.
    DType(DType),
    /// A list.
    List(Vec<RefArg>),
    /// A device, layout or memory format: of no meaning to a reference.
    Other,
}

/// A call with tensors.
pub struct RefCall<'a> {
    /// The operator.
    pub op: &'static Op,
    /// One argument a schema argument.
    pub args: &'a [RefArg],
    /// dtype and sizes of each result, from the meta rule. For data-dependent sizes they are an upper bound or empty:
    /// the reference decides.
    pub outs: &'a [(DType, Vec<usize>)],
}

impl<'a> RefCall<'a> {
    /// An error about an argument.
    pub fn bad_arg(&self, arg: &str, what: &str) -> OpError {
        OpError::Argument { op: self.op.target.clone(), arg: arg.into(), what: what.into() }
    }
    /// The call breaks the operator's rules.
    pub fn invalid(&self, what: impl Into<String>) -> OpError {
        OpError::Invalid { op: self.op.target.clone(), what: what.into() }
    }
    /// Wraps an error of the tensor crate.
    pub fn tensor_error(&self, source: tensor::TensorError) -> OpError {
        OpError::Tensor { op: self.op.target.clone(), source }
    }
    /// An empty list with room for so many elements.
    ///
    /// # Errors
    /// The allocator's refusal, with the bytes: sizes may be anything that a graph says.
    pub fn room<T>(&self, elements: usize) -> Result<Vec<T>, OpError> {
        let mut list = Vec::new();
        let bytes = elements.saturating_mul(size_of::<T>());
        let refused = |_| self.tensor_error(tensor::TensorError::OutOfMemory { bytes });
        if !ir_core::can_allocate(bytes) {
            return Err(refused(()));
        }
        list.try_reserve_exact(elements).map_err(|_| refused(()))?;
        Ok(list)
    }
    /// The argument with this name.
    pub fn arg(&self, name: &str) -> &'a RefArg {
        const NONE: &RefArg = &RefArg::None;
        self.op.schema.arg_index(name).and_then(|i| self.args.get(i)).unwrap_or(NONE)
    }
    /// A tensor.
    pub fn tensor(&self, name: &str) -> Result<&'a Tensor, OpError> {
        self.opt_tensor(name)?.ok_or_else(|| self.bad_arg(name, "is missing"))
    }
    /// A tensor, or absent.
    pub fn opt_tensor(&self, name: &str) -> Result<Option<&'a Tensor>, OpError> {
        match self.arg(name) {
            RefArg::Tensor(t) => Ok(Some(t)),
            RefArg::None => Ok(None),
            _ => Err(self.bad_arg(name, "must be a tensor")),
        }
    }
    /// A list of tensors, some of which may be absent.
    pub fn opt_tensors(&self, name: &str) -> Result<Vec<Option<&'a Tensor>>, OpError> {
        let item = |a: &'a RefArg| match a {
            RefArg::Tensor(t) => Ok(Some(t)),
            RefArg::None => Ok(None),
            _ => Err(self.bad_arg(name, "must be a list of tensors")),
        };
        match self.arg(name) {
            RefArg::List(items) => items.iter().map(item).collect(),
            _ => Err(self.bad_arg(name, "must be a list of tensors")),
        }
    }
    /// A list of tensors.
    pub fn tensors(&self, name: &str) -> Result<Vec<&'a Tensor>, OpError> {
        let present = |t: Option<&'a Tensor>| t.ok_or_else(|| self.bad_arg(name, "has a missing item"));
        self.opt_tensors(name)?.into_iter().map(present).collect()
    }
    /// A number, or absent.
    pub fn opt_scalar(&self, name: &str) -> Result<Option<Scalar>, OpError> {
        match self.arg(name) {
            RefArg::Scalar(s) => Ok(Some(*s)),
            RefArg::None => Ok(None),
            _ => Err(self.bad_arg(name, "must be a number")),
        }
    }
    /// A number.
    pub fn scalar(&self, name: &str) -> Result<Scalar, OpError> {
        self.opt_scalar(name)?.ok_or_else(|| self.bad_arg(name, "is missing"))
    }
    /// An integer.
    pub fn int(&self, name: &str) -> Result<i64, OpError> {
        self.scalar(name).map(Scalar::as_i64)
    }
    /// A truth value; absent is false.
    pub fn bool(&self, name: &str) -> Result<bool, OpError> {
        Ok(self.opt_scalar(name)?.is_some_and(Scalar::as_bool))
    }
    /// A list of integers; absent is empty.
    pub fn ints(&self, name: &str) -> Result<Vec<i64>, OpError> {
        let item = |a: &RefArg| match a {
            RefArg::Scalar(s) => Ok(s.as_i64()),
            _ => Err(self.bad_arg(name, "must be a list of integers")),
        };
        match self.arg(name) {
            RefArg::List(items) => items.iter().map(item).collect(),
            RefArg::None => Ok(Vec::new()),
            one => Ok(vec![item(one)?]),
        }
    }
    /// dtype and sizes of the first result.
    pub fn out(&self) -> (DType, &'a [usize]) {
        self.outs.first().map_or((DType::F32, &[]), |(dtype, sizes)| (*dtype, sizes))
    }
}
