//! Tensors at the boundary of compiled code whose numbers kernels do not have: `[…]` of `c64` is `[…, 2]` of `f32` over the same
//! memory (see `prims::split_complex`), and a tensor of 8-bit floats or of unsigned integers above 8 bits is one of the dtype that
//! carries its bits (`prims::carry`). Backends that take graphs have these numbers and do not need this.

use fx_ir::{Arg, Graph};
use ir_core::DType;
use plugin_host::Value;
use tensor::Tensor;

use crate::Error;

/// The dtypes of a program's results for its caller.
pub(crate) struct Boundary {
    outputs: Vec<Option<DType>>,
}

impl Boundary {
    /// The boundary of a functional graph: one entry for each output that is a value.
    pub(crate) fn of(functional: &Graph) -> Boundary {
        let shown = |o: &fx_ir::Output| match o.arg {
            Arg::Value(v) => Some(functional.meta(v).map(|m| m.dtype).filter(|d| is_foreign(*d))),
            _ => None,
        };
        Boundary { outputs: functional.outputs.iter().filter_map(shown).collect() }
    }

    /// From the list of dtypes.
    pub(crate) fn known(outputs: Vec<Option<DType>>) -> Boundary {
        Boundary { outputs }
    }

    /// For each result its dtype where kernels have another.
    pub(crate) fn all(&self) -> &[Option<DType>] {
        &self.outputs
    }

    /// A value in the form that compiled code takes; those on a device have it already, because compiled code created
    /// them.
    pub(crate) fn inner_value(value: &Value) -> Result<Value, Error> {
        match value {
            Value::Host(t) => Ok(Value::Host(inner(t)?)),
            Value::Device(_) => Ok(value.clone()),
        }
    }

    /// Output `n` in the form that the program's caller knows.
    pub(crate) fn outer(&self, n: usize, tensor: Tensor) -> Result<Tensor, Error> {
        match self.outputs.get(n) {
            Some(&Some(dtype)) => outer(tensor, dtype),
            _ => Ok(tensor),
        }
    }
}

/// Whether kernels have values of this dtype in another form alone.
pub(crate) fn is_foreign(dtype: DType) -> bool {
    dtype.is_complex() || dtype.is_carried()
}

/// A tensor in the form that kernels take.
pub(crate) fn inner(tensor: &Tensor) -> Result<Tensor, Error> {
    match tensor.dtype() {
        dtype if dtype.is_carried() => Ok(tensor.view_bits(dtype.carrier())?),
        _ => Ok(tensor.view_as_real()?),
    }
}

/// A tensor in the form of the program's caller, in which it has this dtype.
pub(crate) fn outer(tensor: Tensor, dtype: DType) -> Result<Tensor, Error> {
    if tensor.dtype() == dtype || !is_foreign(dtype) {
        return Ok(tensor);
    }
    Ok(if dtype.is_complex() { tensor.view_as_complex()? } else { tensor.view_bits(dtype)? })
}
