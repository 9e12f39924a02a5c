# test pass cse
# `x + y` and `y + x` are one sum.
fx 1.0

graph "g" {
  %x: f32[2] = input "x"
  %y: f32[2] = input "y"

  %a: f32[2] = prims.add(%x, %y)
  %b: f32[2] = prims.add(%y, %x)
  %c: f32[2] = prims.mul(%a, %b)
  return %c
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2] = input "x"
#   %y: f32[2] = input "y"
#
#   %a: f32[2] = prims.add(%x, %y)
#   %c: f32[2] = prims.mul(%a, %a)
#   return %c
# }
