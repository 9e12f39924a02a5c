//! Complex tensors at the boundary of compiled code, which takes and returns real ones: `[…]` of `c64` is `[…, 2]` of `f32`
//! over the same memory (see `prims::split_complex`). Backends that take graphs support complex numbers and do not need
//! this.

use fx_ir::{Arg, Graph};
use plugin_host::Value;

use crate::Error;

/// Which of a program's results are complex.
pub(crate) struct ComplexBoundary {
    outputs: Vec<bool>,
}

impl ComplexBoundary {
    /// The boundary of a functional graph: one entry for each output that is a value.
    pub(crate) fn of(functional: &Graph) -> ComplexBoundary {
        let complex = |o: &fx_ir::Output| match o.arg {
            Arg::Value(v) => Some(functional.meta(v).is_some_and(|m| m.dtype.is_complex())),
            _ => None,
        };
        ComplexBoundary { outputs: functional.outputs.iter().filter_map(complex).collect() }
    }

    /// From the list of complex results.
    pub(crate) fn known(outputs: Vec<bool>) -> ComplexBoundary {
        ComplexBoundary { outputs }
    }

    /// For each result whether it is complex.
    pub(crate) fn all(&self) -> &[bool] {
        &self.outputs
    }

    /// A value in the form that compiled code takes; those on a device are real already, because compiled code created
    /// them.
    pub(crate) fn real_value(value: &Value) -> Result<Value, Error> {
        match value {
            Value::Host(t) => Ok(Value::Host(t.view_as_real()?)),
            Value::Device(_) => Ok(value.clone()),
        }
    }

    /// Whether output `n` is complex for the program's caller.
    pub(crate) fn is_complex(&self, n: usize) -> bool {
        self.outputs.get(n).copied().unwrap_or(false)
    }
}
