# test pass quotients
fx 1.0
graph "stays" {
  %x: f32[4, 3] = input "x"
  %g: f32[4, 3] = input "g"
  %d: f32[4, 3] = prims.add(%x, 1.0)
  %y: f32[4, 3] = prims.div(%g, %d)
  %a: f32[4, 3] = prims.div(%x, %d)
  %e: f32[4, 3] = prims.exp(%x)
  %l: f32[4, 3] = prims.add(%e, 1.0)
  %once: f32[4, 3] = prims.div(%g, %l)
  return %y
  return %a
  return %once
}

# expected:
# fx 1.0
#
# graph "stays" {
#   %x: f32[4, 3] = input "x"
#   %g: f32[4, 3] = input "g"
#
#   %d: f32[4, 3] = prims.add(%x, 1.0)
#   %y: f32[4, 3] = prims.div(%g, %d)
#   %a: f32[4, 3] = prims.div(%x, %d)
#   %e: f32[4, 3] = prims.exp(%x)
#   %l: f32[4, 3] = prims.add(%e, 1.0)
#   %once: f32[4, 3] = prims.div(%g, %l)
#   return %y
#   return %a
#   return %once
# }
