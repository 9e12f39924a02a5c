# test decompose
# GELU without approximation is `x * Phi(x)` by the error function.
fx 1.0

graph "g" {
  %x: f32[8] = input "x"

  %y: f32[8] = aten.gelu.default(%x, "none")
  return %y
}
