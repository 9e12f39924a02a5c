# test verify
fx 1.0

# Everything that the grammar lets through and the verifier does not.
graph "bad" {
  symbol s0 "batch" 9..=4 hint 8
  %x: f32[s0, 3]{1} = input "x"
  %relu: f32[s1, -3] = aten.relu.default(%x) from fc:relu
  %y: f32[2] = input "x"
  %cond: f32[2] = higher_order.cond(&g4)
  return buffer "x" = %relu
  return input "x" = %relu
  return input "x" = %y
}

# expected:
# graph `bad`: symbol s0 has no value: its smallest is above its largest, or its hint is outside
# graph `bad`, node `x`: 2 sizes but 1 strides
# graph `bad`, node `relu` (fc: relu): size expression `s1` has a leaf that is no symbol of the graph
# graph `bad`, node `relu` (fc: relu): meta `f32[s1, -3]` has a negative size or stride
# graph `bad`, node `y`: a placeholder stands after a call: move it to the front
# graph `bad`, node `cond`: subgraph g4 does not exist
# graph `bad`: an output writes buffer `x`, but no such input exists
# graph `bad`: two outputs write `x`
# graph `bad`: two inputs of one kind are named `x`
