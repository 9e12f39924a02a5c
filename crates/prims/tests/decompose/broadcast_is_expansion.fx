# test decompose
# Operands of other sizes are expanded to the size of the result; prims broadcast nothing themselves.
fx 1.0

graph "g" {
  %x: f32[4, 1, 3] = input "x"
  %y: f32[5, 1] = input "y"

  %z: f32[4, 5, 3] = aten.mul.Tensor(%x, %y)
  return %z
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[4, 1, 3] = input "x"
#   %y: f32[5, 1] = input "y"
#
#   %z: f32[4, 5, 3] = prims.expand(%x, [4, 5, 3])
#   %z_1: f32[4, 5, 3] = prims.expand(%y, [4, 5, 3])
#   %z_2: f32[4, 5, 3] = prims.mul(%z, %z_1)
#   return %z_2
# }
