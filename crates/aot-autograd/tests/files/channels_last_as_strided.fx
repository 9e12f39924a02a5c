# `as_strided` addresses memory: the value is brought into memory order first.
fx 1.0

graph "g" {
  %x: f32[1, 2, 2, 3]{12, 1, 6, 2} = input "x"

  %first: f32[2] = aten.as_strided.default(%x, [2], [1], 4)
  %fill_: f32[2] = aten.fill_.Scalar(%first, 0.5)
  return %x
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[1, 2, 2, 3]{12, 1, 6, 2} = input "x"
#
#   %first: f32[1, 2, 3, 2] = aten.permute.default(%x, [0, 2, 3, 1])
#   %first_1: f32[2] = aten.as_strided.default(%first, [2], [1], 4)
#   %fill: f32[2] = aten.fill.Scalar(%first_1, 0.5)
#   %first_2: f32[1, 2, 3, 2] = aten.as_strided_scatter.default(%first, %fill, [2], [1], 4)
#   %x_1: f32[1, 2, 2, 3]{12, 1, 6, 2} = aten.permute.default(%first_2, [0, 3, 1, 2])
#   return %x_1
#   return input "x" = %x_1
# }
