# test pass dead
# A call without readers goes; an assertion stays although it gives nothing.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"
  %p: bool[] = input "p"

  %e: f32[3] = prims.exp(%x)
  prims.assert(%p, "must hold")
  %y: f32[3] = prims.neg(%x)
  return %y
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#   %p: bool[] = input "p"
#
#   prims.assert(%p, "must hold")
#   %y: f32[3] = prims.neg(%x)
#   return %y
# }
