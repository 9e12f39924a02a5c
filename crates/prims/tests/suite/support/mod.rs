//! Evaluates small prim graphs by the prims' references: enough to test the table without an executor. Sizes are
//! numbers here.

#![allow(dead_code, reason = "every test file uses a part of it")]

use fx_ir::{Arg, Graph, InputKind, NodeKind, OriginId, Output, OutputKind, ValueId, ValueType};
use ir_core::{DType, Origin, Scalar};
use kernel_ir::{DTypeRule, ScalarOp};
use prims::split_complex::{has_complex, split_complex};
use prims::{Builder, Kind, OpError, RefArg, RefCall, Reference, decompose_call, lookup};
use tensor::{Element, Tensor, with_element};

/// A graph whose placeholders have the metas of tensors.
pub(crate) fn graph_of(tensors: &[Tensor]) -> (Graph, Vec<ValueId>, OriginId) {
    let mut graph = Graph::new("test");
    let origin = graph.add_origin(Origin::default());
    let values = tensors.iter().enumerate().map(|(i, t)| {
        let name = format!("in{i}");
        graph.placeholder(InputKind::User, name.as_str(), &name, ValueType::Tensor(t.meta()))
    });
    let values = values.collect();
    (graph, values, origin)
}

/// Arguments with `Arg::Value(ValueId(n))` meaning the n-th tensor.
pub(crate) fn bound(arg: &Arg, values: &[ValueId]) -> Arg {
    let mut arg = arg.clone();
    arg.for_each_value_mut(&mut |v| *v = values[v.0 as usize]);
    arg
}

/// Decomposes one call and computes its results.
pub(crate) fn run(target: &str, tensors: &[Tensor], args: &[Arg]) -> Result<Vec<Tensor>, OpError> {
    let (mut graph, values, origin) = graph_of(tensors);
    let args: Vec<Arg> = args.iter().map(|a| bound(a, &values)).collect();
    let mut builder = Builder::new(&mut graph, "x", origin);
    let outs = decompose_call(&mut builder, target, args)?;
    evaluate(&graph, &values, tensors, &outs)
}

/// As [`run`], with complex values split into real ones on the way: what backends compute.
pub(crate) fn run_split(target: &str, tensors: &[Tensor], args: &[Arg]) -> Result<Vec<Tensor>, OpError> {
    let (mut graph, values, origin) = graph_of(tensors);
    let args: Vec<Arg> = args.iter().map(|a| bound(a, &values)).collect();
    let outs = decompose_call(&mut Builder::new(&mut graph, "x", origin), target, args)?;
    let complex: Vec<bool> =
        outs.iter().map(|v| graph.meta(*v).expect("results are tensors").dtype.is_complex()).collect();
    graph.outputs = outs.iter().map(|&v| Output { kind: OutputKind::User, arg: v.into() }).collect();
    let real = split_complex(&graph).map_err(|mut errors| errors.remove(0).error)?;
    assert!(!has_complex(&real), "{target} leaves complex values");
    let inputs: Vec<ValueId> = real.inputs().map(|(v, _, _)| v).collect();
    let outs = real.outputs.iter().map(|o| if let Arg::Value(v) = o.arg { v } else { panic!("no value") });
    let outs: Vec<ValueId> = outs.collect();
    let tensors: Vec<Tensor> = tensors.iter().map(|t| t.view_as_real().expect("a view")).collect();
    let results = evaluate(&real, &inputs, &tensors, &outs)?;
    let whole = |(t, complex): (Tensor, bool)| if complex { t.view_as_complex().expect("parts") } else { t };
    Ok(results.into_iter().zip(complex).map(whole).collect())
}

/// The values `outs` of a graph of prims.
fn evaluate(
    graph: &Graph,
    values: &[ValueId],
    tensors: &[Tensor],
    outs: &[ValueId],
) -> Result<Vec<Tensor>, OpError> {
    let mut known: Vec<Option<Tensor>> = vec![None; graph.values.len()];
    for (v, t) in values.iter().zip(tensors) {
        known[v.0 as usize] = Some(t.clone());
    }
    for (_, node) in graph.iter() {
        let NodeKind::Call { target, args } = &node.kind else { continue };
        let results = prim(graph, &node.outputs, target, args, &known)?;
        for (v, t) in node.outputs.iter().zip(results) {
            let meta = graph.meta(*v).expect("results are tensors");
            assert_eq!(meta.dtype, t.dtype(), "{target}");
            assert_eq!(meta.static_sizes().expect("sizes are numbers"), sizes(&t), "{target}");
            known[v.0 as usize] = Some(t);
        }
    }
    Ok(outs.iter().map(|v| known[v.0 as usize].clone().expect("the value is computed")).collect())
}

/// Sizes as `i64`.
pub(crate) fn sizes(t: &Tensor) -> Vec<i64> {
    t.sizes().iter().map(|&s| s as i64).collect()
}

fn prim(
    graph: &Graph,
    outs: &[ValueId],
    target: &str,
    args: &[Arg],
    known: &[Option<Tensor>],
) -> Result<Vec<Tensor>, OpError> {
    let op = lookup(target).ok_or_else(|| OpError::Unknown(target.into()))?;
    let Kind::Prim { reference, .. } = &op.def.kind else { panic!("{target} is left over") };
    let args: Vec<RefArg> = args.iter().map(|a| ref_arg(a, known)).collect();
    let outs: Vec<(DType, Vec<usize>)> = outs
        .iter()
        .map(|v| {
            let meta = graph.meta(*v).expect("results are tensors");
            let sizes = meta.static_sizes().unwrap_or_default();
            (meta.dtype, sizes.iter().map(|&s| s as usize).collect())
        })
        .collect();
    let call = RefCall { op, args: &args, outs: &outs };
    match reference {
        Reference::Scalar(scalar) => Ok(vec![elementwise(*scalar, &call)]),
        Reference::Fn(f) => f(&call),
    }
}

fn ref_arg(arg: &Arg, known: &[Option<Tensor>]) -> RefArg {
    match arg {
        Arg::None => RefArg::None,
        Arg::Value(v) => RefArg::Tensor(known[v.0 as usize].clone().expect("operands come first")),
        Arg::Int(e) => RefArg::Scalar(Scalar::Int(e.as_const().expect("sizes are numbers"))),
        Arg::Scalar(s) => RefArg::Scalar(*s),
        Arg::Str(s) => RefArg::Str(s.clone()),
        Arg::DType(d) => RefArg::DType(*d),
        Arg::List(items) => RefArg::List(items.iter().map(|a| ref_arg(a, known)).collect()),
        _ => RefArg::Other,
    }
}

fn elementwise(op: ScalarOp, call: &RefCall<'_>) -> Tensor {
    let (dtype, sizes) = call.out();
    let skip = usize::from(op.dtype_rule() == DTypeRule::Select);
    let operand =
        call.args[skip..].iter().find_map(|a| if let RefArg::Tensor(t) = a { Some(t.dtype()) } else { None });
    let compute = operand.unwrap_or(dtype).compute();
    let columns: Vec<Vec<Scalar>> = call
        .args
        .iter()
        .map(|a| match a {
            RefArg::Tensor(t) => t.iter().collect(),
            RefArg::Scalar(s) => vec![*s; sizes.iter().product()],
            _ => panic!("an operand is neither a tensor nor a number"),
        })
        .collect();
    let count = sizes.iter().product();
    let at = |i: usize| op.eval(compute, &columns.iter().map(|c| c[i]).collect::<Vec<_>>());
    with_element!(dtype, T => {
        let values: Vec<T> = (0..count).map(|i| T::from_scalar(at(i))).collect();
        Tensor::from_vec(values, sizes).expect("a test fits memory")
    })
}
