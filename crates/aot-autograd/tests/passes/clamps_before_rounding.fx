# test pass clamps
fx 1.0
graph "quantized" {
  %x: f32[4, 3] = input "x"
  %r: f32[4, 3] = prims.max(%x, 0.0)
  %s: f32[4, 3] = prims.min(%r, 6.0)
  %m: f32[4, 3] = prims.mul(%s, 42.5)
  %o: f32[4, 3] = prims.round(%m)
  %a: f32[4, 3] = prims.max(%o, 0.0)
  %b: f32[4, 3] = prims.min(%a, 255.0)
  %q: u8[4, 3] = prims.convert(%b, u8)
  %n: f32[4, 3] = prims.mul(%x, 90.0)
  %p: f32[4, 3] = prims.round(%n)
  %z: f32[4, 3] = prims.add(%p, 3.0)
  %c: f32[4, 3] = prims.max(%z, -128.0)
  %d: f32[4, 3] = prims.min(%c, 127.0)
  %t: i8[4, 3] = prims.convert(%d, i8)
  return %q
  return %t
}

# expected:
# fx 1.0
#
# graph "quantized" {
#   %x: f32[4, 3] = input "x"
#
#   %q: f32[4, 3] = prims.mul(%x, 42.5)
#   %q_1: f32[4, 3] = prims.max(%q, 0.0)
#   %q_2: f32[4, 3] = prims.min(%q_1, 255.0)
#   %q_3: f32[4, 3] = prims.round(%q_2)
#   %q_4: u8[4, 3] = prims.convert(%q_3, u8)
#   %t: f32[4, 3] = prims.mul(%x, 90.0)
#   %t_1: f32[4, 3] = prims.max(%t, -131.0)
#   %t_2: f32[4, 3] = prims.min(%t_1, 124.0)
#   %t_3: f32[4, 3] = prims.round(%t_2)
#   %t_4: f32[4, 3] = prims.add(%t_3, 3.0)
#   %t_5: i8[4, 3] = prims.convert(%t_4, i8)
#   return %q_4
#   return %t_5
# }
