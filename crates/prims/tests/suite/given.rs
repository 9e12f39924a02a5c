//! Integers that a program is given: what only computes with them reads them as tensors, sizes have their symbols bound.

#![allow(clippy::unwrap_used)] // a failing test may panic

use fx_ir::Graph;

/// The calls of a functional program of `%x` and the integer `%k` in prims, and whether its symbol is still bound by a call.
fn prims(x: &str, body: &str) -> (Vec<String>, bool) {
    let text = format!(
        "fx 1.0\ngraph \"g\" {{\n  symbol s0 \"k\" -100..=100 unbacked\n  symbol s1 \"n\" 0..\n  %x: {x} = input \"x\"\n  \
         %k: i64[] = input \"k\"\n  %i: int(s0) = aten.item.default(%k)\n{body}\n}}\n"
    );
    let graph: Graph = text.parse().unwrap();
    fx_ir::well_formed(&graph).unwrap();
    let out = prims::decompose(&graph).unwrap();
    fx_ir::well_formed(&out).unwrap();
    let calls: Vec<String> = out
        .iter()
        .filter_map(|(_, node)| {
            let (target, _) = node.as_call()?;
            let ty = node.outputs.first().and_then(|v| out.meta(*v)).map_or("int".into(), |m| m.to_string());
            Some(format!("{}: {ty}", target.trim_start_matches("prims.")))
        })
        .collect();
    let bound = out.iter().any(|(_, n)| n.as_call().is_some_and(|(t, _)| t == prims::scalars::ITEM));
    assert_eq!(bound, out.symbols.values().next().unwrap().unbacked);
    (calls, bound)
}

#[test]
fn arithmetic_reads_the_tensor() {
    let (calls, bound) = prims(
        "f32[3]",
        "  %y: f32[3] = aten.mul.Tensor(%x, s0)\n  %z: f32[3] = aten.add.Tensor(%y, 2*s0 + 1, 1)\n  return %z",
    );
    assert!(!bound);
    assert_eq!(
        calls,
        [
            "convert: f32[]",
            "expand: f32[3]",
            "mul: f32[3]",
            "mul: i64[]",
            "add: i64[]",
            "convert: f32[]",
            "expand: f32[3]",
            "add: f32[3]"
        ]
    );
}

/// PyTorch multiplies 16-bit floats by a number of full precision: 257 is not a bfloat16.
#[test]
fn numbers_are_never_rounded_to_16_bits() {
    let (calls, bound) = prims("bf16[3]", "  %y: bf16[3] = aten.mul.Tensor(%x, s0)\n  return %y");
    assert!(!bound);
    assert_eq!(
        calls,
        ["convert: f32[3]", "convert: f32[]", "expand: f32[3]", "mul: f32[3]", "convert: bf16[3]"]
    );
}

#[test]
fn filled_and_compared_tensors_read_it() {
    let (calls, bound) = prims(
        "f32[s1]",
        "  %y: f32[s1] = aten.full.default([s1], s0, f32, none, none, none)\n  \
         %m: bool[s1] = aten.gt.Scalar(%x, s0)\n  return %y\n  return %m",
    );
    assert!(!bound);
    assert_eq!(
        calls,
        ["convert: f32[]", "expand: f32[s1]", "convert: f32[]", "expand: f32[s1]", "gt: bool[s1]"]
    );
}

#[test]
fn sizes_bind_the_symbol() {
    for body in [
        "  %y: f32[s0] = aten.full.default([s0], 1.0, f32, none, none, none)\n  return %y",
        "  %y: f32[3] = aten.mul.Tensor(%x, s0)\n  %z: f32[s0] = aten.narrow.default(%y, 0, 0, s0)\n  return %z",
        "  %y: i64[4] = aten.arange.start(s0, s0 + 4, i64, none, none, none)\n  return %y",
    ] {
        assert!(prims("f32[3]", body).1, "{body}");
    }
}

/// A number that the program computes keeps its call, which checks its range.
#[test]
fn computed_numbers_are_bound() {
    let text = "fx 1.0\ngraph \"g\" {\n  symbol s0 \"u0\" 0..=9 unbacked\n  %x: i64[] = input \"x\"\n  \
                %n: i64[] = aten.neg.default(%x)\n  %i: int(s0) = aten.item.default(%n)\n  \
                %y: i64[] = aten.mul.Tensor(%x, s0)\n  return %y\n}\n";
    let out = prims::decompose(&text.parse::<Graph>().unwrap()).unwrap();
    assert!(out.iter().any(|(_, n)| n.as_call().is_some_and(|(t, _)| t == prims::scalars::ITEM)));
    assert!(out.symbols.values().all(|s| s.unbacked));
}
