# test decompose
# A mean divides by the size of the dimension, which is a symbol here and becomes a number of the call.
fx 1.0

graph "g" {
  symbol s0 "batch" 1..=64 hint 8
  %x: f32[s0, 3] = input "x"

  %y: f32[3] = aten.mean.dim(%x, [0], false, none)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   symbol s0 "batch" 1..=64 hint 8
#   %x: f32[s0, 3] = input "x"
#
#   %y: f32[3] = prims.sum(%x, [0])
#   %y_1: f32[3] = prims.div(%y, s0)
#   return %y_1
# }
