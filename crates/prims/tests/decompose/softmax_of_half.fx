# test decompose
# A softmax of 16-bit floats is computed in float32 and rounded once.
fx 1.0

graph "g" {
  %x: bf16[4, 5] = input "x"

  %y: bf16[4, 5] = aten._softmax.default(%x, 1, false)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: bf16[4, 5] = input "x"
#
#   %y: f32[4, 5] = prims.convert(%x, f32)
#   %y_1: f32[4] = prims.amax(%y, [1])
#   %y_2: f32[4, 1] = prims.reshape(%y_1, [4, 1])
#   %y_3: f32[4, 1] = prims.detach(%y_2)
#   %y_4: f32[4, 5] = prims.expand(%y_3, [4, 5])
#   %y_5: f32[4, 5] = prims.sub(%y, %y_4)
#   %y_6: f32[4, 5] = prims.exp(%y_5)
#   %y_7: f32[4] = prims.sum(%y_6, [1])
#   %y_8: f32[4, 1] = prims.reshape(%y_7, [4, 1])
#   %y_9: f32[4, 5] = prims.expand(%y_8, [4, 5])
#   %y_10: f32[4, 5] = prims.div(%y_6, %y_9)
#   %y_11: bf16[4, 5] = prims.convert(%y_10, bf16)
#   return %y_11
# }
