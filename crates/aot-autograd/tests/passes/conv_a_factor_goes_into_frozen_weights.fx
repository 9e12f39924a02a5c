# test pass conv inference
# A factor a channel goes into the weight, which is made once: batch normalisation in evaluation.
fx 1.0

graph "g" {
  %x: f32[1, 2, 5, 5] = input "x"
  %w: f32[3, 2, 3, 3] = parameter "w"
  %s: f32[1, 3, 1, 1] = buffer "s"

  %y: f32[1, 3, 3, 3] = prims.conv(%x, %w, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  %se: f32[1, 3, 3, 3] = prims.expand(%s, [1, 3, 3, 3])
  %z: f32[1, 3, 3, 3] = prims.mul(%y, %se)
  return %z
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[1, 2, 5, 5] = input "x"
#   %w: f32[3, 2, 3, 3] = parameter "w"
#   %s: f32[1, 3, 1, 1] = buffer "s"
#
#   %z: f32[3, 1, 1, 1] = prims.reshape(%s, [3, 1, 1, 1])
#   %z_1: f32[3, 2, 3, 3] = prims.expand(%z, [3, 2, 3, 3])
#   %z_2: f32[3, 2, 3, 3] = prims.mul(%w, %z_1)
#   %z_3: f32[1, 3, 3, 3] = prims.conv(%x, %z_2, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
#   return %z_3
# }
