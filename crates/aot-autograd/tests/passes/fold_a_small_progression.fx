# test pass fold
# Positions that are multiplied and shifted are a progression again.
fx 1.0

graph "g" {
  %i: i64[4] = prims.iota(4, 0, 1, i64)
  %a: i64[4] = prims.mul(%i, 3)
  %b: i64[4] = prims.add(%a, 1)
  return %b
}

# expected:
# fx 1.0
#
# graph "g" {
#   %b: i64[4] = prims.iota(4, 1, 3, i64)
#   return %b
# }
