//! The sizes of a call: bound from its inputs, the errors where they do not fit, and the arena's layout at these sizes.

use std::sync::{Arc, PoisonError};

use kernel_ir::runtime::{Mismatch, SizeSource, Sizes};
use plugin_sdk::TensorView;

use super::{ArenaLayout, Compiled, ExecError};

impl Compiled {
    pub(super) fn bind_sizes(&self, inputs: &[TensorView<'_>]) -> Result<Sizes, ExecError> {
        let expected = self.program.inputs.len();
        if inputs.len() != expected {
            return Err(ExecError::Count { what: "inputs", expected, got: inputs.len() });
        }
        for (spec, view) in self.program.inputs.iter().zip(inputs) {
            let rank = self.program.buffers[spec.buf].sizes.len();
            if view.sizes().len() != rank {
                let got = view.sizes().len();
                return Err(ExecError::Rank { name: spec.name.clone(), expected: rank, got });
            }
        }
        let size = |input: usize, dim: usize| inputs.get(input)?.sizes().get(dim).copied();
        let bound = self.binder.sizes(&self.program, size);
        bound.map_err(|(mismatch, sizes)| self.mismatch(mismatch, &sizes, &size))
    }

    /// The error for sizes that do not fit.
    #[cold]
    fn mismatch(
        &self,
        mismatch: Mismatch,
        sizes: &Sizes,
        size: &dyn Fn(usize, usize) -> Option<i64>,
    ) -> ExecError {
        let (Mismatch::Equation(n) | Mismatch::Range(n, _) | Mismatch::Missing(n)) = mismatch else {
            return ExecError::Malformed("a guard is no affair of the executor".into());
        };
        let equation = self.binder.equation(n);
        let SizeSource::Dim(input, dim) = equation.place else {
            return ExecError::Malformed("an input is not known by its value".into());
        };
        let (name, got) = (self.program.inputs[input].name.clone(), size(input, dim).unwrap_or_default());
        match (mismatch, equation.expected(sizes.values())) {
            (Mismatch::Equation(_), Some(expected)) => {
                ExecError::Size { name, dim, got, expected, expr: equation.size.to_string() }
            }
            _ => ExecError::Range { name, problem: self.binder.problem(mismatch, got, sizes.values()) },
        }
    }

    /// The arena's layout at these sizes, from the plan or from the table of layouts that were made before.
    pub(super) fn place(&self, sizes: &Sizes) -> Result<Arc<ArenaLayout>, ExecError> {
        if let Some(fixed) = &self.fixed {
            return Ok(fixed.clone());
        }
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = places.get(sizes) {
            return Ok(place.clone());
        }
        let (offsets, bytes) = self.program.plan.place_over_operands(&self.program, &|id| sizes.get(id))?;
        let place = Arc::new(ArenaLayout { offsets, bytes });
        // A service with ever new sizes must not keep a layout for each.
        if places.len() >= 1024 {
            places.clear();
        }
        places.insert(sizes.clone(), place.clone());
        Ok(place)
    }
}
