# test decompose device
# Each element gathers what its windows hold.
fx 1.0

graph "g" {
  %g: f32[1, 2, 3, 3] = input "g"
  %x: f32[1, 2, 6, 6] = input "x"
  %at: i64[1, 2, 3, 3] = input "at"

  %dx: f32[1, 2, 6, 6] = aten.max_pool2d_with_indices_backward.default(%g, %x, [3, 3], [2, 2], [1, 1], [1, 1], false, %at)
  return %dx
}

# expected:
# fx 1.0
#
# graph "g" {
#   %g: f32[1, 2, 3, 3] = input "g"
#   %x: f32[1, 2, 6, 6] = input "x"
#   %at: i64[1, 2, 3, 3] = input "at"
#
#   %dx: i64[3] = prims.iota(3, -1, 2, i64)
#   %dx_1: i64[3] = prims.iota(3, 0, 1, i64)
#   %dx_2: i64[3, 1, 1, 1] = prims.reshape(%dx, [3, 1, 1, 1])
#   %dx_3: i64[1, 1, 3, 1] = prims.reshape(%dx_1, [1, 1, 3, 1])
#   %dx_4: i64[3, 1, 3, 1] = prims.expand(%dx_2, [3, 1, 3, 1])
#   %dx_5: i64[3, 1, 3, 1] = prims.expand(%dx_3, [3, 1, 3, 1])
#   %dx_6: i64[3, 1, 3, 1] = prims.add(%dx_4, %dx_5)
#   %dx_7: i64[3, 1, 3, 1] = prims.mul(%dx_6, 6)
#   %dx_8: i64[3] = prims.iota(3, -1, 2, i64)
#   %dx_9: i64[3] = prims.iota(3, 0, 1, i64)
#   %dx_10: i64[1, 3, 1, 1] = prims.reshape(%dx_8, [1, 3, 1, 1])
#   %dx_11: i64[1, 1, 1, 3] = prims.reshape(%dx_9, [1, 1, 1, 3])
#   %dx_12: i64[1, 3, 1, 3] = prims.expand(%dx_10, [1, 3, 1, 3])
#   %dx_13: i64[1, 3, 1, 3] = prims.expand(%dx_11, [1, 3, 1, 3])
#   %dx_14: i64[1, 3, 1, 3] = prims.add(%dx_12, %dx_13)
#   %dx_15: i64[3, 3, 3, 3] = prims.expand(%dx_7, [3, 3, 3, 3])
#   %dx_16: i64[3, 3, 3, 3] = prims.expand(%dx_14, [3, 3, 3, 3])
#   %dx_17: i64[3, 3, 3, 3] = prims.add(%dx_15, %dx_16)
#   %dx_18: i32[3, 3, 3, 3] = prims.convert(%dx_17, i32)
#   %dx_19: i32[1, 2, 3, 3] = prims.convert(%at, i32)
#   %dx_20: i32[1, 2, 3, 3, 1, 1] = prims.reshape(%dx_19, [1, 2, 3, 3, 1, 1])
#   %dx_21: f32[1, 2, 3, 3, 1, 1] = prims.reshape(%g, [1, 2, 3, 3, 1, 1])
#   %dx_22: i32[1, 2, 3, 3, 3, 3] = prims.expand(%dx_20, [1, 2, 3, 3, 3, 3])
#   %dx_23: i32[1, 2, 3, 3, 3, 3] = prims.expand(%dx_18, [1, 2, 3, 3, 3, 3])
#   %dx_24: bool[1, 2, 3, 3, 3, 3] = prims.eq(%dx_22, %dx_23)
#   %dx_25: f32[1, 2, 3, 3, 3, 3] = prims.expand(%dx_21, [1, 2, 3, 3, 3, 3])
#   %dx_26: f32[1, 2, 3, 3, 3, 3] = prims.select(%dx_24, %dx_25, 0.0)
#   %dx_27: f32[1, 2, 6, 6, 2, 2] = prims.cover(%dx_26, [6, 6], [2, 2], [1, 1], [1, 1])
#   %dx_28: f32[1, 2, 6, 6] = prims.sum(%dx_27, [4, 5])
#   return %dx_28
# }
