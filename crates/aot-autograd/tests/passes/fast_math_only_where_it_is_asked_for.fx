# test pass fast-math
# Nothing is rewritten where the caller has not said that results may round differently.
fx 1.0

graph "g" {
  %x: f32[3] = input "x"

  %e: f32[3] = prims.exp(%x)
  %a: f32[3] = prims.log(%e)
  return %a
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[3] = input "x"
#
#   %e: f32[3] = prims.exp(%x)
#   %a: f32[3] = prims.log(%e)
#   return %a
# }
