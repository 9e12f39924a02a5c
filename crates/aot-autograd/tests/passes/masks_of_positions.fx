# test pass masks
# A triangle written out from positions is the flag, for any length; a mask that shows everything is none.
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
  %m: bool[1, 1, s0, s0] = prims.le(%je, %ie)
  %g: bool[1, 1, s0, 1] = prims.ge(%i, 0)
  %a: bool[1, 1, s0, s0] = prims.expand(%g, [1, 1, s0, s0])
  %y: f32[2, 3, s0, 4], %s: f32[2, 3, s0] = prims.attention(%q, %k, %v, %m, false, 0.5, none, 1.0)
  %z: f32[2, 3, s0, 4], %t: f32[2, 3, s0] = prims.attention(%y, %k, %v, %a, false, 0.5, none, 1.0)
  return %z
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
#   %z: f32[2, 3, s0, 4], %t: f32[2, 3, s0] = prims.attention(%y, %k, %v, none, false, 0.5, none, 1.0)
#   return %z
# }
