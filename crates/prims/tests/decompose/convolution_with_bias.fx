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
