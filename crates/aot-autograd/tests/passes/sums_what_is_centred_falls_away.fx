# test pass sums
# Elements less their mean sum to nothing, so only the other term is summed.
fx 1.0

graph "g" {
  %x: f32[4, 3, 5] = input "x"
  %g: f32[4, 3, 5] = input "g"

  %s: f32[3] = prims.sum(%x, [0, 2])
  %r: f32[1, 3, 1] = prims.reshape(%s, [1, 3, 1])
  %m: f32[1, 3, 1] = prims.div(%r, 20.0)
  %me: f32[4, 3, 5] = prims.expand(%m, [4, 3, 5])
  %c: f32[4, 3, 5] = prims.sub(%x, %me)
  %a: f32[4, 3, 5] = prims.add(%g, %c)
  %y: f32[3] = prims.sum(%a, [0, 2])
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[4, 3, 5] = input "x"
#   %g: f32[4, 3, 5] = input "g"
#
#   %y: f32[3] = prims.sum(%g, [0, 2])
#   return %y
# }
