//! Holds the tensors of a call against what the model was captured with, before a backend sees them.
//!
//! Not here: what numbers, text and absent inputs are to a model ([`crate::inputs`]).

use interp::{Bindings, Conflict};
use ir_core::{Arena, SymExpr, SymId};
use plugin_host::Value;
use tensor::Tensor;

use crate::Error;
use crate::inputs::{InputKind, TensorInfo};

/// Checks count, dtype, rank and sizes, and gives each input the memory layout that the model was captured with.
pub(crate) fn conform(
    expected: &[TensorInfo],
    symbols: &Arena<SymId, fx_ir::Symbol>,
    given: &[Tensor],
) -> Result<Vec<Tensor>, Error> {
    conform_knowing(expected, symbols, given, Vec::new())
}

/// As [`conform`], where sizes are known already: what expressions of them are.
pub(crate) fn conform_knowing(
    expected: &[TensorInfo],
    symbols: &Arena<SymId, fx_ir::Symbol>,
    given: &[Tensor],
    known: Vec<(SymExpr, i64)>,
) -> Result<Vec<Tensor>, Error> {
    let values: Vec<Value> = given.iter().cloned().map(Value::Host).collect();
    check(expected, symbols, &values, known)?;
    expected.iter().zip(given).map(|(info, tensor)| laid_out(info, tensor)).collect()
}

/// As [`conform`] on tensors that may lie on the backend's device; of those the backend itself checks the dtype.
pub(crate) fn conform_values(
    expected: &[TensorInfo],
    symbols: &Arena<SymId, fx_ir::Symbol>,
    given: &[Value],
) -> Result<Vec<Value>, Error> {
    check(expected, symbols, given, Vec::new())?;
    let one = |(info, value): (&TensorInfo, &Value)| match value {
        Value::Host(tensor) => laid_out(info, tensor).map(Value::Host),
        device => Ok(device.clone()),
    };
    expected.iter().zip(given).map(one).collect()
}

fn check(
    expected: &[TensorInfo],
    symbols: &Arena<SymId, fx_ir::Symbol>,
    given: &[Value],
    known: Vec<(SymExpr, i64)>,
) -> Result<(), Error> {
    if expected.len() != given.len() {
        let names = expected.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::InputCount { expected: expected.len(), given: given.len(), names });
    }
    let mut owners = vec![0; known.len()];
    let mut equations = known;
    for (index, (info, value)) in expected.iter().zip(given).enumerate() {
        let same_rank = value.sizes().len() == info.meta.rank();
        match value {
            Value::Host(t) if t.dtype() != info.meta.dtype || !same_rank => {
                return Err(misfit(expected, given, index, ""));
            }
            // Complex tensors of a device are real ones with one dimension more.
            Value::Device(_) if !same_rank => continue,
            _ => {}
        }
        equations.extend(info.equations(value));
        owners.resize(equations.len(), index);
    }
    let mut bindings = Bindings::new();
    bindings.solve(&equations).map_err(|(n, conflict)| {
        let index = owners[n];
        let why = match (&expected[index].value, &conflict) {
            (Some(_), Conflict::Differs { expected, .. }) => {
                format!("the inputs before it make it {expected}")
            }
            (Some(value), Conflict::NoSolution { .. }) => format!("it must be `{value}` of an integer"),
            _ => conflict.to_string(),
        };
        misfit(expected, given, index, &why)
    })?;
    for (n, (size, _)) in equations.iter().enumerate() {
        let Some(id) = size.as_sym() else { continue };
        let (Some(symbol), Some(value)) = (symbols.get(id), bindings.get(id)) else { continue };
        if value < symbol.min || symbol.max.is_some_and(|max| value > max) {
            let index = owners[n];
            let why = match &expected[index].value {
                Some(value) => {
                    let (value, min, max) = (value.clone(), symbol.min, symbol.max);
                    format!("the model wants {}", InputKind::Int { value, min, max })
                }
                None => {
                    let max = symbol.max.map_or("unbounded".to_string(), |m| m.to_string());
                    format!("size `{}` is {value}, outside of {} to {max}", symbol.name, symbol.min)
                }
            };
            return Err(misfit(expected, given, index, &why));
        }
    }
    Ok(())
}

/// Compiled code addresses inputs by the strides it was compiled for.
fn laid_out(info: &TensorInfo, tensor: &Tensor) -> Result<Tensor, Error> {
    let copy = info.meta.is_contiguous() && !tensor.is_contiguous();
    Ok(if copy { tensor.contiguous()? } else { tensor.clone() })
}

fn misfit(expected: &[TensorInfo], given: &[Value], index: usize, why: &str) -> Error {
    let (info, value) = (&expected[index], &given[index]);
    let number = match value {
        Value::Host(tensor) if info.value.is_some() => tensor.item(),
        _ => None,
    };
    let problem = match number {
        Some(number) => format!("is {number}, {why}"),
        None => {
            let problem = format!("is {}{:?}, the model wants {}", value.dtype(), value.sizes(), info.meta);
            if why.is_empty() { problem } else { format!("{problem}: {why}") }
        }
    };
    Error::Input { index, name: info.name.clone(), problem }
}
