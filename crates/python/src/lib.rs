//! The native half of the Python package `ferroflux` (`python/`): graphs as text in, callables on tensors out.
//!
//! - [`callable`]: a compiled graph, called with torch's tensors without copies and without Python's lock.
//! - [`archive`]: models of `torch.export`, called with arrays of any framework.
//! - [`process`]: threads after a fork. [`weights`]: weights that are bound to code.
//! - [`results`]: torch's memory for results. [`allocator`]: its memory for everything else on a device. [`exchange`]: tensors between Python and compiled code.
//! - [`error`]: errors as Python's exceptions.
//! - [`about`]: what is there: backends, operators, this build.
//!
//! Not here: the conversion of PyTorch's graphs, and anything that knows TorchDynamo; that is Python.

mod about;
mod allocator;
mod archive;
mod callable;
mod error;
mod exchange;
mod process;
mod results;
mod weights;

use pyo3::prelude::*;

#[pymodule]
#[pyo3(name = "_native")]
fn ferroflux_native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<callable::Callable>()?;
    m.add_class::<archive::Archive>()?;
    m.add_class::<archive::Array>()?;
    m.add_function(wrap_pyfunction!(about::known, m)?)?;
    m.add_function(wrap_pyfunction!(about::list_backends, m)?)?;
    m.add_function(wrap_pyfunction!(about::build, m)?)?;
    m.add_function(wrap_pyfunction!(process::before_fork, m)?)?;
    m.add_function(wrap_pyfunction!(process::after_fork, m)?)?;
    m.add_function(wrap_pyfunction!(process::at_exit, m)?)?;
    error::register(m)
}
