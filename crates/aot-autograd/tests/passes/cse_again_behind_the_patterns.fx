# test pass cse-again
# The same runs again behind the patterns.
fx 1.0

graph "g" {
  %x: f32[2] = input "x"

  %a: f32[2] = prims.exp(%x)
  %b: f32[2] = prims.exp(%x)
  %c: f32[2] = prims.mul(%a, %b)
  return %c
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[2] = input "x"
#
#   %a: f32[2] = prims.exp(%x)
#   %c: f32[2] = prims.mul(%a, %a)
#   return %c
# }
