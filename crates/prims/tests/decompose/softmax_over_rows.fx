# test decompose
# The largest element of a row is subtracted first, so that the exponential cannot overflow.
fx 1.0

graph "g" {
  %x: f32[4, 5] = input "x"

  %y: f32[4, 5] = aten._softmax.default(%x, -1, false)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[4, 5] = input "x"
#
#   %y: f32[4] = prims.amax(%x, [1])
#   %y_1: f32[4, 1] = prims.reshape(%y, [4, 1])
#   %y_2: f32[4, 5] = prims.expand(%y_1, [4, 5])
#   %y_3: f32[4, 5] = prims.sub(%x, %y_2)
#   %y_4: f32[4, 5] = prims.exp(%y_3)
#   %y_5: f32[4] = prims.sum(%y_4, [1])
#   %y_6: f32[4, 1] = prims.reshape(%y_5, [4, 1])
#   %y_7: f32[4, 5] = prims.expand(%y_6, [4, 5])
#   %y_8: f32[4, 5] = prims.div(%y_4, %y_7)
#   return %y_8
# }
