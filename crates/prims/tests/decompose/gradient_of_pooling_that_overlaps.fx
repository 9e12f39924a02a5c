# test decompose
# Each window adds its own to memory.
fx 1.0

graph "g" {
  %g: f32[1, 2, 3, 3] = input "g"
  %x: f32[1, 2, 6, 6] = input "x"
  %at: i64[1, 2, 3, 3] = input "at"

  %dx: f32[1, 2, 6, 6] = aten.max_pool2d_with_indices_backward.default(%g, %x, [3, 3], [2, 2], [1, 1], [1, 1], false, %at)
  return %dx
}

# expected:
# fx 1.1
#
# graph "g" {
#   %g: f32[1, 2, 3, 3] = input "g"
#   %x: f32[1, 2, 6, 6] = input "x"
#   %at: i64[1, 2, 3, 3] = input "at"
#
#   %dx: f32[2, 36] = prims.full([2, 36], 0.0, f32)
#   %dx_1: f32[2, 9] = prims.reshape(%g, [2, 9])
#   %dx_2: i64[2, 9] = prims.reshape(%at, [2, 9])
#   %dx_3: f32[2, 36] = prims.scatter(%dx, 1, %dx_2, %dx_1, "add") from :::"aten.max_pool2d_with_indices_backward.default"
#   %dx_4: f32[1, 2, 6, 6] = prims.reshape(%dx_3, [1, 2, 6, 6])
#   return %dx_4
# }
