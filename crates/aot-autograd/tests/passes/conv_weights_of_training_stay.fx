# test pass conv
# In training the weight changes from call to call: nothing would be gained.
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
#   %y: f32[1, 3, 3, 3] = prims.conv(%x, %w, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
#   %se: f32[1, 3, 3, 3] = prims.expand(%s, [1, 3, 3, 3])
#   %z: f32[1, 3, 3, 3] = prims.mul(%y, %se)
#   return %z
# }
