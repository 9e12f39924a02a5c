# test partition min-cut 1.0
# Of a chain of pointwise operators none is saved: the backward computes the chain again from the input.
fx 1.0

graph "g" {
  %x: f32[64] = parameter "x"

  %a: f32[64] = prims.sin(%x)
  %b: f32[64] = prims.exp(%a)
  %c: f32[64] = prims.tanh(%b)
  %l: f32[] = prims.sum(%c, [0])
  return loss %l
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[64] = parameter "x"
#
#   %a: f32[64] = prims.sin(%x)
#   %b: f32[64] = prims.exp(%a)
#   %c: f32[64] = prims.tanh(%b)
#   %l: f32[] = prims.sum(%c, [0])
#   return loss %l
# }
#
# fx 1.0
#
# graph "g_backward" {
#   %x: f32[64] = parameter "x"
#
#   %tangent: f32[] = prims.full([], 1.0, f32)
#   %l_grad: f32[1] = prims.reshape(%tangent, [1])
#   %l_grad_1: f32[64] = prims.expand(%l_grad, [64])
#   %a: f32[64] = prims.sin(%x)
#   %b: f32[64] = prims.exp(%a)
#   %c: f32[64] = prims.tanh(%b)
#   %c_grad: f32[64] = prims.mul(%c, %c)
#   %c_grad_1: f32[64] = prims.sub(1.0, %c_grad)
#   %c_grad_2: f32[64] = prims.mul(%l_grad_1, %c_grad_1)
#   %b_grad: f32[64] = prims.mul(%c_grad_2, %b)
#   %a_grad: f32[64] = prims.cos(%x)
#   %a_grad_1: f32[64] = prims.mul(%b_grad, %a_grad)
#   return parameter_gradient "x" = %a_grad_1
# }
