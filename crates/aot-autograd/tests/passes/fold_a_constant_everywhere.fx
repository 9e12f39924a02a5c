# test pass fold
# `op(full(a)) = full(op(a))`: the root of a tensor of fours is a tensor of twos.
fx 1.0

graph "g" {
  %x: f32[3, 3] = input "x"

  %c: f32[3, 3] = prims.full([3, 3], 4.0, f32)
  %r: f32[3, 3] = prims.sqrt(%c)
  %y: f32[3, 3] = prims.mul(%x, %r)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3, 3] = input "x"
#
#   %r: f32[3, 3] = prims.full([3, 3], 2.0, f32)
#   %y: f32[3, 3] = prims.mul(%x, %r)
#   return %y
# }
