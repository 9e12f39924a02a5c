# test pass arithmetic
# `0 - x` is no neutral element of the other side: at zero it has another sign than `-x`.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"

  %a: f32[3] = prims.sub(0.0, %x)
  return %a
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#
#   %a: f32[3] = prims.sub(0.0, %x)
#   return %a
# }
