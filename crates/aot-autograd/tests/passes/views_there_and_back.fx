# test pass views
# A reshape that is undone is nothing.
fx 1.0

graph "g" {
  %x: f32[2, 3, 4] = input "x"

  %a: f32[24] = prims.reshape(%x, [24])
  %b: f32[2, 3, 4] = prims.reshape(%a, [2, 3, 4])
  %y: f32[2, 3, 4] = prims.exp(%b)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2, 3, 4] = input "x"
#
#   %y: f32[2, 3, 4] = prims.exp(%x)
#   return %y
# }
