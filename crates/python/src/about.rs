//! What this build has: operators, backends, and by what another build is told apart.

use ferroflux::prims_schema;
use pyo3::prelude::*;

use crate::process::without_lock;

/// For each operator, such as `aten.add.Tensor`, whether the operator table has it.
#[pyfunction]
pub(crate) fn known(targets: Vec<String>) -> Vec<bool> {
    targets.iter().map(|target| prims_schema(target).is_some()).collect()
}

/// All backends as JSON: a list of objects with name, devices, modes, options, and the reason where one cannot run.
#[pyfunction]
pub(crate) fn list_backends(py: Python<'_>) -> PyResult<String> {
    let list = without_lock(py, ferroflux::list_backends);
    serde_json::to_string(&list).map_err(|e| crate::error::Error::new_err(e.to_string()))
}

/// A text that is another one for another build of the compiler: keys of caches contain it.
#[pyfunction]
pub(crate) fn build() -> String {
    ferroflux::cache::build().to_owned()
}
