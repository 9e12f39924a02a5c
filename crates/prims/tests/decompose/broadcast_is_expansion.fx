# test decompose
# Operands of other sizes are expanded to the size of the result; prims broadcast nothing themselves.
fx 1.0

graph "g" {
  %x: f32[4, 1, 3] = input "x"
  %y: f32[5, 1] = input "y"

  %z: f32[4, 5, 3] = aten.mul.Tensor(%x, %y)
  return %z
}
