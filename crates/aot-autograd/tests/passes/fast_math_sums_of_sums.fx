# test pass fast-math fast-math
# A sum over one dimension and then the other is one sum over both.
fx 1.0

graph "g" {
  %x: f32[2, 3] = input "x"

  %e: f32[3] = prims.sum(%x, [0])
  %a: f32[] = prims.sum(%e, [0])
  return %a
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 3] = input "x"
#
#   %a: f32[] = prims.sum(%x, [0, 1])
#   return %a
# }
