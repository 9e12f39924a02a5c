# An output that names the buffer is kept as it is.
fx 1.0

graph "g" {
  %b: f32[3] = buffer "b"

  %add_: f32[3] = aten.add_.Tensor(%b, 1, 1)
  return buffer "b" = %add_
  return %b
}

# expected:
# fx 1.0
#
# graph "g" {
#   %b: f32[3] = buffer "b"
#
#   %add: f32[3] = aten.add.Tensor(%b, 1, 1)
#   return buffer "b" = %add
#   return %add
# }
