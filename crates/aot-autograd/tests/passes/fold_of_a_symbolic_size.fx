# test pass fold
# One number everywhere folds at any size: nothing is computed, so the size need not be known.
fx 1.0

graph "g" {
  symbol s0 "n" 1..=64 hint 4
  %x: f32[s0] = input "x"

  %c: f64[s0] = prims.full([s0], 2.0, f64)
  %f: f32[s0] = prims.convert(%c, f32)
  %y: f32[s0] = prims.add(%x, %f)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   symbol s0 "n" 1..=64 hint 4
#   %x: f32[s0] = input "x"
#
#   %f: f32[s0] = prims.full([s0], 2.0, f32)
#   %y: f32[s0] = prims.add(%x, %f)
#   return %y
# }
