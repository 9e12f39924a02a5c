# test decompose
# Batch normalisation in evaluation is a factor and a summand a channel, made of the running statistics.
fx 1.0

graph "g" {
  %x: f32[2, 3, 4, 4] = input "x"
  %w: f32[3] = parameter "w"
  %b: f32[3] = parameter "b"
  %m: f32[3] = buffer "m"
  %v: f32[3] = buffer "v"

  %y: f32[2, 3, 4, 4] = aten.batch_norm.default(%x, %w, %b, %m, %v, false, 0.1, 0.00001, true)
  return %y
}
