# test fuse
# A product that the caller wants as well is stored in the epilogue, beside what follows it.
fx 1.0

graph "g" {
  %x: f32[4, 3] = input "x"
  %w: f32[3, 5] = parameter "w"

  %p: f32[4, 5] = prims.matmul(%x, %w)
  %y: f32[4, 5] = prims.exp(%p)
  return %p
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[4, 3]{3, 1}+0 input 0
# buffer b1 "w" f32[3, 5]{5, 1}+0 constant 0
# buffer b2 "p" f32[4, 5]{5, 1}+0 output
# buffer b3 "y" f32[4, 5]{5, 1}+0 output
# input "x" b0
# constant "w" b1
# output "p" b2[4, 5]{5, 1}+0
# output "y" b3[4, 5]{5, 1}+0
# init:
# steps:
# matmul "p_y" acc f32 from "p", "y"
#   a b0[4, 3]{3, 1}+0
#   b b1[3, 5]{5, 1}+0
#   epilogue [4, 5]
#     v0: f32 = template
#     v1: f32 = exp v0
#     v2: f32 = store b2[i0, i1], v0
#     v3: f32 = store b3[i0, i1], v1
# plan bytes 0:
