# test decompose
# Mean and variance of the last dimension, both over the centred values; the statistics are results too.
fx 1.0

graph "g" {
  %x: f32[4, 6] = input "x"
  %w: f32[6] = parameter "w"
  %b: f32[6] = parameter "b"

  %y: f32[4, 6], %mean: f32[4, 1], %rstd: f32[4, 1] = aten.native_layer_norm.default(%x, [6], %w, %b, 0.00001)
  return %y
  return %rstd
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[4, 6] = input "x"
#   %w: f32[6] = parameter "w"
#   %b: f32[6] = parameter "b"
#
#   %y: f32[4] = prims.sum(%x, [1])
#   %y_1: f32[4, 1] = prims.reshape(%y, [4, 1])
#   %y_2: f32[4, 1] = prims.div(%y_1, 6.0)
#   %y_3: f32[4, 6] = prims.expand(%y_2, [4, 6])
#   %y_4: f32[4, 6] = prims.sub(%x, %y_3)
#   %y_5: f32[4, 6] = prims.mul(%y_4, %y_4)
#   %y_6: f32[4] = prims.sum(%y_5, [1])
#   %y_7: f32[4, 1] = prims.reshape(%y_6, [4, 1])
#   %y_8: f32[4, 1] = prims.div(%y_7, 6.0)
#   %y_9: f32[4, 1] = prims.add(%y_8, 1e-5)
#   %y_10: f32[4, 1] = prims.rsqrt(%y_9)
#   %y_11: f32[4, 6] = prims.expand(%y_10, [4, 6])
#   %y_12: f32[4, 6] = prims.mul(%y_4, %y_11)
#   %y_13: f32[4, 6] = prims.expand(%w, [4, 6])
#   %y_14: f32[4, 6] = prims.mul(%y_12, %y_13)
#   %y_15: f32[4, 6] = prims.expand(%b, [4, 6])
#   %y_16: f32[4, 6] = prims.add(%y_14, %y_15)
#   return %y_16
#   return %y_10
# }
