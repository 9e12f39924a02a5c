# test pass views
# A permutation of a permutation is one permutation.
fx 1.0

graph "g" {
  %x: f32[2, 3, 4] = input "x"

  %a: f32[4, 2, 3] = prims.permute(%x, [2, 0, 1])
  %b: f32[3, 2, 4] = prims.permute(%a, [2, 1, 0])
  return %b
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 3, 4] = input "x"
#
#   %b: f32[3, 2, 4] = prims.permute(%x, [1, 0, 2])
#   return %b
# }
