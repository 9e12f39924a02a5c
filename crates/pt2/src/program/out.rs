//! `out=` variants as two calls: the operator without `out`, and `copy_` of its results to the operands to write.
//!
//! The tables have no entry of an `out=` variant. Its operator is the one of the same name that takes the arguments
//! left over and gives as many results: for `X_out` the overload `X` before all others. Where an operand's size is not
//! the result's (PyTorch resizes it) the call stays as it is, and a later stage refuses it.

use fx_ir::{Arg, Graph, OriginId, ValueId, ValueType};
use prims::{Op, Schema};

use super::complete;
use crate::error::Result;
use crate::json_path::JsonPath;

/// Overloads that are `out=` variants without saying so: they are named after what they write.
const NAMED: &[&str] = &[
    "a",
    "dim_max",
    "dim_min",
    "eigvals",
    "grad_input",
    "inverse",
    "L",
    "out_",
    "out_mode",
    "out_rcond_tensor",
    "out_tol_tensor",
    "output",
    "OutScalar_Other",
    "OutScalar_Self",
    "OutTensor",
    "Q",
    "result",
    "sign",
    "U",
    "values",
    "X",
];

/// The operator of an `out=` variant and the arguments that are written, by position in `given`.
pub(super) struct OutForm {
    op: &'static Op,
    written: Vec<(usize, ValueId)>,
}

/// What an `out=` variant computes; `None` for any other operator.
pub(super) fn form(
    graph: &Graph,
    target: &str,
    given: &[(&str, Arg)],
    made: &[(&str, ValueType)],
) -> Option<OutForm> {
    let mut parts = target.splitn(3, '.');
    let (namespace, name, overload) = (parts.next()?, parts.next()?, parts.next()?);
    if namespace != "aten" || prims::lookup(target).is_some() {
        return None;
    }
    let base = match overload {
        "out" => "",
        named if NAMED.contains(&named) => "",
        other => other.strip_suffix("_out")?,
    };
    let fits = |op: &&'static Op| {
        op.schema.namespace == "aten" && op.schema.name == name && written(graph, &op.schema, given).is_some()
    };
    let mut candidates: Vec<&'static Op> = prims::all().iter().filter(fits).collect();
    candidates.sort_by_key(|op| op.schema.overload != base);
    let op = *candidates.first()?;
    let written = written(graph, &op.schema, given)?;
    let fits = |((_, v), (_, ty)): (&(usize, ValueId), &(&str, ValueType))| {
        let (operand, result) = (graph.meta(*v), ty.as_tensor());
        operand.zip(result).is_some_and(|(a, b)| a.sizes == b.sizes && a.dtype == b.dtype)
    };
    (written.len() == made.len() && written.iter().zip(made).all(fits)).then_some(OutForm { op, written })
}

/// The arguments that the operator does not take: its results' places. `None` where the others are not its own.
fn written(graph: &Graph, schema: &Schema, given: &[(&str, Arg)]) -> Option<Vec<(usize, ValueId)>> {
    let mut list = Vec::new();
    let mut taken = vec![false; schema.args.len()];
    for (n, (name, arg)) in given.iter().enumerate() {
        let tensor = matches!(arg, Arg::Value(v) if graph.meta(*v).is_some());
        match (schema.arg_index(name), arg) {
            (Some(i), _) => {
                let ty = &schema.args[i].ty;
                if (tensor || !ty.optional) && (ty.base == "Tensor" && !ty.list) != tensor {
                    return None;
                }
                taken[i] = true;
            }
            (None, Arg::Value(v)) if tensor => list.push((n, *v)),
            (None, _) => return None,
        }
    }
    let complete = schema.args.iter().zip(taken).all(|(a, taken)| taken || a.default.is_some());
    (complete && list.len() == schema.returns.len()).then_some(list)
}

/// Appends the two calls; gives the operands as written.
pub(super) fn call(
    out: &mut Graph,
    form: &OutForm,
    mut given: Vec<(&str, Arg)>,
    made: Vec<(&str, ValueType)>,
    origin: OriginId,
    at: &JsonPath<'_>,
) -> Result<Vec<ValueId>> {
    for (n, _) in form.written.iter().rev() {
        given.remove(*n);
    }
    let target = form.op.target.as_str();
    let args = complete::positional(target, given, at)?;
    let types: Vec<_> = made.iter().map(|(name, ty)| (*name, ty.clone())).collect();
    let results = out.call(target, args, types, origin);
    let mut values = Vec::with_capacity(results.len());
    for (((_, operand), result), (name, ty)) in form.written.iter().zip(results).zip(made) {
        let args = vec![(*operand).into(), result.into(), false.into()];
        values.extend(out.call("aten.copy_.default", args, [(name, ty)], origin));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use ir_core::{DType, SymExpr, TensorMeta};

    use super::*;

    fn tensor(sizes: &[i64]) -> ValueType {
        let sizes = sizes.iter().map(|n| SymExpr::from_i64(*n));
        ValueType::Tensor(TensorMeta::contiguous(DType::F32, sizes))
    }

    /// The operator that is found for operands of sizes `[3]`, and which arguments are written.
    fn found(
        target: &str,
        names: &[&str],
        scalar: Option<f64>,
        result: &[i64],
    ) -> Option<(String, Vec<usize>)> {
        let mut graph = Graph::new("g");
        let mut given = Vec::new();
        for name in names {
            let v = graph.placeholder(fx_ir::InputKind::User, *name, name, tensor(&[3]));
            given.push((*name, Arg::from(v)));
        }
        if let Some(x) = scalar {
            given.insert(1, ("other", x.into()));
        }
        let form = form(&graph, target, &given, &[("y", tensor(result))])?;
        Some((form.op.target.clone(), form.written.iter().map(|(n, _)| *n).collect()))
    }

    #[test]
    fn the_operator_is_the_one_that_takes_the_other_arguments() {
        let tensors = ["self", "other", "out"];
        assert_eq!(found("aten.div.out", &tensors, None, &[3]), Some(("aten.div.Tensor".into(), vec![2])));
        assert_eq!(
            found("aten.div.Scalar_out", &["self", "out"], Some(2.0), &[3]),
            Some(("aten.div.Scalar".into(), vec![2]))
        );
        assert_eq!(
            found("aten.relu.out", &["self", "out"], None, &[3]),
            Some(("aten.relu.default".into(), vec![1]))
        );
    }

    #[test]
    fn other_operators_and_resized_results_stay() {
        assert_eq!(found("aten.div.Tensor", &["self", "other"], None, &[3]), None);
        assert_eq!(found("aten.div.out", &["self", "other", "out"], None, &[4]), None);
        assert_eq!(found("aten.no_such_operator.out", &["self", "out"], None, &[3]), None);
    }
}
