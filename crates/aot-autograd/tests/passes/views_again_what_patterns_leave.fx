# test pass views-again
# The same rules run again behind the patterns, which leave views.
fx 1.0

graph "g" {
  %x: f32[2, 3] = input "x"

  %a: f32[3, 2] = prims.permute(%x, [1, 0])
  %b: f32[2, 3] = prims.permute(%a, [1, 0])
  return %b
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 3] = input "x"
#   return %x
# }
