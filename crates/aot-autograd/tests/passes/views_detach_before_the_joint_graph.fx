# test pass views before-joint
# A graph that is still to be differentiated keeps `detach`: the gradient stops there.
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
#   %d: f32[3] = prims.detach(%x)
#   %y: f32[3] = prims.mul(%x, %d)
#   return %y
# }
