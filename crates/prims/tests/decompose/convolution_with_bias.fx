# test decompose
# A convolution is one prim; its bias is added behind it, where fusion finds it.
fx 1.0

graph "g" {
  %x: f32[1, 2, 5, 5] = input "x"
  %w: f32[3, 2, 3, 3] = parameter "w"
  %b: f32[3] = parameter "b"

  %y: f32[1, 3, 5, 5] = aten.convolution.default(%x, %w, %b, [1, 1], [1, 1], [1, 1], false, [0, 0], 1)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[1, 2, 5, 5] = input "x"
#   %w: f32[3, 2, 3, 3] = parameter "w"
#   %b: f32[3] = parameter "b"
#
#   %y: f32[1, 3, 5, 5] = prims.conv(%x, %w, [1, 1], [1, 1, 1, 1], [1, 1], false, [0, 0], 1)
#   %y_1: f32[3, 1, 1] = prims.reshape(%b, [3, 1, 1])
#   %y_2: f32[1, 3, 5, 5] = prims.expand(%y_1, [1, 3, 5, 5])
#   %y_3: f32[1, 3, 5, 5] = prims.add(%y, %y_2)
#   return %y_3
# }
