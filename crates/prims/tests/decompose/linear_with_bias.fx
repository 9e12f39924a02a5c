# test decompose
# A linear layer is a product with the transposed weight, and the bias added to every row.
fx 1.0

graph "g" {
  %x: f32[4, 3] = input "x"
  %w: f32[2, 3] = parameter "w"
  %b: f32[2] = parameter "b"

  %y: f32[4, 2] = aten.linear.default(%x, %w, %b)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[4, 3] = input "x"
#   %w: f32[2, 3] = parameter "w"
#   %b: f32[2] = parameter "b"
#
#   %y: f32[3, 2] = prims.permute(%w, [1, 0])
#   %y_1: f32[4, 2] = prims.matmul(%x, %y)
#   %y_2: f32[4, 2] = prims.expand(%b, [4, 2])
#   %y_3: f32[4, 2] = prims.add(%y_1, %y_2)
#   return %y_3
# }
