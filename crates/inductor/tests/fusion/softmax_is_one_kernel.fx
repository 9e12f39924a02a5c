# test fuse
# Two reductions of a row and what follows them are stages of one kernel.
fx 1.0

graph "g" {
  %x: f32[4, 5] = input "x"

  %m: f32[4] = prims.amax(%x, [1])
  %m1: f32[4, 1] = prims.reshape(%m, [4, 1])
  %me: f32[4, 5] = prims.expand(%m1, [4, 5])
  %d: f32[4, 5] = prims.sub(%x, %me)
  %e: f32[4, 5] = prims.exp(%d)
  %s: f32[4] = prims.sum(%e, [1])
  %s1: f32[4, 1] = prims.reshape(%s, [4, 1])
  %se: f32[4, 5] = prims.expand(%s1, [4, 5])
  %y: f32[4, 5] = prims.div(%e, %se)
  return %y
}
