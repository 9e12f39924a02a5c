//! The drawer as a user sees it: an SVG snapshot of the smallest graph, and that a large one takes no time.

use expect_test::expect;
use fx_ir::draw::{Diagram, DrawCluster, DrawEdge, DrawNode, Style, graph_diagram};
use fx_ir::{Graph, InputKind, OriginId, Output, OutputKind, ValueType};
use ir_core::{DType, TensorMeta};

fn f32_64() -> ValueType {
    ValueType::Tensor(TensorMeta::contiguous(DType::F32, [64.into()]))
}

#[test]
fn clusters_are_frames_in_dot() {
    let node = |text: &str, cluster| DrawNode { lines: vec![text.into()], cluster, ..DrawNode::default() };
    let diagram = Diagram {
        title: "fusion".into(),
        nodes: vec![node("load", None), node("mul", Some(0)), node("add", Some(0))],
        edges: vec![
            DrawEdge { from: 0, to: 1, dashed: false },
            DrawEdge { from: 1, to: 2, dashed: false },
            DrawEdge { from: 0, to: 2, dashed: true },
        ],
        clusters: vec![DrawCluster { label: "kernel 0".into(), parent: None }],
    };
    expect![[r##"
        digraph "fusion" {
          rankdir=TB;
          node [shape=box, style="rounded,filled", fontname="Helvetica"];
          n0 [label="load", tooltip="", fillcolor="#ffffff", color="#b9c0ce", fontcolor="#2b3345"];
          subgraph cluster_0 {
            label="kernel 0";
            n1 [label="mul", tooltip="", fillcolor="#ffffff", color="#b9c0ce", fontcolor="#2b3345"];
            n2 [label="add", tooltip="", fillcolor="#ffffff", color="#b9c0ce", fontcolor="#2b3345"];
          }
          n0 -> n1;
          n1 -> n2;
          n0 -> n2 [style=dashed];
        }
    "##]]
    .assert_eq(&diagram.to_dot());
    assert!(diagram.to_svg().contains("kernel 0"));
}

#[test]
fn one_operator_has_one_colour() {
    assert_eq!(Style::of_name("relu"), Style::of_name("relu"));
    let hues: Vec<Style> = ["relu", "conv2d", "batch_norm", "linear"].map(Style::of_name).to_vec();
    assert!(hues.windows(2).any(|p| p[0] != p[1]));
}

#[test]
fn two_thousand_nodes_are_drawn_in_a_second() {
    let mut g = Graph::new("deep");
    let mut x = g.placeholder(InputKind::User, "x", "x", f32_64());
    let mut skip = x;
    for n in 0..1000 {
        let w = g.placeholder(InputKind::Parameter, format!("layer{n}.weight"), "w", f32_64());
        // Placeholders stand first in the order; the drawer does not care.
        x = g.call("aten.mul.Tensor", vec![x.into(), w.into()], [("mul", f32_64())], OriginId(0))[0];
        if n % 10 == 9 {
            x = g.call("aten.add.Tensor", vec![x.into(), skip.into()], [("add", f32_64())], OriginId(0))[0];
            skip = x;
        }
    }
    g.outputs.push(Output { kind: OutputKind::User, arg: x.into() });
    let start = std::time::Instant::now();
    let svg = graph_diagram(&g).to_svg();
    assert!(start.elapsed().as_secs_f64() < 1.0, "{:?}", start.elapsed());
    assert_eq!(svg.matches("<g>").count(), 2102);
}
