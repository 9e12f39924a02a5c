# test decompose
#
# Which weights are kept are bits. With a half one digit decides.
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
#   %y: i64[12] = prims.iota(12, 0, 1, i64)
#   %y_1: i64[1, 2, 3, 2] = prims.reshape(%y, [1, 2, 3, 2])
#   %y_2: i64[1, 2, 3, 2] = prims.expand(%seed, [1, 2, 3, 2])
#   %y_3: i64[1, 2, 3, 2] = prims.philox(%y_2, -843151686719242240, %y_1)
#   %y_4: i32[1, 2, 3, 2] = prims.convert(%y_3, i32)
#   %y_5: f32[1, 2, 3, 4], %y_6: f32[1, 2, 3] = prims.attention(%q, %k, %v, none, false, 0.5, %y_4, 2.0)
#   return %y_5
# }
