# test decompose
# An integer tensor is converted to the dtype of the result before it is added.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"
  %i: i64[3] = input "i"

  %y: f32[3] = aten.add.Tensor(%x, %i, 2)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#   %i: i64[3] = input "i"
#
#   %y: f32[3] = prims.convert(%i, f32)
#   %y_1: f32[3] = prims.mul(%y, 2.0)
#   %y_2: f32[3] = prims.add(%x, %y_1)
#   return %y_2
# }
