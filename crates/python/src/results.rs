//! Memory for the results of calls: tensors that torch makes, so that its allocator has them and they behave like any other
//! tensor.

use ferroflux::foreign::dlpack::Access;
use ferroflux::foreign::{Callable as Code, ResultLayout};
use ferroflux::{Error as Cause, Value};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use smallvec::SmallVec;

use crate::error::raised;
use crate::exchange::lend;

/// Compiled code and how the memory for its results is made.
pub(crate) struct Ready {
    pub(crate) code: Code,
    /// torch's dtypes of the results that have torch's memory.
    dtypes: Vec<Py<PyAny>>,
    /// Their sizes and strides, where these are the same in every call.
    fixed: Option<Vec<(Py<PyTuple>, Py<PyTuple>)>>,
    /// A function of sizes, strides and dtype, for the host and for the current device.
    make: Option<Py<PyAny>>,
    /// torch's name of the device's type.
    device: &'static str,
}

/// The memory of one call, as values for compiled code and as tensors for its caller.
#[derive(Default)]
pub(crate) struct Made<'py> {
    pub(crate) values: SmallVec<[Value; 4]>,
    pub(crate) tensors: SmallVec<[Bound<'py, PyAny>; 4]>,
}

impl Ready {
    /// `on_device`: whether results are on a device of torch's type `cuda`, which is that of AMD's devices too.
    pub(crate) fn new(py: Python<'_>, code: Code, on_device: bool) -> PyResult<Ready> {
        let lent = code.lent_results();
        let device = if on_device { "cuda" } else { "cpu" };
        let (mut dtypes, mut fixed, mut make) = (Vec::with_capacity(lent.len()), None, None);
        if !lent.is_empty() {
            let torch = py.import("torch")?;
            for result in lent {
                dtypes.push(torch.getattr(result.dtype.torch_name())?.unbind());
            }
            // What TorchInductor makes its results by; without the checks of the public function.
            let guards = py.import("torch._C._dynamo.guards");
            make = guards.and_then(|g| g.getattr(format!("_empty_strided_{device}"))).ok().map(Bound::unbind);
            if code.has_fixed_results() {
                let layouts = code.result_layouts(&[]).map_err(raised)?;
                fixed = Some(layouts.iter().map(|l| tuples(py, l)).collect::<PyResult<_>>()?);
            }
        }
        Ok(Ready { code, dtypes, fixed, make, device })
    }

    /// Adds the memory for a call with these inputs, on the device of this number.
    pub(crate) fn results<'py>(
        &self,
        py: Python<'py>,
        inputs: &[Value],
        ordinal: i32,
        made: &mut Made<'py>,
    ) -> PyResult<()> {
        if self.dtypes.is_empty() {
            return Ok(());
        }
        let make = self.maker(py, ordinal)?;
        let mut one = |sizes: &Bound<'py, PyTuple>, strides: &Bound<'py, PyTuple>, dtype: &Py<PyAny>| {
            let tensor = match make {
                Some(make) => make.bind(py).call1((sizes, strides, dtype))?,
                None => self.plain(py, (sizes, strides), dtype, ordinal)?,
            };
            made.values.push(lend(&tensor, Access::Write)?);
            made.tensors.push(tensor);
            Ok::<_, PyErr>(())
        };
        if let Some(fixed) = &self.fixed {
            for ((sizes, strides), dtype) in fixed.iter().zip(&self.dtypes) {
                one(sizes.bind(py), strides.bind(py), dtype)?;
            }
            return Ok(());
        }
        for (layout, dtype) in self.code.result_layouts(inputs).map_err(raised)?.iter().zip(&self.dtypes) {
            let (sizes, strides) = tuples(py, layout)?;
            one(sizes.bind(py), strides.bind(py), dtype)?;
        }
        Ok(())
    }

    /// The short way, where it makes tensors on the wanted device.
    fn maker(&self, py: Python<'_>, ordinal: i32) -> PyResult<Option<&Py<PyAny>>> {
        if self.device == "cpu" || self.make.is_none() {
            return Ok(self.make.as_ref());
        }
        let current = py.import(intern!(py, "torch._C"))?.call_method0(intern!(py, "_cuda_getDevice"))?;
        Ok(self.make.as_ref().filter(|_| current.extract::<i32>().is_ok_and(|n| n == ordinal)))
    }

    fn plain<'py>(
        &self,
        py: Python<'py>,
        layout: (&Bound<'py, PyTuple>, &Bound<'py, PyTuple>),
        dtype: &Py<PyAny>,
        ordinal: i32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let keywords = PyDict::new(py);
        keywords.set_item(intern!(py, "dtype"), dtype)?;
        let device =
            if self.device == "cpu" { "cpu".to_owned() } else { format!("{}:{ordinal}", self.device) };
        keywords.set_item(intern!(py, "device"), device)?;
        py.import("torch")?.call_method(intern!(py, "empty_strided"), layout, Some(&keywords))
    }
}

fn tuples(py: Python<'_>, layout: &ResultLayout) -> PyResult<(Py<PyTuple>, Py<PyTuple>)> {
    let tuple = |list: &[i64]| PyTuple::new(py, list).map(Bound::unbind);
    Ok((tuple(&layout.sizes)?, tuple(&layout.strides)?))
}

/// The results of a call in order: these tensors, which are those in torch's memory, and what the code returns besides them.
pub(crate) fn ordered<'py>(
    py: Python<'py>,
    found: Vec<Option<Value>>,
    tensors: SmallVec<[Bound<'py, PyAny>; 4]>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let mut tensors = tensors.into_iter();
    let one = |value: Option<Value>| match value {
        Some(value) => crate::exchange::give(py, value).map(|t| t.into_bound(py)),
        None => tensors.next().ok_or_else(|| raised(Cause::Internal("a result without memory".into()))),
    };
    found.into_iter().map(one).collect()
}
