# test fuse
# What follows a product is computed where the product stores its result.
fx 1.0

graph "g" {
  %x: f32[4, 3] = input "x"
  %w: f32[3, 5] = parameter "w"
  %b: f32[5] = parameter "b"

  %p: f32[4, 5] = prims.matmul(%x, %w)
  %e: f32[4, 5] = prims.expand(%b, [4, 5])
  %a: f32[4, 5] = prims.add(%p, %e)
  %y: f32[4, 5] = prims.max(%a, 0.0)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[4, 3]{3, 1}+0 input 0
# buffer b1 "w" f32[3, 5]{5, 1}+0 constant 0
# buffer b2 "b" f32[5]{1}+0 constant 1
# buffer b3 "y" f32[4, 5]{5, 1}+0 output
# input "x" b0
# constant "w" b1
# constant "b" b2
# output "y" b3[4, 5]{5, 1}+0
# init:
# steps:
# matmul "p_a_y" acc f32 from "p", "a", "y"
#   a b0[4, 3]{3, 1}+0
#   b b1[3, 5]{5, 1}+0
#   epilogue [4, 5]
#     v0: f32 = template
#     v1: f32 = load b2[i1]
#     v2: f32 = add v0, v1
#     v3: f32 = const 0.0
#     v4: f32 = max v2, v3
#     v5: f32 = store b3[i0, i1], v4
# plan bytes 0:
