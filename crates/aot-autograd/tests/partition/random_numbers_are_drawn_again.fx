# test partition min-cut 1.0
# A mask of random numbers is drawn again from its seed, so that both halves see the same numbers.
fx 1.0

graph "g" {
  %x: f32[8] = parameter "x"
  %seed: i64[] = seed "ferroflux.seed"

  %i: i64[8] = prims.iota(8, 0, 1, i64)
  %se: i64[8] = prims.expand(%seed, [8])
  %r: i64[8] = prims.philox(%se, 1, %i)
  %k: bool[8] = prims.lt(%r, 0)
  %d: f32[8] = prims.select(%k, %x, 0.0)
  %q: f32[8] = prims.mul(%d, %d)
  %l: f32[] = prims.sum(%q, [0])
  return loss %l
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[8] = parameter "x"
#   %seed: i64[] = seed "ferroflux.seed"
#
#   %i: i64[8] = prims.iota(8, 0, 1, i64)
#   %se: i64[8] = prims.expand(%seed, [8])
#   %r: i64[8] = prims.philox(%se, 1, %i)
#   %k: bool[8] = prims.lt(%r, 0)
#   %d: f32[8] = prims.select(%k, %x, 0.0)
#   %q: f32[8] = prims.mul(%d, %d)
#   %l: f32[] = prims.sum(%q, [0])
#   return loss %l
# }
#
# fx 1.0
#
# graph "g_backward" {
#   %x: f32[8] = parameter "x"
#   %seed: i64[] = seed "ferroflux.seed"
#
#   %tangent: f32[] = prims.full([], 1.0, f32)
#   %l_grad: f32[1] = prims.reshape(%tangent, [1])
#   %l_grad_1: f32[8] = prims.expand(%l_grad, [8])
#   %se: i64[8] = prims.expand(%seed, [8])
#   %i: i64[8] = prims.iota(8, 0, 1, i64)
#   %r: i64[8] = prims.philox(%se, 1, %i)
#   %k: bool[8] = prims.lt(%r, 0)
#   %d: f32[8] = prims.select(%k, %x, 0.0)
#   %q_grad: f32[8] = prims.mul(%l_grad_1, %d)
#   %q_grad_1: f32[8] = prims.mul(%l_grad_1, %d)
#   %q_grad_2: f32[8] = prims.add(%q_grad, %q_grad_1)
#   %d_grad: f32[8] = prims.select(%k, %q_grad_2, 0.0)
#   return parameter_gradient "x" = %d_grad
# }
