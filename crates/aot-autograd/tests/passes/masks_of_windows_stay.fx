# test pass masks
# What hides more than what comes later stays a mask.
fx 1.0

graph "g" {
  %q: f32[2, 3, 6, 4] = input "q"
  %k: f32[2, 3, 6, 4] = input "k"
  %v: f32[2, 3, 6, 4] = input "v"

  %n: i64[6] = prims.iota(6, 0, 1, i64)
  %i: i64[1, 1, 6, 1] = prims.reshape(%n, [1, 1, 6, 1])
  %j: i64[1, 1, 1, 6] = prims.reshape(%n, [1, 1, 1, 6])
  %ie: i64[1, 1, 6, 6] = prims.expand(%i, [1, 1, 6, 6])
  %je: i64[1, 1, 6, 6] = prims.expand(%j, [1, 1, 6, 6])
  %l: i64[1, 1, 6, 6] = prims.sub(%ie, 3)
  %a: bool[1, 1, 6, 6] = prims.gt(%je, %l)
  %b: bool[1, 1, 6, 6] = prims.le(%je, %ie)
  %m: bool[1, 1, 6, 6] = prims.and(%a, %b)
  %y: f32[2, 3, 6, 4], %s: f32[2, 3, 6] = prims.attention(%q, %k, %v, %m, false, 0.5, none, 1.0)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %q: f32[2, 3, 6, 4] = input "q"
#   %k: f32[2, 3, 6, 4] = input "k"
#   %v: f32[2, 3, 6, 4] = input "v"
#
#   %n: i64[6] = prims.iota(6, 0, 1, i64)
#   %i: i64[1, 1, 6, 1] = prims.reshape(%n, [1, 1, 6, 1])
#   %j: i64[1, 1, 1, 6] = prims.reshape(%n, [1, 1, 1, 6])
#   %ie: i64[1, 1, 6, 6] = prims.expand(%i, [1, 1, 6, 6])
#   %je: i64[1, 1, 6, 6] = prims.expand(%j, [1, 1, 6, 6])
#   %l: i64[1, 1, 6, 6] = prims.sub(%ie, 3)
#   %a: bool[1, 1, 6, 6] = prims.gt(%je, %l)
#   %b: bool[1, 1, 6, 6] = prims.le(%je, %ie)
#   %m: bool[1, 1, 6, 6] = prims.and(%a, %b)
#   %y: f32[2, 3, 6, 4], %s: f32[2, 3, 6] = prims.attention(%q, %k, %v, %m, false, 0.5, none, 1.0)
#   return %y
# }
