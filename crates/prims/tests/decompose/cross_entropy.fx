# test decompose
# The loss of class numbers is the negative logarithm of the softmax at the target, averaged over what is not ignored.
fx 1.0

graph "g" {
  %x: f32[4, 3] = input "x"
  %t: i64[4] = input "t"

  %y: f32[] = aten.cross_entropy_loss.default(%x, %t, none, 1, -100, 0.0)
  return loss %y
}

# expected:
# fx 1.1
#
# graph "g" {
#   %x: f32[4, 3] = input "x"
#   %t: i64[4] = input "t"
#
#   %y: f32[4] = prims.amax(%x, [1])
#   %y_1: f32[4, 1] = prims.reshape(%y, [4, 1])
#   %y_2: f32[4, 3] = prims.expand(%y_1, [4, 3])
#   %y_3: f32[4, 3] = prims.sub(%x, %y_2)
#   %y_4: f32[4, 3] = prims.exp(%y_3)
#   %y_5: f32[4] = prims.sum(%y_4, [1])
#   %y_6: f32[4, 1] = prims.reshape(%y_5, [4, 1])
#   %y_7: f32[4, 1] = prims.log(%y_6)
#   %y_8: f32[4, 3] = prims.expand(%y_7, [4, 3])
#   %y_9: f32[4, 3] = prims.sub(%y_3, %y_8)
#   %y_10: bool[4] = prims.ne(%t, -100)
#   %y_11: i64[4] = prims.select(%y_10, %t, 0)
#   %y_12: f32[4] = prims.convert(%y_10, f32)
#   %y_13: i64[4, 1] = prims.reshape(%y_11, [4, 1])
#   %y_14: f32[4, 1] = prims.gather(%y_9, 1, %y_13) from :::"aten.cross_entropy_loss.default"
#   %y_15: f32[4] = prims.reshape(%y_14, [4])
#   %y_16: f32[4] = prims.mul(%y_15, %y_12)
#   %y_17: f32[4] = prims.neg(%y_16)
#   %y_18: f32[4] = prims.select(%y_10, %y_17, 0.0)
#   %y_19: f32[] = prims.sum(%y_18, [0])
#   %y_20: f32[] = prims.sum(%y_12, [0])
#   %y_21: f32[] = prims.div(%y_19, %y_20)
#   return loss %y_21
# }
