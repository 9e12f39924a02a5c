# test pass sums
# The square of what is centred is the variance, not zero.
fx 1.0

graph "g" {
  %x: f32[4, 3, 5] = input "x"
  %g: f32[4, 3, 5] = input "g"

  %s: f32[3] = prims.sum(%x, [0, 2])
  %r: f32[1, 3, 1] = prims.reshape(%s, [1, 3, 1])
  %m: f32[1, 3, 1] = prims.div(%r, 20.0)
  %me: f32[4, 3, 5] = prims.expand(%m, [4, 3, 5])
  %c: f32[4, 3, 5] = prims.sub(%x, %me)
  %q: f32[4, 3, 5] = prims.mul(%c, %c)
  %y: f32[3] = prims.sum(%q, [0, 2])
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[4, 3, 5] = input "x"
#   %g: f32[4, 3, 5] = input "g"
#
#   %s: f32[3] = prims.sum(%x, [0, 2])
#   %r: f32[1, 3, 1] = prims.reshape(%s, [1, 3, 1])
#   %m: f32[1, 3, 1] = prims.div(%r, 20.0)
#   %me: f32[4, 3, 5] = prims.expand(%m, [4, 3, 5])
#   %c: f32[4, 3, 5] = prims.sub(%x, %me)
#   %q: f32[4, 3, 5] = prims.mul(%c, %c)
#   %y: f32[3] = prims.sum(%q, [0, 2])
#   return %y
# }
