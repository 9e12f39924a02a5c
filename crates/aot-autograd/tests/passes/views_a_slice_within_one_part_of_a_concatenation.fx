# test pass views
# What lies in one part of a concatenation is a slice of that part; the concatenation is dead then.
fx 1.0

graph "g" {
  %x: f32[2, 3] = input "x"
  %y: f32[2, 3] = input "y"

  %c: f32[2, 6] = prims.cat([%x, %y], 1)
  %b: f32[2, 2] = prims.slice(%c, 1, 4, 2, 1)
  return %b
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 3] = input "x"
#   %y: f32[2, 3] = input "y"
#
#   %b: f32[2, 2] = prims.slice(%y, 1, 1, 2, 1)
#   return %b
# }
