# test draw
fx 1.0

graph "names & <marks>" {
  %x: f32[2] = input "x"
  %unused: f32[2] = buffer "layer1.0.bn1.num_batches_tracked"
  %w: f32[2] = parameter "layer1.0.bn1.weight"

  %"odd \"name\"": f32[2] = aten.mul.Tensor(%x, %w) from layer1.0.bn1
  %relu: f32[2] = aten.relu.default(%"odd \"name\"")
  return %relu
  return input "x" = %relu
}

# expected:
# digraph "names & <marks>" {
#   rankdir=TB;
#   node [shape=box, style="rounded,filled", fontname="Helvetica"];
#   n0 [label="x\nf32[2]", tooltip="input\nx: f32[2]", fillcolor="#2f3a4f", color="#2f3a4f", fontcolor="#ffffff"];
#   n1 [label="bn1.weight\nf32[2]", tooltip="parameter\nlayer1.0.bn1.weight: f32[2]", fillcolor="#f4f5f8", color="#c9ced9", fontcolor="#5c667a", fontsize=8, height=0.2];
#   n2 [label="mul.Tensor\n%odd \"name\"\nf32[2]", tooltip="aten.mul.Tensor\nf32[2]\nlayer1.0.bn1", fillcolor="#fdebdc", color="#e2a06b", fontcolor="#96501a"];
#   n3 [label="relu\n%relu\nf32[2]", tooltip="aten.relu.default\nf32[2]", fillcolor="#f0e8fb", color="#ab8cdb", fontcolor="#5b3596"];
#   n4 [label="1 unused weights", tooltip="layer1.0.bn1.num_batches_tracked", fillcolor="#f4f5f8", color="#c9ced9", fontcolor="#5c667a", fontsize=8, height=0.2];
#   n5 [label="output", tooltip="output ", fillcolor="#1f7a5a", color="#1f7a5a", fontcolor="#ffffff"];
#   n6 [label="new input\nx", tooltip="new input x", fillcolor="#1f7a5a", color="#1f7a5a", fontcolor="#ffffff", fontsize=8, height=0.2];
#   n0 -> n2;
#   n1 -> n2;
#   n2 -> n3;
#   n3 -> n5;
#   n3 -> n6;
# }
