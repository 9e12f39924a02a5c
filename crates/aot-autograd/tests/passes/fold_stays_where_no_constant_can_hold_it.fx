# test pass fold
# Squares are no progression: a graph has no other constants, so they stay calls.
fx 1.0

graph "g" {
  %i: i64[4] = prims.iota(4, 0, 1, i64)
  %a: i64[4] = prims.mul(%i, %i)
  return %a
}

# expected:
# fx 1.0
#
# graph "g" {
#   %i: i64[4] = prims.iota(4, 0, 1, i64)
#   %a: i64[4] = prims.mul(%i, %i)
#   return %a
# }
