//! Binds inputs to placeholders: kinds, dtypes, static sizes, and the size symbols with their ranges.

use fx_ir::{Graph, InputKind, ValueType};
use ir_core::{Scalar, SymExpr, TensorMeta};
use tensor::Tensor;

use crate::{Bindings, Conflict, InterpError, Value};

/// Checks `inputs` against the placeholders of `graph` and binds the size symbols. Returns the values to use (an
/// integer given as a tensor becomes a number).
pub(super) fn bind(
    graph: &Graph,
    inputs: Vec<Value>,
    bindings: &mut Bindings,
) -> Result<Vec<Value>, InterpError> {
    let expected = graph.inputs().count();
    if inputs.len() != expected {
        return Err(InterpError::InputCount { graph: graph.name.clone(), expected, got: inputs.len() });
    }
    let mut equations: Vec<(SymExpr, i64)> = Vec::new();
    // Which input each equation comes from, and which of its dimensions.
    let mut owners: Vec<(&str, usize)> = Vec::new();
    let mut values = Vec::with_capacity(inputs.len());
    for ((v, _, name), value) in graph.inputs().zip(inputs) {
        let before = equations.len();
        values.push(one(name, &graph.values[v].ty, value, &mut equations)?);
        owners.extend(dims(&graph.values[v].ty).map(|dim| (name, dim)).take(equations.len() - before));
    }
    let refused = |(i, conflict): (usize, Conflict)| {
        let ((input, dim), (expr, value)) = (owners[i], &equations[i]);
        let problem = conflict.of_size(dim, expr, *value, &graph.symbols);
        InterpError::Symbol { input: input.into(), problem, conflict }
    };
    bindings.solve(&equations).map_err(refused)?;
    let symbols = graph.symbols.iter().map(|(id, s)| (id, s.name.as_str(), s.min, s.max));
    match bindings.out_of_range(symbols, &equations) {
        Some(found) => Err(refused(found)),
        None => Ok(values),
    }
}

/// The inputs with the seed where the graph has a placeholder for it that they leave out.
pub(super) fn with_seed(graph: &Graph, mut inputs: Vec<Value>, seed: u64) -> Vec<Value> {
    let Some(at) = graph.inputs().position(|(_, kind, _)| kind == InputKind::Seed) else { return inputs };
    // The scalar converts to an `i64` without dimensions, so neither step can fail.
    let Ok(tensor) = Tensor::from_vec(vec![seed as i64], &[]) else { return inputs };
    if inputs.len() + 1 == graph.inputs().count() {
        inputs.insert(at, Value::Tensor(tensor));
    } else if let Some(slot @ Value::None) = inputs.get_mut(at) {
        *slot = Value::Tensor(tensor);
    }
    inputs
}

fn one(
    name: &str,
    ty: &ValueType,
    value: Value,
    equations: &mut Vec<(SymExpr, i64)>,
) -> Result<Value, InterpError> {
    let kind = |expected| InterpError::InputKind { input: name.into(), expected };
    match ty {
        ValueType::Tensor(meta) => {
            let tensor = value.as_tensor().ok_or_else(|| kind("a tensor"))?;
            sizes(name, meta, tensor, equations)?;
            Ok(value)
        }
        ValueType::Int(expr) => {
            let integer = |s: &Scalar| matches!(s, Scalar::Int(_) | Scalar::Bool(_));
            let number = value.as_scalar().filter(integer).ok_or_else(|| kind("an integer"))?;
            equations.push((expr.clone(), number.as_i64()));
            Ok(Value::Scalar(Scalar::Int(number.as_i64())))
        }
        ValueType::Float => {
            let number = value.as_scalar().ok_or_else(|| kind("a float"))?;
            Ok(Value::Scalar(Scalar::Float(number.as_f64())))
        }
        ValueType::Bool => {
            let number = value.as_scalar().ok_or_else(|| kind("a truth value"))?;
            Ok(Value::Scalar(Scalar::Bool(number.as_bool())))
        }
        ValueType::None => Ok(Value::None),
    }
}

fn sizes(
    name: &str,
    meta: &TensorMeta,
    tensor: &Tensor,
    equations: &mut Vec<(SymExpr, i64)>,
) -> Result<(), InterpError> {
    if meta.dtype != tensor.dtype() {
        return Err(InterpError::InputDType {
            input: name.into(),
            got: tensor.dtype(),
            expected: meta.dtype,
        });
    }
    let pairs = || meta.sizes.iter().zip(tensor.sizes());
    let fits = meta.rank() == tensor.rank()
        && pairs().all(|(expr, &size)| expr.as_const().is_none_or(|c| c == size as i64));
    if !fits {
        let expected = meta.sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(InterpError::InputSizes { input: name.into(), got: tensor.sizes().to_vec(), expected });
    }
    let symbolic = pairs().filter(|(expr, _)| expr.as_const().is_none());
    equations.extend(symbolic.map(|(expr, &size)| (expr.clone(), size as i64)));
    Ok(())
}

/// The dimensions that give equations: those with symbolic sizes. A number counts as one.
fn dims(ty: &ValueType) -> impl Iterator<Item = usize> + '_ {
    let symbolic = |meta: &TensorMeta| -> Vec<usize> {
        (0..meta.rank()).filter(|&d| meta.sizes[d].as_const().is_none()).collect()
    };
    ty.as_tensor().map_or_else(|| vec![0], symbolic).into_iter()
}
