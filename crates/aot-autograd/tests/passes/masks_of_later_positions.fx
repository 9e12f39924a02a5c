# test pass masks
# What hides later keys is the flag as well: the other half of the triangle, complemented.
fx 1.0

graph "g" {
  symbol s0 "n" 2..=64 hint 6
  %q: f32[2, 3, s0, 4] = input "q"
  %k: f32[2, 3, s0, 4] = input "k"
  %v: f32[2, 3, s0, 4] = input "v"

  %n: i64[s0] = prims.iota(s0, 0, 1, i64)
  %i: i64[1, 1, s0, 1] = prims.reshape(%n, [1, 1, s0, 1])
  %j: i64[1, 1, 1, s0] = prims.reshape(%n, [1, 1, 1, s0])
  %ie: i64[1, 1, s0, s0] = prims.expand(%i, [1, 1, s0, s0])
  %je: i64[1, 1, s0, s0] = prims.expand(%j, [1, 1, s0, s0])
  %h: bool[1, 1, s0, s0] = prims.gt(%je, %ie)
  %m: bool[1, 1, s0, s0] = prims.not(%h)
  %y: f32[2, 3, s0, 4], %s: f32[2, 3, s0] = prims.attention(%q, %k, %v, %m, false, 0.5, none, 1.0)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   symbol s0 "n" 2..=64 hint 6
#   %q: f32[2, 3, s0, 4] = input "q"
#   %k: f32[2, 3, s0, 4] = input "k"
#   %v: f32[2, 3, s0, 4] = input "v"
#
#   %y: f32[2, 3, s0, 4], %s: f32[2, 3, s0] = prims.attention(%q, %k, %v, none, true, 0.5, none, 1.0)
#   return %y
# }
