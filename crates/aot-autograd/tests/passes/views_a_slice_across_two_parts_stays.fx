# test pass views
# A slice that takes from both parts needs the concatenation.
fx 1.0

graph "g" {
  %x: f32[4] = input "x"

  %c: f32[8] = prims.cat([%x, %x], 0)
  %b: f32[2] = prims.slice(%c, 0, 3, 2, 1)
  return %b
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[4] = input "x"
#
#   %c: f32[8] = prims.cat([%x, %x], 0)
#   %b: f32[2] = prims.slice(%c, 0, 3, 2, 1)
#   return %b
# }
