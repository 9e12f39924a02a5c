//! Arithmetic of optimizer updates: a builder that rounds as PyTorch's kernels do. Every PyTorch call computes 16-bit
//! tensors in `f32` and rounds its result; wider ones are computed in their own dtype.

use fx_ir::{Arg, ValueId};
use ir_core::DType;
use prims::{Builder, OpError};

/// Builds the update of one parameter.
pub(crate) struct Math<'m, 'g> {
    pub(crate) b: &'m mut Builder<'g>,
    /// The parameter's dtype, and the dtype of the computation.
    dtype: DType,
    compute: DType,
    /// The step's numbers of the compute dtype, by name.
    numbers: &'m dyn Fn(&str) -> Option<ValueId>,
}

impl<'m, 'g> Math<'m, 'g> {
    /// For a parameter of this dtype.
    pub(crate) fn new(
        b: &'m mut Builder<'g>,
        dtype: DType,
        numbers: &'m dyn Fn(&str) -> Option<ValueId>,
    ) -> Math<'m, 'g> {
        Math { b, dtype, compute: dtype.compute(), numbers }
    }
    /// A number of this step.
    pub(crate) fn number(&self, name: &str) -> Result<ValueId, OpError> {
        let missing = || OpError::Invalid { op: "optimizer".into(), what: format!("has no number `{name}`") };
        (self.numbers)(name).ok_or_else(missing)
    }
    /// A tensor in the dtype that it is computed in.
    pub(crate) fn load(&mut self, v: ValueId) -> Result<ValueId, OpError> {
        self.b.cast(v, self.compute)
    }
    /// The result of a PyTorch call: rounded to the parameter's dtype.
    pub(crate) fn round(&mut self, v: ValueId) -> Result<ValueId, OpError> {
        if self.dtype == self.compute {
            return Ok(v);
        }
        let rounded = self.b.cast(v, self.dtype)?;
        self.b.cast(rounded, self.compute)
    }
    /// A result in the parameter's dtype.
    pub(crate) fn store(&mut self, v: ValueId) -> Result<ValueId, OpError> {
        self.b.cast(v, self.dtype)
    }
    /// `a.add(b, alpha)`: `a + alpha * b`, rounded once in 16 bits.
    pub(crate) fn add_scaled(
        &mut self,
        a: ValueId,
        alpha: impl Into<Arg>,
        b: ValueId,
    ) -> Result<ValueId, OpError> {
        let scaled = self.b.mul(b, alpha)?;
        let sum = self.b.add(a, scaled)?;
        self.round(sum)
    }
    /// `a * factor`, rounded.
    pub(crate) fn scale(&mut self, a: ValueId, factor: impl Into<Arg>) -> Result<ValueId, OpError> {
        let scaled = self.b.mul(a, factor)?;
        self.round(scaled)
    }
}
