# test fuse
# Two convolutions with epilogues store in a concatenation, which no kernel copies. The first is read at its place too.
fx 1.0

graph "g" {
  %x: f32[1, 4, 5, 5] = input "x"
  %w: f32[4, 4, 1, 1] = parameter "w"
  %v: f32[8, 4, 3, 3] = parameter "v"
  %u: f32[4, 12, 1, 1] = parameter "u"

  %a: f32[1, 4, 5, 5] = prims.conv(%x, %w, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  %ar: f32[1, 4, 5, 5] = prims.max(%a, 0.0)
  %b: f32[1, 8, 5, 5] = prims.conv(%ar, %v, [1, 1], [1, 1, 1, 1], [1, 1], false, [0, 0], 1)
  %br: f32[1, 8, 5, 5] = prims.max(%b, 0.0)
  %c: f32[1, 12, 5, 5] = prims.cat([%ar, %br], 1)
  %y: f32[1, 4, 5, 5] = prims.conv(%c, %u, [1, 1], [0, 0, 0, 0], [1, 1], false, [0, 0], 1)
  return %y
}

# expected:
# kir 1.12
# program "g"
# buffer b0 "x" f32[1, 4, 5, 5]{100, 25, 5, 1}+0 input 0
# buffer b1 "w" f32[4, 4, 1, 1]{4, 1, 1, 1}+0 constant 0
# buffer b2 "v" f32[8, 4, 3, 3]{36, 9, 3, 1}+0 constant 1
# buffer b3 "u" f32[4, 12, 1, 1]{12, 1, 1, 1}+0 constant 2
# buffer b4 "c" f32[1, 12, 5, 5]{1, 1, 60, 12}+0 arena
# buffer b5 "ar" f32[1, 4, 5, 5]{1, 1, 60, 12}+0 view b4
# buffer b6 "br" f32[1, 8, 5, 5]{1, 1, 60, 12}+4 view b4
# buffer b7 "y" f32[1, 4, 5, 5]{100, 25, 5, 1}+0 output
# input "x" b0
# constant "w" b1
# constant "v" b2
# constant "u" b3
# output "y" b7[1, 4, 5, 5]{100, 25, 5, 1}+0
# init:
# steps:
# conv "a_ar" acc f32 from "a", "ar"
#   input b0[1, 4, 5, 5]{100, 25, 5, 1}+0
#   weight b1[4, 4, 1, 1]{4, 1, 1, 1}+0
#   window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1
#   epilogue [1, 4, 5, 5]
#     v0: f32 = template
#     v1: f32 = const 0.0
#     v2: f32 = max v0, v1
#     v3: f32 = store b5[0, i1, i2, i3], v2
# conv "b_br" acc f32 from "b", "br"
#   input b5[1, 4, 5, 5]{1, 1, 60, 12}+0
#   weight b2[8, 4, 3, 3]{36, 9, 3, 1}+0
#   window stride [1, 1] padding [(1, 1), (1, 1)] dilation [1, 1] groups 1
#   epilogue [1, 8, 5, 5]
#     v0: f32 = template
#     v1: f32 = const 0.0
#     v2: f32 = max v0, v1
#     v3: f32 = store b6[0, i1, i2, i3], v2
# conv "y" acc f32 from "y"
#   input b4[1, 12, 5, 5]{1, 1, 60, 12}+0
#   weight b3[4, 12, 1, 1]{12, 1, 1, 1}+0
#   window stride [1, 1] padding [(0, 0), (0, 0)] dilation [1, 1] groups 1
#   epilogue [1, 4, 5, 5]
#     v0: f32 = template
#     v1: f32 = store b7[0, i1, i2, i3], v0
# plan bytes 1216:
#   b4 live 0..2 at 0
