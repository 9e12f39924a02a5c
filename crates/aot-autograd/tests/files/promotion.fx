# The sum is f32; what is written back has the dtype of the tensor that is written.
fx 1.0

graph "g" {
  %x: bf16[3] = input "x"
  %y: f32[3] = input "y"

  %add_: bf16[3] = aten.add_.Tensor(%x, %y, 1)
  return %add_
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: bf16[3] = input "x"
#   %y: f32[3] = input "y"
#
#   %add: f32[3] = aten.add.Tensor(%x, %y, 1)
#   %add_1: bf16[3] = aten.to.dtype(%add, bf16, false, false, none)
#   return %add_1
#   return input "x" = %add_1
# }
