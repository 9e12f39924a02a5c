# test decompose matrix transforms
#
# A reader of older programs gets products.
fx 1.0

graph "g" {
  %x: f32[3, 8] = input "x"

  %y: c64[3, 5] = aten.fft_rfft.default(%x, none, -1, none)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3, 8] = input "x"
#
#   %y: i64[8] = prims.iota(8, 0, 1, i64)
#   %y_1: i64[8, 1] = prims.reshape(%y, [8, 1])
#   %y_2: i64[5] = prims.iota(5, 0, 1, i64)
#   %y_3: i64[1, 5] = prims.reshape(%y_2, [1, 5])
#   %y_4: i64[8, 5] = prims.expand(%y_1, [8, 5])
#   %y_5: i64[8, 5] = prims.expand(%y_3, [8, 5])
#   %y_6: i64[8, 5] = prims.mul(%y_4, %y_5)
#   %y_7: i64[8, 5] = prims.rem(%y_6, 8)
#   %y_8: f64[8, 5] = prims.convert(%y_7, f64)
#   %y_9: f64[8, 5] = prims.mul(%y_8, 0.7853981633974483)
#   %y_10: f64[8, 5] = prims.cos(%y_9)
#   %y_11: f64[8, 5] = prims.sin(%y_9)
#   %y_12: i64[8, 5] = prims.mul(%y_7, 2)
#   %y_13: bool[8, 5] = prims.eq(%y_12, 8)
#   %y_14: f64[8, 5] = prims.select(%y_13, 0.0, %y_11)
#   %y_15: f32[8, 5] = prims.convert(%y_10, f32)
#   %y_16: f32[8, 5] = prims.convert(%y_14, f32)
#   %y_17: f32[3, 5] = prims.matmul(%x, %y_15)
#   %y_18: f32[3, 5] = prims.matmul(%x, %y_16)
#   %y_19: f32[3, 5] = prims.neg(%y_18)
#   %y_20: c64[3, 5] = prims.complex(%y_17, %y_19)
#   return %y_20
# }
