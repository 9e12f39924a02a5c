# test decompose
# An integer tensor is converted to the dtype of the result before it is added.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"
  %i: i64[3] = input "i"

  %y: f32[3] = aten.add.Tensor(%x, %i, 2)
  return %y
}
