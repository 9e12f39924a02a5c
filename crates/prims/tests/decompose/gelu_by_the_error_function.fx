# test decompose
# GELU without approximation is `x * Phi(x)` by the error function.
fx 1.0

graph "g" {
  %x: f32[8] = input "x"

  %y: f32[8] = aten.gelu.default(%x, "none")
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[8] = input "x"
#
#   %y: f32[8] = prims.mul(%x, 0.7071067811865476)
#   %y_1: f32[8] = prims.erf(%y)
#   %y_2: f32[8] = prims.add(%y_1, 1.0)
#   %y_3: f32[8] = prims.mul(%x, 0.5)
#   %y_4: f32[8] = prims.mul(%y_3, %y_2)
#   return %y_4
# }
