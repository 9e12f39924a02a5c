# test pass fast-math fast-math
# `sin^2 + cos^2 = 1`, where results may round differently.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"

  %s: f32[3] = prims.sin(%x)
  %c: f32[3] = prims.cos(%x)
  %ss: f32[3] = prims.mul(%s, %s)
  %cc: f32[3] = prims.mul(%c, %c)
  %a: f32[3] = prims.add(%ss, %cc)
  return %a
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#
#   %a: f32[3] = prims.full([3], 1.0, f32)
#   return %a
# }
