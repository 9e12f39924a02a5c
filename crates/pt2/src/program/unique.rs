//! What the archive says of the results of `unique`, put right: PyTorch's shape rule for it, which exporting recorded,
//! gives positions and counts the dtype of the input, sizes they do not have where they are not asked for, and keeps a
//! dimension too many where slices of a vector are compared.

use fx_ir::{Arg, Graph, ValueType};
use ir_core::{DType, Scalar, Shape, SymExpr, TensorMeta};

/// Corrects the types of a call's results; calls of other operators stay as they are.
pub(super) fn correct(graph: &Graph, target: &str, args: &[Arg], made: &mut [(&str, ValueType)]) {
    let names = ["aten._unique2.default", "aten.unique_consecutive.default", "aten.unique_dim.default"];
    if !names.contains(&target) {
        return;
    }
    let Some(Arg::Value(input)) = args.first() else { return };
    let Some(input) = graph.meta(*input) else { return };
    let argument =
        |name: &str| prims::schema_of(target).and_then(|s| s.arg_index(name)).and_then(|i| args.get(i));
    let is_set = |name: &str| argument(name).and_then(Arg::as_scalar).is_some_and(Scalar::as_bool);
    let dim = argument("dim").and_then(Arg::as_scalar).map(|d| d.as_i64());
    let dim = dim.map(|d| if d < 0 { d + input.rank().max(1) as i64 } else { d } as usize);
    let Some(runs) = made.first().and_then(|(_, ty)| ty.as_tensor()).and_then(number_of_runs) else { return };
    let none: Shape = std::iter::once(SymExpr::ZERO).collect();
    let one = |size: &SymExpr| -> Shape { std::iter::once(size.clone()).collect() };
    let mut values = input.sizes.clone();
    match dim.and_then(|d| values.get_mut(d)) {
        Some(size) => *size = runs.clone(),
        None => values = one(&runs),
    }
    let inverse = match dim.and_then(|d| input.sizes.get(d)) {
        Some(size) => one(size),
        None => input.sizes.clone(),
    };
    let inverse = if is_set("return_inverse") { inverse } else { none.clone() };
    let counts = if is_set("return_counts") { one(&runs) } else { none };
    let types = [(input.dtype, values), (DType::I64, inverse), (DType::I64, counts)];
    for ((_, ty), (dtype, sizes)) in made.iter_mut().zip(types) {
        *ty = ValueType::Tensor(TensorMeta::contiguous(dtype, sizes));
    }
}

/// The size that only running tells.
fn number_of_runs(values: &TensorMeta) -> Option<SymExpr> {
    values.sizes.iter().find(|size| size.as_const().is_none()).cloned()
}
