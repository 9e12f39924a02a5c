# test decompose
# What nobody reads is not decomposed into anything.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"

  %e: f32[3] = aten.exp.default(%x)
  %y: f32[3] = aten.relu.default(%x)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#
#   %y: f32[3] = prims.max(%x, 0.0)
#   return %y
# }
