# test decompose
# Mean and variance of the last dimension, both over the centred values; the statistics are results too.
fx 1.0

graph "g" {
  %x: f32[4, 6] = input "x"
  %w: f32[6] = parameter "w"
  %b: f32[6] = parameter "b"

  %y: f32[4, 6], %mean: f32[4, 1], %rstd: f32[4, 1] = aten.native_layer_norm.default(%x, [6], %w, %b, 0.00001)
  return %y
  return %rstd
}
