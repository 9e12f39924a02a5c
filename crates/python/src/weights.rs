//! Weights that are bound to compiled code, and how a change of them is noticed: by their addresses and by the version
//! counters that torch keeps for tensors written in place.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferroflux::Value;
use ferroflux::foreign::dlpack::Access;
use pyo3::intern;
use pyo3::prelude::*;

use crate::error::{guarded, raised};
use crate::exchange::{address, lend};
use crate::process::without_lock;
use crate::results::Ready;

/// Where a weight lies, and how often it was written.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Stamp {
    address: usize,
    version: i64,
}

impl Stamp {
    /// The stamp of a tensor; `None` where torch counts no versions of it (in inference mode).
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Stamp>> {
        let py = object.py();
        let Ok(version) = object.getattr(intern!(py, "_version")) else { return Ok(None) };
        Ok(Some(Stamp { address: address(object)?, version: version.extract()? }))
    }
}

/// Compiled code with one set of weights.
pub(crate) struct BoundCode {
    pub(crate) ready: Ready,
    state: Mutex<State>,
    /// Held while weights are bound, without Python's lock.
    binding: Mutex<()>,
}

#[derive(Default)]
struct State {
    stamps: Vec<Stamp>,
    /// Aliases of the tensors, which keep the memory.
    _kept: Vec<Py<PyAny>>,
}

/// How a call's weights differ from those that are bound.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Change {
    /// They are the same.
    Same,
    /// The same tensors with other values.
    Values,
    /// Other tensors.
    Tensors,
}

impl BoundCode {
    pub(crate) fn new(ready: Ready) -> Arc<BoundCode> {
        Arc::new(BoundCode { ready, state: Mutex::default(), binding: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares a call's weights with those that are bound.
    pub(crate) fn compare(&self, stamps: &[Stamp]) -> Change {
        let state = self.state();
        if state.stamps == stamps {
            return Change::Same;
        }
        let same = |(a, b): (&Stamp, &Stamp)| a.address == b.address;
        let known = state.stamps.len() == stamps.len() && state.stamps.iter().zip(stamps).all(same);
        if known { Change::Values } else { Change::Tensors }
    }

    /// Binds these weights, of which the code may want some. It waits for calls that run, which may want Python's lock.
    pub(crate) fn bind(
        &self,
        py: Python<'_>,
        weights: &[(&str, Bound<'_, PyAny>)],
        stamps: Vec<Stamp>,
    ) -> PyResult<()> {
        let mut values: Vec<(&str, Value)> = Vec::with_capacity(weights.len());
        let mut kept = Vec::with_capacity(weights.len());
        for (name, object) in weights {
            let alias = object.call_method0(intern!(py, "detach"))?;
            values.push((name, lend(&alias, Access::Read)?));
            kept.push(alias.unbind());
        }
        let bound = without_lock(py, || {
            // The bound tensors and their stamps change together.
            let _one = self.binding.lock().unwrap_or_else(PoisonError::into_inner);
            // Until this succeeds nothing is known to be bound.
            self.state().stamps.clear();
            guarded(|| self.ready.code.bind(&values))?;
            Ok(std::mem::replace(&mut *self.state(), State { stamps, _kept: kept }))
        });
        drop(values);
        // The old aliases are dropped with Python's lock, since that may run Python code.
        drop(bound.map_err(raised)?);
        Ok(())
    }
}
