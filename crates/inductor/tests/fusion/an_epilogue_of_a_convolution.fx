# test fuse
# The same of a convolution, with a residual that is read in the epilogue.
fx 1.0

graph "g" {
  %x: f32[1, 2, 5, 5] = input "x"
  %r: f32[1, 3, 3, 3] = input "r"
  %w: f32[3, 2, 3, 3] = parameter "w"

  %c: f32[1, 3, 3, 3] = prims.conv(%x, %w, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  %a: f32[1, 3, 3, 3] = prims.add(%c, %r)
  %y: f32[1, 3, 3, 3] = prims.max(%a, 0.0)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[1, 2, 5, 5]{50, 25, 5, 1}+0 input 0
# buffer b1 "r" f32[1, 3, 3, 3]{27, 9, 3, 1}+0 input 1
# buffer b2 "w" f32[3, 2, 3, 3]{18, 9, 3, 1}+0 constant 0
# buffer b3 "y" f32[1, 3, 3, 3]{27, 9, 3, 1}+0 output
# input "x" b0
# input "r" b1
# constant "w" b2
# output "y" b3[1, 3, 3, 3]{27, 9, 3, 1}+0
# init:
# steps:
# conv "c_a_y" acc f32 from "c", "a", "y"
#   input b0[1, 2, 5, 5]{50, 25, 5, 1}+0
#   weight b2[3, 2, 3, 3]{18, 9, 3, 1}+0
#   window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1
#   epilogue [1, 3, 3, 3]
#     v0: f32 = template
#     v1: f32 = load b1[0, i1, i2, i3]
#     v2: f32 = add v0, v1
#     v3: f32 = const 0.0
#     v4: f32 = max v2, v3
#     v5: f32 = store b3[0, i1, i2, i3], v4
# plan bytes 0:
