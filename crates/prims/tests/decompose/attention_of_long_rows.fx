# test decompose
#
# Rows longer than attention's kernels take: scores and weights are in memory, rounded to 16 bits once, as an operand.
fx 1.0

graph "g" {
  %q: bf16[1, 2, 3, 513] = input "q"
  %k: bf16[1, 2, 5, 513] = input "k"
  %v: bf16[1, 2, 5, 4] = input "v"
  %m: bool[3, 5] = input "m"

  %y: bf16[1, 2, 3, 4] = aten.scaled_dot_product_attention.default(%q, %k, %v, %m, 0.0, false, 0.25, false)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %q: bf16[1, 2, 3, 513] = input "q"
#   %k: bf16[1, 2, 5, 513] = input "k"
#   %v: bf16[1, 2, 5, 4] = input "v"
#   %m: bool[3, 5] = input "m"
#
#   %y: f32[1, 2, 3, 513] = prims.convert(%q, f32)
#   %y_1: f32[1, 2, 5, 513] = prims.convert(%k, f32)
#   %y_2: f32[1, 2, 513, 5] = prims.permute(%y_1, [0, 1, 3, 2])
#   %y_3: f32[1, 2, 3, 5] = prims.matmul(%y, %y_2)
#   %y_4: f32[1, 2, 3, 5] = prims.mul(%y_3, 0.25)
#   %y_5: bool[1, 2, 3, 5] = prims.expand(%m, [1, 2, 3, 5])
#   %y_6: f32[1, 2, 3, 5] = prims.select(%y_5, %y_4, -inf)
#   %y_7: bool[1, 2, 3, 5] = prims.eq(%y_6, -inf)
#   %y_8: bool[1, 2, 3] = prims.all(%y_7, [3])
#   %y_9: bool[1, 2, 3, 1] = prims.reshape(%y_8, [1, 2, 3, 1])
#   %y_10: bool[1, 2, 3, 5] = prims.expand(%y_9, [1, 2, 3, 5])
#   %y_11: f32[1, 2, 3, 5] = prims.select(%y_10, 0.0, %y_6)
#   %y_12: f32[1, 2, 3] = prims.amax(%y_11, [3])
#   %y_13: f32[1, 2, 3, 1] = prims.reshape(%y_12, [1, 2, 3, 1])
#   %y_14: f32[1, 2, 3, 1] = prims.detach(%y_13)
#   %y_15: f32[1, 2, 3, 5] = prims.expand(%y_14, [1, 2, 3, 5])
#   %y_16: f32[1, 2, 3, 5] = prims.sub(%y_11, %y_15)
#   %y_17: f32[1, 2, 3, 5] = prims.exp(%y_16)
#   %y_18: f32[1, 2, 3] = prims.sum(%y_17, [3])
#   %y_19: f32[1, 2, 3, 1] = prims.reshape(%y_18, [1, 2, 3, 1])
#   %y_20: f32[1, 2, 3, 5] = prims.expand(%y_19, [1, 2, 3, 5])
#   %y_21: f32[1, 2, 3, 5] = prims.div(%y_17, %y_20)
#   %y_22: f32[1, 2, 3, 5] = prims.select(%y_10, 0.0, %y_21)
#   %y_23: bf16[1, 2, 3, 5] = prims.convert(%y_22, bf16)
#   %y_24: bf16[1, 2, 3, 4] = prims.matmul(%y_23, %v)
#   return %y_24
# }
