# test pass contractions
# A sum over two dimensions of broadcast operands, of which one has fewer dimensions, is a product of matrices without a batch.
fx 1.0

graph "g" {
  symbol s0 "n" 16..=64 hint 17
  %a: f32[s0, 1, 4, 3] = input "a"
  %b: f32[18, 4, 3] = input "b"

  %ae: f32[s0, 18, 4, 3] = prims.expand(%a, [s0, 18, 4, 3])
  %be: f32[s0, 18, 4, 3] = prims.expand(%b, [s0, 18, 4, 3])
  %m: f32[s0, 18, 4, 3] = prims.mul(%ae, %be)
  %s: f32[s0, 18] = prims.sum(%m, [2, 3])
  return %s
}

# expected:
# fx 1.0
#
# graph "g" {
#   symbol s0 "n" 16..=64 hint 17
#   %a: f32[s0, 1, 4, 3] = input "a"
#   %b: f32[18, 4, 3] = input "b"
#
#   %s: f32[s0, 4, 3] = prims.reshape(%a, [s0, 4, 3])
#   %s_1: f32[s0, 12] = prims.reshape(%s, [s0, 12])
#   %s_2: f32[4, 3, 18] = prims.permute(%b, [1, 2, 0])
#   %s_3: f32[12, 18] = prims.reshape(%s_2, [12, 18])
#   %s_4: f32[s0, 18] = prims.matmul(%s_1, %s_3)
#   return %s_4
# }
