# test decompose whole scores
#
# The same bits, read for each score.
fx 1.0

graph "g" {
  %q: f32[1, 2, 3, 4] = input "q"
  %k: f32[1, 2, 40, 4] = input "k"
  %v: f32[1, 2, 40, 4] = input "v"

  %y: f32[1, 2, 3, 4] = aten.scaled_dot_product_attention.default(%q, %k, %v, none, 0.5, false, none, false)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %q: f32[1, 2, 3, 4] = input "q"
#   %k: f32[1, 2, 40, 4] = input "k"
#   %v: f32[1, 2, 40, 4] = input "v"
#   %seed: i64[] = seed "ferroflux.seed"
#
#   %y: f32[1, 2, 4, 40] = prims.permute(%k, [0, 1, 3, 2])
#   %y_1: f32[1, 2, 3, 40] = prims.matmul(%q, %y)
#   %y_2: f32[1, 2, 3, 40] = prims.mul(%y_1, 0.5)
#   %y_3: bool[1, 2, 3, 40] = prims.eq(%y_2, -inf)
#   %y_4: bool[1, 2, 3] = prims.all(%y_3, [3])
#   %y_5: bool[1, 2, 3, 1] = prims.reshape(%y_4, [1, 2, 3, 1])
#   %y_6: bool[1, 2, 3, 40] = prims.expand(%y_5, [1, 2, 3, 40])
#   %y_7: f32[1, 2, 3, 40] = prims.select(%y_6, 0.0, %y_2)
#   %y_8: f32[1, 2, 3] = prims.amax(%y_7, [3])
#   %y_9: f32[1, 2, 3, 1] = prims.reshape(%y_8, [1, 2, 3, 1])
#   %y_10: f32[1, 2, 3, 1] = prims.detach(%y_9)
#   %y_11: f32[1, 2, 3, 40] = prims.expand(%y_10, [1, 2, 3, 40])
#   %y_12: f32[1, 2, 3, 40] = prims.sub(%y_7, %y_11)
#   %y_13: f32[1, 2, 3, 40] = prims.exp(%y_12)
#   %y_14: f32[1, 2, 3] = prims.sum(%y_13, [3])
#   %y_15: f32[1, 2, 3, 1] = prims.reshape(%y_14, [1, 2, 3, 1])
#   %y_16: f32[1, 2, 3, 40] = prims.expand(%y_15, [1, 2, 3, 40])
#   %y_17: f32[1, 2, 3, 40] = prims.div(%y_13, %y_16)
#   %y_18: f32[1, 2, 3, 40] = prims.select(%y_6, 0.0, %y_17)
#   %y_19: i64[12] = prims.iota(12, 0, 1, i64)
#   %y_20: i64[1, 2, 3, 2] = prims.reshape(%y_19, [1, 2, 3, 2])
#   %y_21: i64[1, 2, 3, 2] = prims.expand(%seed, [1, 2, 3, 2])
#   %y_22: i64[1, 2, 3, 2] = prims.philox(%y_21, -843151686719242240, %y_20)
#   %y_23: i32[1, 2, 3, 2] = prims.convert(%y_22, i32)
#   %y_24: i32[1, 2, 3, 2, 1] = prims.reshape(%y_23, [1, 2, 3, 2, 1])
#   %y_25: i64[32] = prims.iota(32, 0, 1, i64)
#   %y_26: i32[32] = prims.convert(%y_25, i32)
#   %y_27: i32[1, 2, 3, 2, 32] = prims.expand(%y_24, [1, 2, 3, 2, 32])
#   %y_28: i32[1, 2, 3, 2, 32] = prims.expand(%y_26, [1, 2, 3, 2, 32])
#   %y_29: i32[1, 2, 3, 2, 32] = prims.shr(%y_27, %y_28)
#   %y_30: i32[1, 2, 3, 2, 32] = prims.and(%y_29, 1)
#   %y_31: i32[1, 2, 3, 64] = prims.reshape(%y_30, [1, 2, 3, 64])
#   %y_32: i32[1, 2, 3, 40] = prims.slice(%y_31, 3, 0, 40, 1)
#   %y_33: bool[1, 2, 3, 40] = prims.ne(%y_32, 0)
#   %y_34: f32[] = prims.full([], 2.0, f32)
#   %y_35: f32[1, 2, 3, 40] = prims.expand(%y_34, [1, 2, 3, 40])
#   %y_36: f32[1, 2, 3, 40] = prims.select(%y_33, %y_35, 0.0)
#   %y_37: f32[1, 2, 3, 40] = prims.mul(%y_18, %y_36)
#   %y_38: f32[1, 2, 3, 4] = prims.matmul(%y_37, %v)
#   return %y_38
# }
