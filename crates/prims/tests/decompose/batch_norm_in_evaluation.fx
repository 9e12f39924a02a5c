# test decompose
# Batch normalisation in evaluation is a factor and a summand a channel, made of the running statistics.
fx 1.0

graph "g" {
  %x: f32[2, 3, 4, 4] = input "x"
  %w: f32[3] = parameter "w"
  %b: f32[3] = parameter "b"
  %m: f32[3] = buffer "m"
  %v: f32[3] = buffer "v"

  %y: f32[2, 3, 4, 4] = aten.batch_norm.default(%x, %w, %b, %m, %v, false, 0.1, 0.00001, true)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 3, 4, 4] = input "x"
#   %w: f32[3] = parameter "w"
#   %b: f32[3] = parameter "b"
#   %m: f32[3] = buffer "m"
#   %v: f32[3] = buffer "v"
#
#   %y: f32[3] = prims.add(%v, 1e-5)
#   %y_1: f32[3] = prims.rsqrt(%y)
#   %y_2: f32[3] = prims.mul(%w, %y_1)
#   %y_3: f32[3] = prims.mul(%m, %y_2)
#   %y_4: f32[3] = prims.sub(%b, %y_3)
#   %y_5: f32[1, 3, 1, 1] = prims.reshape(%y_2, [1, 3, 1, 1])
#   %y_6: f32[1, 3, 1, 1] = prims.reshape(%y_4, [1, 3, 1, 1])
#   %y_7: f32[2, 3, 4, 4] = prims.expand(%y_5, [2, 3, 4, 4])
#   %y_8: f32[2, 3, 4, 4] = prims.mul(%x, %y_7)
#   %y_9: f32[2, 3, 4, 4] = prims.expand(%y_6, [2, 3, 4, 4])
#   %y_10: f32[2, 3, 4, 4] = prims.add(%y_8, %y_9)
#   return %y_10
# }
