# test pass cse
# What a partition computes anew stands behind a barrier, or merging it would save it after all.
fx 1.0

graph "g" {
  %x: f32[2] = input "x"

  %a: f32[2] = prims.exp(%x)
  %again: f32[2] = prims.barrier(%x)
  %b: f32[2] = prims.exp(%again)
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
#   %again: f32[2] = prims.barrier(%x)
#   %b: f32[2] = prims.exp(%again)
#   %c: f32[2] = prims.mul(%a, %b)
#   return %c
# }
