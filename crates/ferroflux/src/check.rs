//! Holds the inputs of a call against what the model was captured with, before a backend sees them.

use fx_ir::SymbolBounds;
use interp::{Bindings, Conflict};
use ir_core::{Arena, SymExpr, SymId};
use tensor::Tensor;

use crate::{Error, InputInfo};

/// Checks count, dtype, rank and sizes, and gives each input the memory layout that the model was captured with.
pub(crate) fn conform(
    expected: &[InputInfo],
    symbols: &Arena<SymId, fx_ir::Symbol>,
    given: &[Tensor],
) -> Result<Vec<Tensor>, Error> {
    conform_knowing(expected, symbols, given, Vec::new())
}

/// As [`conform`], where sizes are known already: what expressions of them are.
pub(crate) fn conform_knowing(
    expected: &[InputInfo],
    symbols: &Arena<SymId, fx_ir::Symbol>,
    given: &[Tensor],
    known: Vec<(SymExpr, i64)>,
) -> Result<Vec<Tensor>, Error> {
    if expected.len() != given.len() {
        let names = expected.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::InputCount { expected: expected.len(), given: given.len(), names });
    }
    let first = known.len();
    let mut owners = vec![0; first];
    let mut equations = known;
    let mut inputs = Vec::with_capacity(given.len());
    for (index, (info, tensor)) in expected.iter().zip(given).enumerate() {
        if tensor.dtype() != info.meta.dtype || tensor.rank() != info.meta.rank() {
            return Err(misfit(expected, given, index, ""));
        }
        equations.extend(info.meta.sizes.iter().cloned().zip(tensor.sizes().iter().map(|&s| s as i64)));
        owners.resize(equations.len(), index);
        // Compiled code addresses inputs by the strides it was compiled for.
        let copy = info.meta.is_contiguous() && !tensor.is_contiguous();
        inputs.push(if copy { tensor.contiguous()? } else { tensor.clone() });
    }
    let mut bindings = Bindings::new();
    // Speaks of what the caller gave: a dimension of an input, not the symbol behind it.
    let refused = |(n, conflict): (usize, Conflict)| {
        let (size, value) = &equations[n];
        let dim = owners[first..n].iter().filter(|owner| **owner == owners[n]).count();
        let why = match n < first {
            true => conflict.to_string(),
            false => conflict.of_size(dim, size, *value, &SymbolBounds(symbols)),
        };
        misfit(expected, given, owners[n], &why)
    };
    bindings.solve(&equations).map_err(refused)?;
    match bindings.out_of_range(symbols.iter().map(|(id, s)| (id, s.name.as_str(), s.min, s.max)), &equations)
    {
        Some(found) => Err(refused(found)),
        None => Ok(inputs),
    }
}

fn misfit(expected: &[InputInfo], given: &[Tensor], index: usize, why: &str) -> Error {
    let (info, tensor) = (&expected[index], &given[index]);
    let mut problem = format!("is {}{:?}, the model wants {}", tensor.dtype(), tensor.sizes(), info.meta);
    if !why.is_empty() {
        problem = format!("{problem}: {why}");
    }
    Error::Input { index, name: info.name.clone(), problem }
}
