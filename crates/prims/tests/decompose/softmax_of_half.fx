# test decompose
# A softmax of 16-bit floats is computed in float32 and rounded once.
fx 1.0

graph "g" {
  %x: bf16[4, 5] = input "x"

  %y: bf16[4, 5] = aten._softmax.default(%x, 1, false)
  return %y
}
