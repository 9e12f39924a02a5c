# test partition min-cut 1.0
# The gradient of tanh needs its result alone, and that of the square the product: nothing else is saved.
fx 1.0

graph "g" {
  %x: f32[4, 3] = input "x"
  %w: f32[3, 5] = parameter "w"
  %v: f32[5, 2] = parameter "v"

  %h: f32[4, 5] = prims.matmul(%x, %w)
  %a: f32[4, 5] = prims.tanh(%h)
  %y: f32[4, 2] = prims.matmul(%a, %v)
  %q: f32[4, 2] = prims.mul(%y, %y)
  %l: f32[] = prims.sum(%q, [0, 1])
  return loss %l
}

# expected:
# fx 1.0
#
# graph "g" {
#   %x: f32[4, 3] = input "x"
#   %w: f32[3, 5] = parameter "w"
#   %v: f32[5, 2] = parameter "v"
#
#   %h: f32[4, 5] = prims.matmul(%x, %w)
#   %a: f32[4, 5] = prims.tanh(%h)
#   %y: f32[4, 2] = prims.matmul(%a, %v)
#   %q: f32[4, 2] = prims.mul(%y, %y)
#   %l: f32[] = prims.sum(%q, [0, 1])
#   return loss %l
#   return saved %a
#   return saved %y
# }
#
# fx 1.0
#
# graph "g_backward" {
#   %x: f32[4, 3] = input "x"
#   %v: f32[5, 2] = parameter "v"
#   %a: f32[4, 5] = input "saved_0"
#   %y: f32[4, 2] = input "saved_1"
#
#   %tangent: f32[] = prims.full([], 1.0, f32)
#   %l_grad: f32[1, 1] = prims.reshape(%tangent, [1, 1])
#   %l_grad_1: f32[4, 2] = prims.expand(%l_grad, [4, 2])
#   %q_grad: f32[4, 2] = prims.mul(%l_grad_1, %y)
#   %q_grad_1: f32[4, 2] = prims.mul(%l_grad_1, %y)
#   %q_grad_2: f32[4, 2] = prims.add(%q_grad, %q_grad_1)
#   %y_grad: f32[2, 5] = prims.permute(%v, [1, 0])
#   %y_grad_1: f32[4, 5] = prims.matmul(%q_grad_2, %y_grad)
#   %y_grad_2: f32[5, 4] = prims.permute(%a, [1, 0])
#   %y_grad_3: f32[5, 2] = prims.matmul(%y_grad_2, %q_grad_2)
#   %a_grad: f32[4, 5] = prims.mul(%a, %a)
#   %a_grad_1: f32[4, 5] = prims.sub(1.0, %a_grad)
#   %a_grad_2: f32[4, 5] = prims.mul(%y_grad_1, %a_grad_1)
#   %h_grad: f32[3, 4] = prims.permute(%x, [1, 0])
#   %h_grad_1: f32[3, 5] = prims.matmul(%h_grad, %a_grad_2)
#   return parameter_gradient "w" = %h_grad_1
#   return parameter_gradient "v" = %y_grad_3
# }
