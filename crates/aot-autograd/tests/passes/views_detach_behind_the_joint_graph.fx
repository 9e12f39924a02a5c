# test pass views
# Behind the joint graph `detach` is nothing.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"

  %d: f32[3] = prims.detach(%x)
  %y: f32[3] = prims.mul(%x, %d)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#
#   %y: f32[3] = prims.mul(%x, %x)
#   return %y
# }
