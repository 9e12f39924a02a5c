//! Small archives of PyTorch 2.11, each for one part of the format. `tests/data/pt2/make.py` writes them.

#![allow(clippy::unwrap_used, reason = "a test may")]

use crate::common::{self, entries, golden, problems_of, write_zip};
use fx_ir::{Arg, InputKind, NodeKind, OutputKind, ValueType};
use ir_core::{DType, Scalar};
use pt2::{Archive, Dialect, ExportedProgram, Pt2Error, SafetensorsSource, TreeSpec};
use tensor::Tensor;

fn load(name: &str) -> ExportedProgram {
    let program = ExportedProgram::load(golden(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(problems_of(&program), Vec::<String>::new(), "{name}");
    program
}

/// Targets of the calls in order.
fn calls(graph: &fx_ir::Graph) -> Vec<&str> {
    graph.iter().filter_map(|(_, node)| node.as_call().map(|(target, _)| target)).collect()
}

#[test]
fn weights_are_mapped_shared_and_strided() {
    let program = load("weights.pt2");
    let tensor = |name: &str| program.weights.get(name).unwrap().tensor.clone().unwrap();
    let (e, o) = (tensor("e.weight"), tensor("o.weight"));
    assert!(e.storage().ptr_eq(o.storage()) && e.storage().is_mapped(), "tied weights share one payload");
    let view = tensor("view");
    assert_eq!((view.sizes(), view.strides(), view.offset()), (&[5, 2][..], &[1, 12][..], 1));
    assert_eq!(
        view.iter().collect::<Vec<_>>(),
        [1, 13, 2, 14, 3, 15, 4, 16, 5, 17].map(|x| Scalar::Float(x as f64))
    );
    assert_eq!(tensor("empty").sizes(), [0, 3]);
    assert_eq!(tensor("low").dtype(), DType::BF16);
    assert_eq!(tensor("constant").iter().collect::<Vec<_>>(), [Scalar::Float(1.0), Scalar::Float(2.0)]);
    let kind = |name: &str| program.weights.get(name).unwrap().kind;
    assert_eq!(kind("count"), InputKind::Buffer { persistent: false });
    assert_eq!(kind("big"), InputKind::Buffer { persistent: true });
    assert_eq!(kind("constant"), InputKind::Constant);
    assert_eq!(program.weights.missing().count(), 0);
    assert_eq!(
        program.call.outputs,
        Some(TreeSpec::Dict(vec![("y".into(), TreeSpec::Leaf), ("n".into(), TreeSpec::Leaf)]))
    );
    let infinite = program
        .graph
        .iter()
        .filter_map(|(_, n)| n.as_call())
        .any(|(_, args)| args.contains(&Arg::Scalar(Scalar::Float(f64::INFINITY))));
    assert!(infinite, "`\"Infinity\"` is read as a float");
}

#[test]
fn modes_become_casts_and_detach() {
    let program = load("modes.pt2");
    assert_eq!(
        calls(&program.graph),
        [
            "aten.to.dtype",
            "aten.to.dtype",
            "aten.to.dtype",
            "aten.linear.default",
            // `einsum` gave bfloat16 of float32, through its products.
            "aten.to.dtype",
            "aten.to.dtype",
            "aten.einsum.default",
            // `prod` runs in float32.
            "aten.to.dtype",
            "aten.prod.default",
            "aten.mul.Tensor",
            "aten.detach.default",
            "aten.to.dtype",
            "aten.add.Tensor"
        ]
    );
    let linear =
        program.graph.iter().find(|(_, n)| n.as_call().is_some_and(|(t, _)| t.contains("linear"))).unwrap();
    linear.1.for_each_use(&mut |v| assert_eq!(program.graph.meta(v).unwrap().dtype, DType::BF16));
    assert_eq!(program.graph.origin(linear.0).module, "l");
    assert_eq!(program.dialect, Dialect::Training);
}

#[test]
fn regions_of_another_device_are_recorded() {
    let program = load("regions.pt2");
    let regions: Vec<(&str, String)> = program
        .graph
        .iter()
        .filter_map(|(id, node)| Some((node.as_call()?.0, program.graph.origin(id).precisions.to_string())))
        .collect();
    let expected = [
        ("aten.linear.default", "cuda bf16"),
        ("aten.relu.default", "cuda bf16"),
        ("aten.to.dtype", "cuda full"),
        ("aten.softmax.int", "cuda full"),
        ("aten.linear.default", ""),
    ];
    assert_eq!(regions, expected.map(|(target, region)| (target, region.to_owned())));
}

#[test]
fn sizes_are_expressions() {
    let program = load("sizes.pt2");
    let symbols: Vec<_> =
        program.graph.symbols.values().map(|s| (s.name.as_str(), s.min, s.max, s.hint)).collect();
    // A lower end of 2 is what exporting takes for granted: PyTorch admits 0 and 1 in a call.
    assert_eq!(
        symbols,
        [("s77", 4, Some(100), Some(6)), ("s27", 3, None, Some(8)), ("s60", 0, Some(50), Some(5))]
    );
    let shape = |output: usize| match &program.graph.outputs[output].arg {
        Arg::Value(v) => program.graph.meta(*v).unwrap().to_string(),
        other => format!("{other:?}"),
    };
    assert_eq!(shape(0), "f32[s0*s1]");
    assert_eq!(shape(1), "i64[max(s0, 2*s2)]");
    assert_eq!(shape(3), "f32[s2, 2, 4]");
    assert_eq!(shape(5), "f32[(s0 + 1) // 3, s1]");
    assert_eq!(shape(6), "Int(2*s0 + 1)");
    // Integers are folded into their users; only the float product is a value.
    let symbolic: Vec<_> = calls(&program.graph).into_iter().filter(|t| !t.starts_with("aten.")).collect();
    assert_eq!(symbolic, ["torch.sym_float", "_operator.mul"]);
}

#[test]
fn assertions_narrow_what_the_data_gives() {
    let program = load("items.pt2");
    let u0 = program.graph.symbols.values().find(|s| s.name == "u0").unwrap();
    assert!(u0.unbacked && u0.min == 2 && u0.max == Some(10), "{u0:?}");
    let items: Vec<_> =
        program.graph.values.values().filter(|v| v.name.starts_with("item")).map(|v| &v.ty).collect();
    assert!(matches!(items[..], [ValueType::Int(_), ValueType::Float]), "{items:?}");
    assert!(!calls(&program.graph).iter().any(|t| t.contains("assert") || t.starts_with("_operator")));
}

#[test]
fn bodies_become_subgraphs() {
    let program = load("loops.pt2");
    let names: Vec<_> = program.graph.subgraphs.values().map(|g| g.name.as_str()).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    let cond = program
        .graph
        .iter()
        .find(|(_, n)| n.as_call().is_some_and(|(t, _)| t == "higher_order.cond"))
        .unwrap();
    let (_, args) = cond.1.as_call().unwrap();
    assert!(matches!(args, [Arg::Value(_), Arg::Graph(_), Arg::Graph(_), Arg::List(_)]), "{args:?}");
    assert_eq!(calls(&program.graph.subgraphs[ir_core::EntityId::from_index(2)]), ["aten.sin.default"]);
}

#[test]
fn nested_and_constant_arguments_keep_their_names() {
    let program = load("nested.pt2");
    let paths: Vec<_> = program.inputs.iter().map(|i| (i.path.as_str(), i.constant.clone())).collect();
    assert_eq!(
        paths,
        [
            ("x", None),
            ("d['a']", None),
            ("d['b'][0]", None),
            ("d['b'][1]", Some(Arg::int(3))),
            ("flag", Some(true.into())),
            ("name", Some("q".into())),
            ("none", Some(Arg::None)),
        ]
    );
    assert_eq!(calls(&program.graph), ["aten.mul_.Tensor", "aten.add.Tensor"]);
    let aten = load("nested_aten.pt2");
    assert_eq!(aten.dialect, Dialect::Aten);
    assert_eq!(aten.graph.outputs[0].kind, OutputKind::InputMutation("x".into()));
}

#[test]
fn numbers_are_inputs_with_their_ranges() {
    let types = |name: &str| -> Vec<String> {
        let program = load(name);
        let text = program.graph.to_string();
        let inputs = program.inputs.iter().map(|i| match (i.value, &i.constant) {
            (Some(v), None) => {
                let name = &program.graph.values[v].name;
                let line = text.lines().find(|l| l.trim_start().starts_with(&format!("%{name}:"))).unwrap();
                line.trim().to_owned()
            }
            (None, Some(constant)) => format!("{} {constant:?}", i.path),
            other => panic!("{}: {other:?}", i.path),
        });
        let symbols = program.graph.symbols.values().map(|s| (s.name.as_str(), s.min, s.max));
        symbols.map(|s| format!("{s:?}")).chain(inputs).collect()
    };
    // Exporting writes 0 as the lower end for every integer, but PyTorch takes negative ones where they are no sizes.
    let any = i64::MIN;
    assert_eq!(
        types("number.pt2"),
        [
            "(\"s77\", 0, None)".to_owned(),
            format!("(\"s16\", {any}, None)"),
            "%x: f32[s0, 4] = input \"x\"".into(),
            "%k: int(s1) = input \"k\"".into(),
        ]
    );
    assert_eq!(
        types("number_sizes.pt2"),
        [
            "(\"s16\", 0, Some(8))",
            "(\"s60\", 1, None)",
            "%x: f32[8, 4] = input \"x\"",
            "%k: int(s0) = input \"k\"",
            "%j: int(s1) = input \"j\"",
        ]
    );
    assert_eq!(
        types("constants.pt2")[2..],
        [
            "%x: f32[s0, 4] = input \"x\"",
            "n Int(3)",
            "%k: int(s1) = input \"k\"",
            "scale Scalar(Float(2.5))",
            "flag Scalar(Bool(true))",
            "mode Str(\"sine\")",
            "mask None",
        ]
    );
}

#[test]
fn a_loss_has_its_gradients() {
    let program = load("loss.pt2");
    let kinds: Vec<_> = program.graph.outputs.iter().map(|o| o.kind.clone()).collect();
    assert_eq!(
        kinds,
        [
            OutputKind::Loss,
            OutputKind::ParameterGradient("l.weight".into()),
            OutputKind::ParameterGradient("l.bias".into())
        ]
    );
}

#[test]
fn one_of_several_models_is_named() {
    let archive = Archive::open(golden("two.pt2")).unwrap();
    assert_eq!(archive.model_names(), ["a", "b"]);
    let Err(Pt2Error::Model { available, .. }) = archive.program(None) else { panic!("a choice was made") };
    assert_eq!(available, ["a", "b"]);
    assert_eq!(archive.program(Some("b")).unwrap().inputs.len(), 7);
    assert_eq!(archive.program(Some("a")).unwrap().weights.missing().count(), 0);
}

#[test]
fn defaults_are_completed() {
    let program = load("sizes.pt2");
    let pool = program.graph.iter().filter_map(|(_, n)| n.as_call()).find(|(t, _)| t.contains("max_pool2d"));
    if let Some(schema) = prims::schema_of("aten.max_pool2d.default") {
        let (_, args) = pool.unwrap();
        assert_eq!(args.len(), schema.args.len());
        assert_eq!(args[3], Arg::List(vec![0.into(), 0.into()]), "padding");
    }
    assert!(
        program.graph.iter().all(|(_, n)| !matches!(&n.kind, NodeKind::Call { args, .. } if args.is_empty()))
    );
}

#[test]
fn missing_weights_are_listed_and_filled() {
    let bytes = common::rezip(&std::fs::read(golden("weights.pt2")).unwrap(), |name, bytes| {
        (!name.contains("data/weights/weight_")).then_some(bytes)
    });
    let mut program = Archive::from_bytes(bytes).unwrap().program(None).unwrap();
    let missing: Vec<_> = program.weights.missing().map(ToString::to_string).collect();
    assert!(missing.contains(&"e.weight: f32[10, 4]".to_owned()), "{missing:?}");
    let mut file = tensor::safetensors::SafetensorsFile::default();
    file.tensors.insert("weight".into(), Tensor::zeros(DType::F32, &[10, 4]).unwrap());
    let left = program.weights.fill(&SafetensorsSource { file: &file, prefix: "e." }).unwrap();
    assert_eq!(left, missing.len() - 1);
    let formula = |w: &pt2::Weight| Tensor::zeros(w.dtype, &w.sizes).map(Some).map_err(|e| e.to_string());
    assert_eq!(program.weights.fill(&formula).unwrap(), 0);
    let emptied = common::rezip(&std::fs::read(golden("weights.pt2")).unwrap(), |name, bytes| {
        Some(if name.contains("data/weights/weight_") { Vec::new() } else { bytes })
    });
    let fake = Archive::from_bytes(emptied).unwrap().program(None).unwrap();
    assert_eq!(fake.weights.missing().count(), missing.len(), "payloads of fake tensors are missing too");
    assert!(fake.weights.get("empty").unwrap().tensor.is_some());
    let wrong = Tensor::zeros(DType::F32, &[4, 10]).unwrap();
    assert!(matches!(program.weights.set("e.weight", wrong), Err(Pt2Error::Weight { .. })));
}

/// PyTorch writes records of zip64 between the directory and its end record, 76 bytes in all; an entry with a name of 30
/// bytes has a record as long, and the second one is none the less not the first.
#[test]
fn records_of_zip64_behind_the_directory_shift_nothing() {
    let archive = std::fs::read(golden("nested.pt2")).unwrap();
    let mut entries = entries(&archive);
    entries.sort_by_key(|(name, _)| name.len());
    let rest = entries[0].0.split_once('/').unwrap().1.len();
    let root = "m".repeat(30 - 1 - rest);
    for (name, _) in &mut entries {
        *name = format!("{root}/{}", name.split_once('/').unwrap().1);
    }
    let plain = write_zip(entries, zip::CompressionMethod::Stored);
    let end = plain.windows(4).rposition(|w| w == b"PK\x05\x06").unwrap();
    let number = |at: usize, bytes: usize| -> u64 {
        plain[at..at + bytes].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    };
    let (count, size, start) = (number(end + 10, 2), number(end + 12, 4), number(end + 16, 4));
    assert_eq!(number(start as usize + 28, 2), 30, "the first entry's name");
    let mut records = b"PK\x06\x06".to_vec();
    for (value, bytes) in
        [(44, 8), (45, 2), (45, 2), (0, 4), (0, 4), (count, 8), (count, 8), (size, 8), (start, 8)]
    {
        records.extend(&u64::to_le_bytes(value)[..bytes]);
    }
    records.extend(b"PK\x06\x07");
    for (value, bytes) in [(0u64, 4), (end as u64, 8), (1, 4)] {
        records.extend(&value.to_le_bytes()[..bytes]);
    }
    assert_eq!(records.len(), 76);
    let shifted = [&plain[..end], &records, &plain[end..]].concat();
    let of = |bytes: Vec<u8>| pt2::Archive::from_bytes(bytes).unwrap().program(None).unwrap();
    assert_eq!(of(shifted).graph.to_string(), of(plain.clone()).graph.to_string());
}
