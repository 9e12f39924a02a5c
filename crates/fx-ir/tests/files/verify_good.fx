# test verify
fx 1.0

graph "good" {
  symbol s0 "batch" 2..=64 hint 8
  %x: f32[s0, 3] = input "x"
  %m: f32[3] = buffer "m"

  %relu: f32[s0, 3] = aten.relu.default(%x)
  %mean: f32[3] = aten.mean.dim(%relu, [0], false, none)
  return %relu
  return buffer "m" = %mean
}

# expected:
# well-formed
