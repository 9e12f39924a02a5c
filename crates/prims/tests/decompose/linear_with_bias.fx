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
