# An input that is written becomes an extra output; the result of the in-place call is the same tensor.
fx 1.0

graph "g" {
  %x: f32[2, 3] = input "x"

  %relu_: f32[2, 3] = aten.relu_.default(%x) from act:relu_
  %add: f32[2, 3] = aten.add.Tensor(%x, %relu_, 1)
  return %add
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 3] = input "x"
#
#   %relu: f32[2, 3] = aten.relu.default(%x) from act:relu_
#   %add: f32[2, 3] = aten.add.Tensor(%relu, %relu, 1)
#   return %add
#   return input "x" = %relu
# }
