# test partition min-cut 1.0
# What follows the sum of a row is small and dear to compute: it is saved, not the row.
fx 1.0

graph "g" {
  %x: f32[8, 64] = parameter "x"

  %s: f32[8] = prims.sum(%x, [1])
  %t: f32[8] = prims.exp(%s)
  %l: f32[] = prims.sum(%t, [0])
  return loss %l
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[8, 64] = parameter "x"
#
#   %s: f32[8] = prims.sum(%x, [1])
#   %t: f32[8] = prims.exp(%s)
#   %l: f32[] = prims.sum(%t, [0])
#   return loss %l
#   return saved %t
# }
#
# fx 1.0
#
# graph "g_backward" {
#   %t: f32[8] = input "saved_0"
#
#   %tangent: f32[] = prims.full([], 1.0, f32)
#   %l_grad: f32[1] = prims.reshape(%tangent, [1])
#   %l_grad_1: f32[8] = prims.expand(%l_grad, [8])
#   %t_grad: f32[8] = prims.mul(%l_grad_1, %t)
#   %s_grad: f32[8, 1] = prims.reshape(%t_grad, [8, 1])
#   %s_grad_1: f32[8, 64] = prims.expand(%s_grad, [8, 64])
#   return parameter_gradient "x" = %s_grad_1
# }
