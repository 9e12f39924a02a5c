//! The drawer as a user sees it: an SVG snapshot of the smallest graph, and that a large one takes no time.

use expect_test::expect;
use fx_ir::draw::{Diagram, DrawCluster, DrawEdge, DrawNode, Style, graph_diagram, graph_diagram_by_module};
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
fn two_thousand_nodes_are_all_drawn() {
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
    let svg = graph_diagram(&g).to_svg();
    assert_eq!(svg.matches("<g>").count(), 2102);
}

#[test]
fn modules_are_frames_around_runs_of_calls() {
    let text = "fx 1.0
        graph \"g\" {
          %x: f32[2] = input \"x\"
          %w: f32[2] = parameter \"a.b.w\"
          %shared: f32[2] = parameter \"shared\"
          %m: f32[2] = aten.mul.Tensor(%x, %w) from a.b:mul
          %n: f32[2] = aten.mul.Tensor(%m, %shared) from a.c.deep
          %o: f32[2] = aten.mul.Tensor(%n, %shared) from a.b
          %p: f32[2] = aten.neg.default(%o)
          return %p
        }";
    let graph: Graph = text.parse().expect("a graph");
    let diagram = graph_diagram_by_module(&graph, &|_| Style::Plain, 2);
    let labels: Vec<(&str, Option<usize>)> =
        diagram.clusters.iter().map(|c| (c.label.as_str(), c.parent)).collect();
    assert_eq!(labels, [("a", None), ("b", Some(0)), ("c", Some(0)), ("b", Some(0))]);
    let frames: Vec<Option<usize>> = diagram.nodes.iter().map(|n| n.cluster).collect();
    //                 x     w        shared m        n        o        p     output
    assert_eq!(frames, [None, Some(1), None, Some(1), Some(2), Some(3), None, None]);
    assert!(diagram.to_svg().contains("</svg>"));
}

/// What a broken pass leaves after can still be looked at; the verifier says what is wrong with it.
#[test]
fn ill_formed_graphs_print_and_draw() {
    let mut g = Graph::new("broken");
    let bogus = fx_ir::ValueId(99);
    g.call("aten.neg.default", vec![bogus.into()], [("y", f32_64())], OriginId(7));
    g.order.push(fx_ir::NodeId(42));
    g.nodes[fx_ir::NodeId(0)].outputs.push(fx_ir::ValueId(77));
    g.outputs.push(Output { kind: OutputKind::User, arg: bogus.into() });
    assert!(g.to_string().contains("?99"));
    assert!(g.print_readable().contains("?77"));
    assert!(graph_diagram(&g).to_svg().contains("neg"));
    assert_eq!(fx_ir::well_formed(&g).expect_err("ill-formed").len(), 5);
}
