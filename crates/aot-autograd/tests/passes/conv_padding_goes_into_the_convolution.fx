# test pass conv
# Zeros padded before a convolution are its own padding.
fx 1.0

graph "g" {
  %x: f32[1, 2, 5, 5] = input "x"
  %w: f32[3, 2, 3, 3] = parameter "w"

  %p: f32[1, 2, 7, 7] = prims.pad(%x, [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], 0.0)
  %y: f32[1, 3, 5, 5] = prims.conv(%p, %w, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[1, 2, 5, 5] = input "x"
#   %w: f32[3, 2, 3, 3] = parameter "w"
#
#   %y: f32[1, 3, 5, 5] = prims.conv(%x, %w, [1, 1], [1, 1, 1, 1], [1, 1], false, [0, 0], 1)
#   return %y
# }
