# test pass clamps
fx 1.0
graph "stays" {
  %x: f32[4, 3] = input "x"
  %m: f32[4, 3] = prims.mul(%x, 42.5)
  %a: f32[4, 3] = prims.max(%m, 0.0)
  %b: f32[4, 3] = prims.min(%a, 255.0)
  %q: u8[4, 3] = prims.convert(%b, u8)
  %o: f32[4, 3] = prims.round(%m)
  %c: f32[4, 3] = prims.min(%o, 100.5)
  %t: i8[4, 3] = prims.convert(%c, i8)
  return %q
  return %t
}

# expected:
# fx 1.0
#
# graph "stays" {
#   %x: f32[4, 3] = input "x"
#
#   %m: f32[4, 3] = prims.mul(%x, 42.5)
#   %a: f32[4, 3] = prims.max(%m, 0.0)
#   %b: f32[4, 3] = prims.min(%a, 255.0)
#   %q: u8[4, 3] = prims.convert(%b, u8)
#   %o: f32[4, 3] = prims.round(%m)
#   %c: f32[4, 3] = prims.min(%o, 100.5)
#   %t: i8[4, 3] = prims.convert(%c, i8)
#   return %q
#   return %t
# }
