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
#   %y_2: f32[4, 1] = prims.detach(%y_1)
#   %y_3: f32[4, 3] = prims.expand(%y_2, [4, 3])
#   %y_4: f32[4, 3] = prims.sub(%x, %y_3)
#   %y_5: f32[4, 3] = prims.exp(%y_4)
#   %y_6: f32[4] = prims.sum(%y_5, [1])
#   %y_7: f32[4, 1] = prims.reshape(%y_6, [4, 1])
#   %y_8: f32[4, 1] = prims.log(%y_7)
#   %y_9: f32[4, 3] = prims.expand(%y_8, [4, 3])
#   %y_10: f32[4, 3] = prims.sub(%y_4, %y_9)
#   %y_11: bool[4] = prims.ne(%t, -100)
#   %y_12: i64[4] = prims.select(%y_11, %t, 0)
#   %y_13: f32[4] = prims.convert(%y_11, f32)
#   %y_14: i64[4, 1] = prims.reshape(%y_12, [4, 1])
#   %y_15: f32[4, 1] = prims.gather(%y_10, 1, %y_14) from :::"aten.cross_entropy_loss.default"
#   %y_16: f32[4] = prims.reshape(%y_15, [4])
#   %y_17: f32[4] = prims.mul(%y_16, %y_13)
#   %y_18: f32[4] = prims.neg(%y_17)
#   %y_19: f32[4] = prims.select(%y_11, %y_18, 0.0)
#   %y_20: f32[] = prims.sum(%y_19, [0])
#   %y_21: f32[] = prims.sum(%y_13, [0])
#   %y_22: f32[] = prims.div(%y_20, %y_21)
#   return loss %y_22
# }
