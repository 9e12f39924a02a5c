# test pass patches
# Windows side by side cut an image into patches: the convolution is their product with the weight.
fx 1.0

graph "g" {
  %x: f32[2, 3, 12, 8] = input "x"
  %w: f32[5, 3, 4, 4] = parameter "w"

  %y: f32[2, 5, 3, 2] = prims.conv(%x, %w, [4, 4], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 3, 12, 8] = input "x"
#   %w: f32[5, 3, 4, 4] = parameter "w"
#
#   %y: f32[2, 3, 3, 4, 2, 4] = prims.reshape(%x, [2, 3, 3, 4, 2, 4])
#   %y_1: f32[2, 3, 2, 3, 4, 4] = prims.permute(%y, [0, 2, 4, 1, 3, 5])
#   %y_2: f32[12, 48] = prims.reshape(%y_1, [12, 48])
#   %y_3: f32[5, 48] = prims.reshape(%w, [5, 48])
#   %y_4: f32[48, 5] = prims.permute(%y_3, [1, 0])
#   %y_5: f32[12, 5] = prims.matmul(%y_2, %y_4)
#   %y_6: f32[2, 3, 2, 5] = prims.reshape(%y_5, [2, 3, 2, 5])
#   %y_7: f32[2, 5, 3, 2] = prims.permute(%y_6, [0, 3, 1, 2])
#   return %y_7
# }
