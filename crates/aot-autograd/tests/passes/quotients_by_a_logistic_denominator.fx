# test pass quotients
fx 1.0
graph "silu" {
  %x: f32[4, 3] = input "x"
  %g: f32[4, 3] = input "g"
  %n: f32[4, 3] = prims.neg(%x)
  %e: f32[4, 3] = prims.exp(%n)
  %d: f32[4, 3] = prims.add(%e, 1.0)
  %y: f32[4, 3] = prims.div(%x, %d)
  %a: f32[4, 3] = prims.div(%g, %d)
  return %y
  return %a
}

# expected:
# fx 1.0
#
# graph "silu" {
#   %x: f32[4, 3] = input "x"
#   %g: f32[4, 3] = input "g"
#
#   %n: f32[4, 3] = prims.neg(%x)
#   %e: f32[4, 3] = prims.exp(%n)
#   %d: f32[4, 3] = prims.add(%e, 1.0)
#   %y: f32[4, 3] = prims.div(1.0, %d)
#   %y_1: f32[4, 3] = prims.mul(%x, %y)
#   %a: f32[4, 3] = prims.div(1.0, %d)
#   %a_1: f32[4, 3] = prims.mul(%g, %a)
#   return %y_1
#   return %a_1
# }
