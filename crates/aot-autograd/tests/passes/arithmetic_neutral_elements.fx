# test pass arithmetic
# `x * 1`, `0 + x` and `x / 1` are `x`.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"

  %a: f32[3] = prims.mul(%x, 1.0)
  %b: f32[3] = prims.add(0.0, %a)
  %c: f32[3] = prims.div(%b, 1.0)
  return %c
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#   return %x
# }
