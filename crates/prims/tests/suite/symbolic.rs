//! Operators on tensors of symbolic sizes: they decompose, and the results' sizes are expressions of the inputs'.

use fx_ir::{Arg, Graph, InputKind, Symbol, ValueId, ValueType};
use ir_core::{DType, Origin, SymExpr, TensorMeta};
use prims::{Builder, decompose_call};

fn symbol(name: &str) -> Symbol {
    Symbol { name: name.into(), min: 2, max: None, hint: None, unbacked: false }
}

/// Decomposes a call on `f32[s0, s1]` tensors; gives the results' types as text.
fn types(target: &str, operands: usize, rest: &[Arg]) -> String {
    let mut graph = Graph::new("test");
    let origin = graph.add_origin(Origin::default());
    let sizes: Vec<SymExpr> = ["s0", "s1"].map(|name| SymExpr::sym(graph.add_symbol(symbol(name)))).into();
    let mut args: Vec<Arg> = Vec::new();
    for i in 0..operands {
        let ty = ValueType::Tensor(TensorMeta::contiguous(DType::F32, sizes.iter().cloned()));
        let name = format!("in{i}");
        args.push(graph.placeholder(InputKind::User, name.as_str(), &name, ty).into());
    }
    args.extend(rest.iter().cloned());
    let mut builder = Builder::new(&mut graph, "x", origin);
    let outs = decompose_call(&mut builder, target, args).unwrap_or_else(|e| panic!("{target}: {e}"));
    let ty = |v: &ValueId| graph.meta(*v).expect("results are tensors").to_string();
    outs.iter().map(ty).collect::<Vec<_>>().join(" ")
}

#[test]
fn sizes_stay_symbolic() {
    let keep: Arg = true.into();
    let dim: Arg = [-1i64].as_slice().into();
    for (target, operands, rest, expected) in [
        ("aten.add.Tensor", 2, vec![], "f32[s0, s1]"),
        ("aten.gelu.default", 1, vec![], "f32[s0, s1]"),
        ("aten.mean.dim", 1, vec![dim.clone(), keep.clone()], "f32[s0, 1]"),
        ("aten.mean.default", 1, vec![], "f32[]"),
        ("aten.var.correction", 1, vec![dim.clone()], "f32[s0]"),
        ("aten.std_mean.correction", 1, vec![], "f32[] f32[]"),
        ("aten.linalg_vector_norm.default", 1, vec![2i64.into(), dim.clone(), keep.clone()], "f32[s0, 1]"),
        ("aten.argmax.default", 1, vec![], "i64[]"),
        ("aten.max.dim", 1, vec![0i64.into()], "f32[s1] i64[s1]"),
        ("aten.cumsum.default", 1, vec![1i64.into()], "f32[s0, s1]"),
        ("aten.cummax.default", 1, vec![1i64.into()], "f32[s0, s1] i64[s0, s1]"),
        ("aten.glu.default", 1, vec![], "f32[s0, s1 // 2]"),
        ("aten.tril.default", 1, vec![], "f32[s0, s1]"),
        ("aten.zeros_like.default", 1, vec![], "f32[s0, s1]"),
        ("aten.mse_loss.default", 2, vec![], "f32[]"),
        ("aten.logsumexp.default", 1, vec![dim.clone()], "f32[s0]"),
        ("aten.cosine_similarity.default", 2, vec![], "f32[s0]"),
        ("aten.cdist.default", 2, vec![], "f32[s0, s0]"),
        ("aten.median.dim", 1, vec![1i64.into()], "f32[s0] i64[s0]"),
        ("aten.topk.default", 1, vec![3i64.into()], "f32[s0, 3] i64[s0, 3]"),
        ("aten.isin.Tensor_Tensor", 2, vec![], "bool[s0, s1]"),
    ] {
        assert_eq!(types(target, operands, &rest), expected, "{target}");
    }
}

#[test]
fn ranges_of_symbolic_length() {
    let mut graph = Graph::new("test");
    let origin = graph.add_origin(Origin::default());
    let s0 = SymExpr::sym(graph.add_symbol(symbol("s0")));
    let mut builder = Builder::new(&mut graph, "x", origin);
    let out = decompose_call(&mut builder, "aten.arange.start", vec![3i64.into(), (s0.clone() + 3).into()]);
    let v = out.expect("a range of symbolic length")[0];
    assert_eq!(graph.meta(v).expect("a tensor").to_string(), "i64[s0]");
}
