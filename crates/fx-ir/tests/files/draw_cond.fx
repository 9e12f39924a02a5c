# test draw
fx 1.0

graph "cond" {
  subgraph g0 "true_graph" {
    %a: f32[8, 3] = input "a"

    %sin: f32[8, 3] = aten.sin.default(%a)
    return %sin
  }
  subgraph g1 "false_graph" {
    %a: f32[8, 3] = input "a"

    %cos: f32[8, 3] = aten.cos.default(%a)
    %neg: f32[8, 3] = aten.neg.default(%cos)
    return %neg
  }
  %x: f32[8, 3] = input "x"
  %p: bool[] = input "p"
  %w: f32[3, 3] = parameter "fc.weight"

  %linear: f32[8, 3] = aten.linear.default(%x, %w, none) from fc:linear
  %cond: f32[8, 3] = higher_order.cond(%p, &g0, &g1, [%linear])
  %add: f32[8, 3] = aten.add.Tensor(%cond, %x, 1)
  return %add
}

# expected:
# digraph "cond" {
#   rankdir=TB;
#   node [shape=box, style="rounded,filled", fontname="Helvetica"];
#   n7 [label="x\nf32[8, 3]", tooltip="input\nx: f32[8, 3]", fillcolor="#2f3a4f", color="#2f3a4f", fontcolor="#ffffff"];
#   n8 [label="p\nbool[]", tooltip="input\np: bool[]", fillcolor="#2f3a4f", color="#2f3a4f", fontcolor="#ffffff"];
#   n9 [label="fc.weight\nf32[3, 3]", tooltip="parameter\nfc.weight: f32[3, 3]", fillcolor="#f4f5f8", color="#c9ced9", fontcolor="#5c667a", fontsize=8, height=0.2];
#   n10 [label="linear\n%linear\nf32[8, 3]", tooltip="aten.linear.default\nf32[8, 3]\nfc: linear", fillcolor="#dff4f5", color="#6dbcc1", fontcolor="#146469"];
#   n11 [label="cond\n%cond\nf32[8, 3]", tooltip="higher_order.cond\nf32[8, 3]", fillcolor="#fbe5f6", color="#d78ac6", fontcolor="#8a2e76"];
#   n12 [label="add.Tensor\n%add\nf32[8, 3]", tooltip="aten.add.Tensor\nf32[8, 3]", fillcolor="#dff4f5", color="#6dbcc1", fontcolor="#146469"];
#   n13 [label="output", tooltip="output ", fillcolor="#1f7a5a", color="#1f7a5a", fontcolor="#ffffff"];
#   subgraph cluster_0 {
#     label="g0 true_graph";
#     n0 [label="a\nf32[8, 3]", tooltip="input\na: f32[8, 3]", fillcolor="#2f3a4f", color="#2f3a4f", fontcolor="#ffffff"];
#     n1 [label="sin\n%sin\nf32[8, 3]", tooltip="aten.sin.default\nf32[8, 3]", fillcolor="#e2f4ea", color="#76bd94", fontcolor="#1c6b41"];
#     n2 [label="output", tooltip="output ", fillcolor="#1f7a5a", color="#1f7a5a", fontcolor="#ffffff"];
#   }
#   subgraph cluster_1 {
#     label="g1 false_graph";
#     n3 [label="a\nf32[8, 3]", tooltip="input\na: f32[8, 3]", fillcolor="#2f3a4f", color="#2f3a4f", fontcolor="#ffffff"];
#     n4 [label="cos\n%cos\nf32[8, 3]", tooltip="aten.cos.default\nf32[8, 3]", fillcolor="#dff4f5", color="#6dbcc1", fontcolor="#146469"];
#     n5 [label="neg\n%neg\nf32[8, 3]", tooltip="aten.neg.default\nf32[8, 3]", fillcolor="#e2f4ea", color="#76bd94", fontcolor="#1c6b41"];
#     n6 [label="output", tooltip="output ", fillcolor="#1f7a5a", color="#1f7a5a", fontcolor="#ffffff"];
#   }
#   n0 -> n1;
#   n1 -> n2;
#   n3 -> n4;
#   n4 -> n5;
#   n5 -> n6;
#   n7 -> n10;
#   n9 -> n10;
#   n8 -> n11;
#   n2 -> n11 [style=dashed];
#   n6 -> n11 [style=dashed];
#   n10 -> n11;
#   n11 -> n12;
#   n7 -> n12;
#   n12 -> n13;
# }
